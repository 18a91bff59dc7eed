"""The README and the pages of `docs`: what they print runs, and what they name is there.

Every block of `sh` and of `python` runs as printed, those of a page in one folder; those of `yaml` are read.
An HTML comment `<!-- not run: REASON -->` before a block of `sh` leaves it out; options, fields and targets
in it are looked up all the same. In the folder
* `pscale run` has `--budget 1s` and trains two steps; every case is launched once at least. For less of
  them weak has one layer, collectives makes each call once, of two sizes, and reductions are maxima;
* RUN stands for the newest run, as in text, and FILE for the references that the page has made;
* a block of `yaml` with a name is that suite's file; `mine` and `a.out` are a small MPI program;
* package managers and make are not started.
"""

import os
import re
import shlex
import shutil
import sys
import tomllib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from patience import run_program
from typer.main import get_command

from pscale.cli.app import application
from pscale.suite import shipped
from pscale.suite.expand import expand
from pscale.suite.fields import LEAVES, fields_at, full_name
from pscale.suite.load import find_site, load_references, load_suite
from pscale.suite.network import load_data_sheet, load_network

ROOT = Path(__file__).parent.parent
CI = ROOT / "packaging" / "github-action"
PAGES = [
    *(ROOT / name for name in ("README.md", "suites/README.md", ".github/CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
COMMANDS = get_command(application()).commands
FOREIGN = {  # options of other programs, and of pscale itself, that pages name
    *("--no-deps", "--no-binary", "--force-reinstall", "--no-cache-dir", "--user", "--upgrade", "--rounds"),
    *("--ntasks-per-node", "--exclusive", "--mpi", "--cpus-per-task", "--threads-per-core"),
    *("--oversubscribe", "--allow-run-as-root", "--torch-python", "--debug", "--llama"),
    *("--mem", "--overlap"),  # of Slurm
}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>.+?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
FOUR_CORES = {"cores": 4.0, "memory_gib": 16.0, "nodes": 1.0}
CLUSTER = {"cores": 384.0, "memory_gib": 16.0, "nodes": 8.0}
PROGRAM = """#!/usr/bin/env python3
from mpi4py import MPI
for _ in range(5):
    MPI.COMM_WORLD.Barrier()
print("Total time: 0.05" * (MPI.COMM_WORLD.rank == 0), end="\\n" * (MPI.COMM_WORLD.rank == 0))
"""
ENDS = {  # what holds when the blocks of Python of a page have run
    "python": "assert (run.complete, run.cases['width'].tolist()) == (True, [32, 64])\n"
    "assert run.report().exists()\n"
    "from pathlib import Path\n"
    "assert min(Path(name).stat().st_size for name in ('scaling.png', 'breakdown.pdf')) > 5_000\n"
}
SHELL = """set -e
{installers}
newest() {{ ls -td reports/$1/*/ | head -1; }}
srun() {{ mpiexec -n 2 "$@"; }}
pscale() {{
  local words=("$@") code=0
  if [ "$1" = run ]; then
    words+=(--budget 1s)
    if grep -qs "^train:" "$2" "suites/$2.yaml"; then words+=(--set train.steps=2 --set train.warmup=1); fi
    case "$2" in
      weak) words+=(--set model.layers=1) ;;
      reductions) words+=(--set "sweep.model.op=[max]" --set "sweep.model.message=[1KiB]") ;;
      collectives) words+=(--set model.calls=1 --set "sweep.model.message=[1KiB, 1MiB]") ;;
    esac
  fi
  python -m pscale "${{words[@]}}" || code=$?
  case "$1 $code" in "check 1" | "check 6" | "history 1" | "history 6") return 0 ;; esac  # answers
  return $code
}}
""".format(installers="\n".join(f"{name}() {{ :; }}" for name in ("pip", "apt", "dnf", "make")))


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    page: Path
    kind: str
    text: str
    why: str | None  # it is not run

    @property
    def id(self) -> str:
        return f"{self.page.stem}: {self.text.splitlines()[0][:40]}"

    @property
    def lines(self) -> list[str]:
        """The command lines, without comments."""
        whole = self.text.replace("\\\n", " ").splitlines()
        return list(filter(None, (re.sub(r"(^|\s)#.*", "", line).strip() for line in whole)))


def blocks(*kinds: str) -> list[Block]:
    return [
        Block(page, found["kind"], found["text"], found["why"])
        for page in PAGES
        for found in BLOCK.finditer(page.read_text(encoding="utf-8"))
        if found["kind"] in kinds and page.stem != "cli"  # its blocks are made of what --help says
    ]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).replace(" ", "-")
        number = next(n for n in range(len(found) + 1) if (f"{plain}-{n}" if n else plain) not in found)
        found.add(f"{plain}-{number}" if number else plain)
    return found


def spans(page: Path) -> list[str]:
    """Return what a page says as code inside its text."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.replace("\\|", "|").split()) for span in re.findall(r"`([^`]+)`", text)]


def commands(page: Path) -> list[str]:
    """Return what a page says as code inside its text, and its lines of shell."""
    return [*spans(page), *(line for block in blocks("sh") if block.page == page for line in block.lines)]


of_pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@of_pages
def test_every_link_of_a_page_leads_to_a_file_or_heading_that_is_there(page):
    wrong = []
    for link in re.findall(r"\]\(<?([^)>]+)>?\)", page.read_text(encoding="utf-8")):
        if ":" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


@of_pages
def test_every_option_that_a_page_names_is_one_of_the_command(page):
    every = {option for command in COMMANDS.values() for option in options_of(command)}
    wrong = []
    for text in commands(page):
        name = (re.findall(r"^pscale ([a-z]+)", text) or [""])[0]
        known = options_of(COMMANDS[name]) if name in COMMANDS else every | FOREIGN
        typed = text.partition(" -- ")[0]
        wrong += [f"{option} in {text}" for option in OPTION.findall(typed) if option not in known]
        if name and name not in COMMANDS:
            wrong.append(text)
    assert wrong == []


@of_pages
def test_every_target_of_make_and_every_extra_that_a_page_names_is_there(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = "\n".join(commands(page))
    assert {*re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)} <= {*targets}
    assert {*re.findall(r"(?:\.|\))\[([a-z]+)\]", text)} <= extras.keys()


def options_of(command):
    top = {"--help", "--version", "--install-completion", "--show-completion"}
    return top.union(*(parameter.opts + parameter.secondary_opts for parameter in command.params))


@of_pages
def test_every_field_of_a_group_that_a_page_names_is_one_of_a_suite(page):
    groups = {leaf.partition(".")[0] for leaf in LEAVES if "." in leaf}
    named = [re.match(r"([a-z]+(?:\.\w+)+)(?:[=:].*)?$", text) for text in spans(page)]
    fields = [found[1] for found in named if found and found[1].partition(".")[0] in groups]
    set_ = [name for text in commands(page) for name in re.findall(r"--set '?([a-z_.]+)=", text)]
    params = [yaml.safe_load(text).get("workload", {}).get("params", {}) for text in suites_of(page)]
    known = {name for each in params for name in each}
    assert [name for name in [*fields, *set_] if name not in known and not is_field(name)] == []


def is_field(name):
    name = name.removeprefix("sweep.").removeprefix("zip.")
    return bool(
        full_name(name) or fields_at(name.split(".")) or name.startswith(("workload.", "launch.env."))
    )


@of_pages
def test_every_field_that_a_command_of_a_page_sets_can_be_set(page):
    for text in commands(page):
        if found := re.match(r"pscale (?:run|show|verify) (\S+) (.*--set .*)", text):
            words = shlex.split(found[2].replace("…", ""))
            overrides = [value for option, value in pairwise(words) if option == "--set"]
            if found[1] in shipped.suites():
                load_suite(shipped.suites()[found[1]], overrides)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return a folder with a run of `weak`, and what pages name: suites, examples, docs, a page's program."""
    folder = tmp_path_factory.mktemp("documents") / "clone"
    folder.mkdir()
    for name in ("suites", "examples", "docs"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "reports" / "gallery" / "weak", folder / "reports" / "gallery" / "weak")
    for name in ("mine", "a.out"):
        write_program(folder / name)
    run(folder, "pscale run weak --no-report")
    return folder


def write_program(path):
    path.write_text(PROGRAM)
    path.chmod(0o755)


def run(folder, text):
    """Run a block of shell; return its output."""
    text = re.sub(r"reports/(\w+)/RUN\b", r"$(newest \1)", text)
    text = re.sub(r"\bRUN\b", "$(newest weak)", text).replace(" FILE ", " weak.reference.yaml ")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(folder.parent / "cache")}
    done = run_program(["bash", "-c", f"{SHELL}{text}"], cwd=folder, env=environ)
    assert "Traceback" not in done.stderr
    return done.stdout


def suites_of(page):
    return [
        block.text for block in blocks("yaml") if block.page == page and re.search("^name:", block.text, re.M)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", dict.fromkeys(block.page for block in blocks("sh") if not block.why), ids=lambda page: page.stem
)
def test_every_shell_block_of_a_page_runs_as_printed(page, measured, tmp_path):
    folder = tmp_path / "clone"
    shutil.copytree(measured, folder, symlinks=True)
    for text in suites_of(page):
        (folder / f"{yaml.safe_load(text)['name']}.yaml").write_text(text, encoding="utf-8")
    for block in blocks("sh"):
        if block.page == page and not block.why:
            run(folder, block.text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", dict.fromkeys(block.page for block in blocks("python")), ids=lambda page: page.stem
)
def test_the_python_blocks_of_a_page_run_one_after_another(page, measured, tmp_path):
    folder = tmp_path / "clone"
    shutil.copytree(measured, folder, symlinks=True)
    text = "\n".join(block.text for block in blocks("python") if block.page == page)
    (folder / "page.py").write_text(text + ENDS.get(page.stem, ""), encoding="utf-8")
    run(folder, "MPLBACKEND=agg python page.py")


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.id)
def test_every_yaml_block_is_what_it_shows(block, tmp_path):
    document, file = yaml.safe_load(block.text), tmp_path / "example.yaml"
    file.write_text(block.text, encoding="utf-8")
    if "tiers" in document:
        assert load_network(file).tiers
    elif "peak" in document:
        assert load_data_sheet(file).peak
    elif {"suite", "expect"} == document.keys():
        assert load_references(file)[1]
    elif "jobs" in document:
        steps = [step for job in document["jobs"].values() for step in job["steps"]]
        (given,) = [step["with"] for step in steps if "github-action" in step.get("uses", "")]
        assert given.keys() <= yaml.safe_load((CI / "action.yml").read_text())["inputs"].keys()
    elif "include" in document:
        known = {name for file in CI.iterdir() for name in re.findall(r"PSCALE_[A-Z_]+", file.read_text())}
        assert document["scaling"]["variables"].keys() <= known
    elif any(
        isinstance(value, dict) and "hosts" in value for name, value in document.items() if name != "launch"
    ):
        (name,) = document
        file.rename(tmp_path / "sites.yaml")
        assert find_site(name, tmp_path, "elsewhere").launch.values
    else:
        for path in (ROOT / "suites").glob("*.yaml"):
            shutil.copy(path, tmp_path)
        write_program(tmp_path / "mine")
        heads = {"clusters": "extends: weak", "advice": "extends: weak\nsweep: {ranks: [8]}"}
        on_cluster = block.page.stem in heads
        head = f"name: example\n{heads.get(block.page.stem, 'scaling: strong')}\n"
        file.write_text(block.text if "name" in document else head + block.text, encoding="utf-8")
        assert expand(load_suite(file), CLUSTER if on_cluster else FOUR_CORES).cases


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.id)
def test_a_console_block_shows_what_its_commands_print(block, tmp_path):
    for text in suites_of(block.page):
        (tmp_path / f"{yaml.safe_load(text)['name']}.yaml").write_text(text, encoding="utf-8")
    machine, cpu = re.compile(r"this machine has \d+"), min(os.sched_getaffinity(0))
    for command, answer in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block.text, re.MULTILINE):
        printed = run(tmp_path, f"taskset -pc {cpu} $$ >/dev/null; {command} 2>&1 || true")
        assert machine.sub("", printed) == machine.sub("", answer), command


