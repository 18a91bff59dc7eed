"""The arrows of the architecture, enforced: who may import whom, where third parties live; and sizes."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from inspect import ismodule
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pscale"
EVERYONE = {"config", "errors", "runs", "nn.dtypes"}
MAY_IMPORT = {
    "errors": set(),
    "config": set(),
    "runs": set(),
    "blas": set(),
    "mesh": set(),
    "nn": {"blas"},
    "data": {"mesh"},
    "parallel": {"nn", "mesh"},
    "simulator": set(),
    "training": {"nn", "data", "mesh", "parallel"},
    "worker": {"blas", "nn", "data", "mesh", "parallel", "simulator", "training"},
    "watch": {"worker"},
    "suite": {"parallel", "data", "simulator"},
    "launch": {"blas"},
    "analysis": {"simulator"},
    "predict": {"analysis", "simulator", "training", "parallel", "mesh", "worker"},
    "export": {"analysis"},
    "report": {"analysis", "predict"},
    "api": {"cli", "suite", "analysis", "report"},
    "cli": {
        *("suite", "parallel", "training", "launch", "simulator", "analysis", "predict", "export"),
        *("report", "watch"),
    },
}
LOOSE = {"__init__", "__main__", "api", "errors"}
THIRD_PARTY = {
    "mpi4py": {"mesh"},
    "ml_dtypes": {"nn"},
    "numpy": {
        *("blas", "mesh", "nn", "data", "parallel", "simulator", "runs", "training", "worker", "watch"),
        *("analysis", "predict", "report"),
        "export",
    },
    "threadpoolctl": {"worker"},
    "pyarrow": {"runs"},
    "pandas": {"analysis", "predict", "export", "report", "api"},
    "scipy": {"analysis", "predict"},
    "seaborn": {"report"},
    "matplotlib": {"report", "api"},
    "jinja2": {"report"},
    "markupsafe": {"report"},
    "rich": {"report", "cli"},
    "typer": {"cli"},
    "pydantic": {"suite"},
    "pydantic_core": {"suite", "runs"},
    "annotated_types": {"suite"},
    "yaml": {"suite"},
    "psutil": {"launch", "runs", "worker"},
}
# What those that run on any mesh may import of it.
PURE = {
    "data": ("mesh.axis",),
    "parallel": ("mesh.axis", "mesh.grid"),
    "training": ("mesh.axis", "mesh.grid", "mesh.dry", "mesh.alone"),
    "predict": ("mesh.axis", "mesh.grid", "mesh.dry"),
}
LONGEST_FUNCTION = 60  # lines, with its docstring
BUDGETS = {  # lines and files together: they only fall
    # what reads a run
    ("analysis", "report"): (15_789, 44),
    # from the suite to the process
    ("cli", "launch", "suite", "config", "runs", "blas"): (20_000, 94),
    # how a plan is trained
    ("mesh", "parallel", "training"): (7_587, 51),
    # layers, kernels and the types of numbers
    ("nn",): (5_315, 35),
    # the recorder of other programs
    ("watch",): (3_164, 10),
    # what a rank executes
    ("worker",): (3_627, 22),
}
STANDARD_LIBRARY_ONLY_IN = {"subprocess": {"launch", "predict"}}


@cache
def nodes(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text()))]


@cache
def imports(path: Path) -> list[str]:
    found: list[str] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return found


def violations(path: Path, part: str) -> Iterator[str]:
    for name in imports(path):
        top, _, rest = name.partition(".")
        inner = rest.split(".")[0]
        if top == "pscale":
            allowed = {part, "__version__", *EVERYONE, *MAY_IMPORT[part]}
            if not any(f"{rest}.".startswith(f"{each}.") for each in allowed):
                yield f"{part} imports pscale.{rest}"
            if inner == "mesh" and not rest.startswith(PURE.get(part, "mesh")):
                yield f"{part} imports {name}, more than the types of the mesh"
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


def test_every_module_is_in_a_package():
    assert {path.stem for path in PACKAGE.glob("*.py")} == LOOSE


@pytest.mark.parametrize(
    "path", sorted((PACKAGE.parent / "benchmarks").glob("*.py")), ids=lambda path: path.name
)
def test_what_a_benchmark_imports_and_names_of_a_module_is_there(path):
    modules = {}
    for name in imports(path):
        module, _, last = name.rpartition(".")
        if module.partition(".")[0] == "pscale":
            owner = import_module(module)
            modules[last] = getattr(owner, last) if hasattr(owner, last) else import_module(name)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = modules.get(node.value.id)
            assert not ismodule(owner) or hasattr(owner, node.attr), f"{node.value.id}.{node.attr}"


def test_only_one_module_knows_mpi():
    knowing = [
        path.name
        for path in PACKAGE.rglob("*.py")
        if any(name.startswith("mpi4py") for name in imports(path))
    ]
    assert knowing == ["mpi.py"]


def test_no_modules_import_each_other_in_a_circle():
    paths = {module_of(path): path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}
    graph = {
        module: {
            found for name in imports(path) for found in (name, name.rpartition(".")[0]) if found in paths
        }
        for module, path in paths.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_no_function_is_too_long_to_read_at_once():
    too_long = [
        f"{path.relative_to(PACKAGE)}: {node.name} has {length} lines"
        for path in PACKAGE.rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := node.end_lineno - node.lineno + 1) > LONGEST_FUNCTION
    ]
    assert too_long == []


@pytest.mark.parametrize("packages", BUDGETS, ids="+".join)
def test_packages_hold_their_budgets_of_size(packages):
    paths = [path for package in packages for path in (PACKAGE / package).rglob("*.py")]
    lines, files = BUDGETS[packages]
    assert sum(len(path.read_text().splitlines()) for path in paths) <= lines
    assert len(paths) <= files


def module_of(path: Path) -> str:
    return ".".join(("pscale", *path.relative_to(PACKAGE).with_suffix("").parts))
