"""The arrows of the architecture, enforced: which package may import which, and where third parties live."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pscale"
EVERYONE = {
    "cgroup",
    "config",
    "durable",
    "errors",
    "expressions",
    "lateness",
    "metrics",
    "number",
    "ranges",
    "without",
}
MAY_IMPORT = {
    "errors": set(),
    "config": {"errors"},
    "durable": set(),
    "expressions": {"errors"},
    "lateness": set(),
    "metrics": set(),
    "number": set(),
    "ranges": set(),
    "without": set(),
    "mesh": set(),
    "nn": set(),
    "data": {"mesh"},
    "parallel": {"nn", "mesh"},
    "results": set(),
    "replay": {"results"},
    "worker": {"nn", "data", "mesh", "parallel", "replay", "results"},
    "suite": {"parallel", "data", "replay"},
    "launch": set(),
    "analysis": {"replay", "results"},
    "report": {"analysis"},
    "cli": {"suite", "parallel", "launch", "replay", "results", "analysis", "report"},
}
THIRD_PARTY = {
    "mpi4py": {"mesh"},
    "ml_dtypes": {"number"},
    "numpy": {"number", "mesh", "nn", "data", "parallel", "replay", "worker", "analysis", "report"},
    "threadpoolctl": {"worker"},
    "pyarrow": {"results"},
    "pandas": {"analysis", "report"},
    "seaborn": {"report"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "markupsafe": {"report"},
    "rich": {"report", "cli"},
    "typer": {"cli"},
    "pydantic": {"suite"},
    "pydantic_core": {"suite"},
    "annotated_types": {"suite"},
    "yaml": {"suite"},
    "simpleeval": {"expressions"},
    "psutil": {"launch", "worker"},
}
STANDARD_LIBRARY_ONLY_IN = {"subprocess": {"launch"}}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(path: Path, part: str) -> Iterator[str]:
    for name in imports(path):
        top, _, rest = name.partition(".")
        inner = rest.split(".")[0]
        if top == "pscale":
            if inner not in {part, "__version__", *EVERYONE, *MAY_IMPORT[part]}:
                yield f"{part} imports pscale.{inner}"
            pure = ("mesh.axis", "mesh.grid") if part == "parallel" else ("mesh.axis",)
            if inner == "mesh" and part in {"data", "parallel"} and not rest.startswith(pure):
                yield f"{part} imports {name}, more than the types of pscale.mesh.axis"
        elif top in STANDARD_LIBRARY_ONLY_IN:
            if part not in STANDARD_LIBRARY_ONLY_IN[top]:
                yield f"{part} imports {top}"
        elif top not in sys.stdlib_module_names and part not in THIRD_PARTY.get(top, set()):
            yield f"{part} imports {top}"


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_imports_follow_the_arrows_of_the_architecture(path):
    part = path.relative_to(PACKAGE).with_suffix("").parts[0].replace("__main__", "cli")
    if part != "__init__":
        assert list(violations(path, part)) == []


def test_only_one_module_knows_mpi():
    knowing = [
        path.name
        for path in PACKAGE.rglob("*.py")
        if any(name.startswith("mpi4py") for name in imports(path))
    ]
    assert knowing == ["mpi.py"]