def names_of_tests(folder):
    """Return the names of the tests in a folder."""
    paths = folder.rglob("test_*.py")
    return {name for path in paths for name in re.findall(r"^def test_(\w+)", path.read_text(), re.M)}


def test_each_line_of_the_threat_model_names_tests_that_exist_and_each_attack_has_a_line():
    table = (ROOT / "docs" / "security.md").read_text().partition("## The threat model")[2]
    _, _, *lines = re.findall(r"^\|.*\|$", table, re.MULTILINE)
    named = [set(re.findall(r"`(\w+)`", line.split("|")[-2])) for line in lines]
    assert len(lines) > 10
    assert all(named)
    assert set().union(*named) - names_of_tests(ROOT / "tests") == set()
    assert names_of_tests(ROOT / "tests" / "attacks") - set().union(*named) == set()


NAMES_OF_STRATEGIES = {
    "parallel/strategies.py": ["TABLE"],
    "parallel/ranks.py": ["GROUPS"],
    "config/axes.py": ["AXES"],
    "parallel/tensor.py": ["ReplicatedLoss"],
    "training/units.py": ["_column_parallel", "_reduce", "loss"],
    "config/plan.py": ["class Plan"],
    "config/choices.py": ["InSuite"],
    "parallel/schedule.py": ["class Timetable", "def actions"],
}


@pytest.mark.parametrize("file", NAMES_OF_STRATEGIES)
def test_names_in_the_page_on_strategies_are_those_of_the_code(file):
    words, page = NAMES_OF_STRATEGIES[file], (ROOT / "docs" / "strategies.md").read_text()
    assert [word for word in words if word not in (ROOT / "pscale" / file).read_text()] == []
    assert all(f"`{word}" in page or " " in word for word in words)


def test_blocks_without_a_kind_hold_no_commands_and_no_suites():
    heads = {leaf.partition(".")[0] for leaf in LEAVES} | {"name", "sweep", "pscale", r"\$"}
    begins = re.compile(rf"^({'|'.join(heads)})(:| )", re.MULTILINE)
    assert [block.id for block in blocks("") if begins.search(block.text)] == []


def test_blocks_that_are_not_run_say_why_and_are_of_shell():
    left_out = [block for block in blocks("sh", "yaml", "python", "console") if block.why]
    assert all(block.kind == "sh" and len(block.why.split()) >= 3 for block in left_out)
    assert len(left_out) < len(blocks("sh")) / 2
