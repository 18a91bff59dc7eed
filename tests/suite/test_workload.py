"""Workloads in suites: what a command becomes, what can never be injected, what is refused before a start."""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pscale.config import Case, from_dict, to_document, workload_command
from pscale.config.workload import numeric, stored
from pscale.config.workload_command import arguments, digests, inputs
from pscale.errors import PlanError, SuiteError
from pscale.runs.run_shape import trouble_of
from pscale.suite.expand import expand
from pscale.suite.load import load_suite

MACHINE = {"cores": 8.0, "memory_gib": 16.0, "nodes": 2.0}
NASTY = [
    "two words",
    "it's",
    'a "quoted" word',
    "; touch pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "a\nb",
    "-n",
    "--help",
    "*",
    "~",
    "{ranks}",
    "\\",
    "",
]


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a program that can be executed, and an input file."""
    program = tmp_path / "a program"
    program.write_text("#!/bin/sh\necho $#\n")
    program.chmod(0o755)
    (tmp_path / "sub").mkdir()
    for name in ("input.dat", "sub/input.dat"):
        (tmp_path / name).write_text("1")
    return tmp_path


@pytest.fixture
def suite(folder):
    """Return a function that loads a suite with a workload."""

    def load(workload, overrides=(), **fields):
        workload = workload if "command" in workload else {"command": "'./a program' {n}", **workload}
        file = folder / "suite.yaml"
        file.write_text(json.dumps({"name": "w", "scaling": "strong", "workload": workload, **fields}))
        return load_suite(file, overrides)

    return load


@pytest.fixture
def cases(suite):
    """Return a function that expands a suite with a workload."""

    def expand_(workload, overrides=(), **fields):
        return list(expand(suite(workload, overrides, **fields), MACHINE).cases)

    return expand_


def refusal(suite, workload, overrides=(), **fields):
    with pytest.raises((SuiteError, PlanError)) as caught:
        expand(suite(workload, overrides, **fields), MACHINE)
    return str(caught.value)


def test_a_command_is_filled_with_the_case_and_its_parameters(cases, folder):
    command = (
        "'./a program' -r {ranks} -c{cores} {threads} --x={nx} {label} {on} {{nx}} {a:b} {here}/input.dat"
    )
    params = {"nx": "=ceil(64 * ranks ** (1 / 3))", "label": "a b", "on": True}
    first, second = cases({"command": command, "params": params}, sweep={"ranks": [1, 2]}, threads=2)
    assert arguments(second) == (
        *(f"{folder}/a program", "-r", "2", "-c4", "2", "--x=81", "a b", "true", "{nx}", "{a:b}"),
        f"{folder}/input.dat",
    )
    assert arguments(first)[5] == "--x=64"
    assert arguments(second, nodes=2) == arguments(second)
    assert [case.label for case in (first, second)] == ["1 rank", "2 ranks"]
    assert first.series == second.series == ""


@pytest.mark.parametrize("value", NASTY)
def test_no_value_is_ever_more_or_less_than_one_argument(cases, value):
    (case,) = cases({"command": "'./a program' a{n}b {n}", "params": {"n": value}})
    assert arguments(case)[1:] == (f"a{value}b", value)
    assert not arguments(case)[0].startswith("-")


@pytest.mark.parametrize("value", NASTY)
def test_the_shell_gets_values_quoted(cases, folder, value):
    (case,) = cases({"command": "printf %s {n}", "params": {"n": value}, "shell": True})
    words = arguments(case)
    assert words[:2] == ("/bin/sh", "-c")
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=folder)
    assert done.stdout == value
    assert not (folder / "pwned").exists()


def test_values_that_mpiexec_would_read_otherwise_are_refused(suite):
    sweep = {"n": ["a", ":"]}
    assert "an argument ':' would begin another program" in refusal(suite, {}, sweep=sweep)
    assert "character 0x0 is not allowed" in refusal(suite, {"params": {"n": "a\0b"}})
    assert "character 0x0 is not allowed" in refusal(suite, {"command": "./a\0b"})


def test_a_program_that_is_a_value_is_a_path_and_no_option_of_the_launcher(suite, cases):
    said = refusal(suite, {"command": "{n}"}, sweep={"n": ["-genv"]})
    assert "there is no program '-genv' on PATH" in said
    (case,) = cases({"command": "{n}", "params": {"n": "./a program"}})
    assert Path(arguments(case)[0]).is_absolute()


def test_parameters_vary_by_name_and_come_before_fields(cases):
    sweep = {"ranks": [1, 2], "width": [3, "=width_of_one * ranks"]}
    workload = {"command": "'./a program' {width} {width_of_one}", "params": {"width_of_one": 5}}
    found = cases(workload, sweep=sweep, exclude=["width == 10"], base="ranks == 1 and width == 3")
    assert [(case.label, case.workload.params["width"]) for case in found] == [
        ("1 rank · width 3", 3),
        ("1 rank · width 5", 5),
        ("2 ranks · width 3", 3),
    ]
    assert [case.base for case in found] == [True, False, False]
    (case,) = cases(workload, ["width=7"], sweep={"ranks": [1]})
    assert case.workload.params["width"] == 7
    (case,) = cases(workload, ["sweep.width=[9]"], sweep={"width": [3]})
    assert case.workload.params["width"] == 9


def test_two_builds_are_compared_by_sweeping_the_command(cases, folder):
    (folder / "b").symlink_to(folder / "a program")
    found = cases({"params": {"n": 1}}, sweep={"command": ["'./a program' {n}", "./b {n}"]})
    assert [Path(arguments(case)[0]).name for case in found] == ["a program", "b"]
    assert len({case.series for case in found}) == 2


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        ({"command": "./absent {n}"}, "there is no program "),
        ({"command": "absent {n}"}, "there is no program 'absent' on PATH"),
        ({"command": "input.dat {n}"}, "the file next to the suite is './input.dat'"),
        ({"command": "./input.dat {n}"}, "cannot be executed: chmod +x"),
        ({"command": "./ {n}"}, "is a folder, not a program"),
        ({"command": "'./a program {n}"}, "cannot be divided into arguments: No closing quotation"),
        ({"command": "'./a program' {nn} {n}"}, "{nn} has no value; did you mean {n}?"),
        ({"command": "  "}, "expected a program with its arguments"),
        ({"command": None}, "workload.command: expected a text"),
        ({"command": "'./a program' {n} input.dat"}, "write '{here}/input.dat', or have it copied there"),
        ({"command": "'./a program' {n} --in=input.dat"}, "'input.dat' is a file next to the suite"),
        ({"params": {"n": 1, "m": 2}}, "workload.params.m: is not used; write {m}"),
        ({"params": {"ranks": 1}}, "ranks is known already"),
        ({"params": {"n": [1]}}, "workload.params.n: expected a number, a text, true or false"),
        ({"params": {"n": 10**308}}, "workload.params.n: a number of 309 characters"),
        ({"params": {"a b": 1}}, "a name of letters, digits and _"),
        ({"stdin": "absent.dat"}, "workload.stdin: there is no file "),
        ({"files": {"in": ["absent.dat"]}}, "workload.files.in[0]: there is no file "),
        (
            {"files": {"in": ["input.dat", "{here}/sub/../input.dat", "sub/input.dat"]}},
            "has the name of another",
        ),
        ({"files": {"out": ["../x"]}}, "../x is outside of the launch's folder"),
        (
            {"figures": {"t": {"json": "/tmp/x.json", "path": "t"}}},
            "/tmp/x.json is outside of the launch's folder",
        ),
        ({"figures": {"t": {}}}, "workload.figures.t: expected regex, json, csv or value"),
        ({"figures": {"t": {"regex": "(a", "unit": "s"}}}, "regex is not a valid regular expression"),
        ({"figures": {"t": {"regex": "a"}}}, "regex has 0 groups; expected one"),
        ({"figures": {"t": {"regex": "(a)(b)"}}}, "regex has 2 groups; expected one"),
        ({"figures": {"t": {"json": "a.json"}}}, "path is missing"),
        ({"figures": {"t": {"csv": "a.csv"}}}, "column is missing"),
        ({"figures": {"t": {"regex": "(a)", "row": "b"}}}, "column and row are for csv"),
        ({"figures": {"t": {"regex": "(a)", "unit": "match"}}}, "expected two, the number and its unit"),
        ({"figures": {"t": {"regex": "(a)", "pick": "sum", "steps": True}}}, "pick and steps"),
        ({"figures": {"t": {"regex": "(a)", "steps": True}}}, "is for the figure of step_time"),
        ({"figures": {"t": {"regex": "(" + 500 * "a" + ")"}}}, "a regular expression of at most 500"),
        (
            {"figures": {f"t{n}": {"regex": "([!-\uffff])" * (n < 1) + "(a)" * (n > 0)} for n in range(101)}},
            "figures: there are 101; expected at most 100",
        ),
        (
            {"figures": {f"t{n}": {"regex": f"({n}" + "[!-\uffff]" * 80 + ")"} for n in range(4)}},
            "the regular expressions have too many characters; expected at most 4000",
        ),
        ({"encoding": "utf-9"}, "encoding: there is no 'utf-9'"),
        ({"encoding": "hex"}, "encoding: there is no 'hex'"),
        ({"figures": {"t": {"regexp": "(a)"}}}, "did you mean 'regex'?"),
        ({"figures": {"wall": {"regex": "(a)"}}}, "wall stands for a step time"),
        ({"figures": {"step_s": {"regex": "(a)"}}}, "is the name of a metric"),
        ({"step_time": "cg"}, "there is no figure 'cg'; expected one of wall, watch"),
        ({"step_time": "watch", "watch": "once"}, "step_time: watch needs watch: true"),
        ({"rate": "cg"}, "rate: there is no figure 'cg'; there are none"),
        ({"rate": "cg", "work": 1}, "rate stands for step_time and work"),
        ({"figures": {"t": {"value": "2 * n"}}}, "expected an expression such as '=2 * n**3 / total'"),
        ({"figures": {"t": {"value": "=2 * m"}}}, "figures.t.value: unknown name 'm'; known are n, ranks"),
        ({"figures": {"t": {"value": "=2", "regex": "(a)"}}}, "one of them: where the number is"),
        ({"step_time": "watch"}, "step_time: watch needs watch: true"),
        (
            {"figures": {"t": {"regex": "(a)", "unit": "MB"}}, "step_time": "t"},
            "t is in MB; expected a unit of time",
        ),
        ({"success": {"regex": "["}}, "workload.success: regex is not a valid regular expression"),
        ({"success": {"exit": 256}}, "at most 255"),
        ({"comand": "x"}, "did you mean 'command'?"),
    ],
)
def test_what_cannot_work_is_refused_with_the_field_before_anything_starts(suite, workload, expected):
    params = {} if "params" in workload else {"params": {"n": 1}}
    said = refusal(suite, {**params, **workload})
    assert expected in said
    assert "suite.yaml:1" in said


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"train": {"batch": 3}}, "train: is of pscale's own trainer"),
        ({"sweep": {"model.width": [1]}}, "sweep.model.width[0]: is of pscale's own trainer"),
        ({"launch": {"blas": "numpy"}}, "launch.blas: is of pscale's own trainer"),
        ({"timing": {"trace": True}}, "timing.trace: needs watch: true"),
        ({"launch": {"hang_after": "5s"}}, "launch.hang_after: needs watch: true"),
        (
            {"expect": [{"metric": "mflop", "at_least": 1}]},
            "expect[0].metric: 'mflop' is not possible; did you mean 'mflops'?",
        ),
        ({"expect": [{"metric": "mflops", "at_least": 1, "unit": "GB/s"}]}, "expected 'MFLOP/s'"),
        ({"sweep": {"nn": [1]}}, "sweep.nn: cannot be swept; did you mean 'n'?"),
        ({"sweep": {"workload.watch": [True, "once"]}}, "have to be the same for all cases"),
        ({"sweep": {"launch.warmup": [0, 1]}}, "have to be the same for all cases"),
        ({"sweep": {"params.n": [1]}}, "sweep.params.n: cannot be swept; did you mean 'n'?"),
        ({"sweep": {"ranks": [16]}}, "16 cores, this machine has 8"),
    ],
)
def test_what_a_suite_says_around_its_workload_is_checked_too(suite, fields, expected):
    workload = {"params": {"n": 1}, "figures": {"mflops": {"regex": "(.)", "unit": "MFLOP/s"}}}
    assert expected in refusal(suite, workload, **fields)


def test_the_work_is_known_by_the_content_of_its_files_and_not_by_their_place(
    cases, folder, tmp_path_factory
):
    command = "'./a program' {here}/input.dat {n}"
    workload = {"command": command, "params": {"n": 1}}
    (first,) = cases(workload)
    assert first.program.sha256.keys() == {"a program", "input.dat"}
    moved = tmp_path_factory.mktemp("moved")
    for path in filter(Path.is_file, folder.iterdir()):
        (moved / path.name).write_bytes(path.read_bytes())
        (moved / path.name).chmod(0o755)
    (same,) = expand(load_suite(moved / "suite.yaml"), MACHINE).cases
    assert same.id == first.id
    (folder / "input.dat").write_text("2")
    (other,) = cases(workload)
    assert other.id != first.id
    (folder / "a program").write_text("#!/bin/sh\nexit 0\n")
    (newer,) = cases(workload)
    assert newer.id not in (first.id, other.id)
    assert digests(newer) == newer.program.sha256


def test_input_files_are_found_by_their_case(cases, folder):
    (folder / "deck-2.in").write_text("")
    workload = {"command": "'./a program' deck-{n}.in", "files": {"in": ["deck-{n}.in"]}}
    (case,) = cases(workload, sweep={"n": [2]})
    assert inputs(case) == [folder / "deck-2.in"]
    assert "deck-2.in" in case.program.sha256


def test_files_that_never_end_are_hashed_as_far_as_their_size_says(cases):
    endless = "/proc/self/pagemap"
    (case,) = cases(
        {"command": f"'./a program' {{n}} {endless}", "files": {"in": [endless]}}, sweep={"n": [1]}
    )
    assert case.program.sha256["pagemap"] == hashlib.sha256().hexdigest()


def test_a_file_of_a_tebibyte_is_known_by_its_size_and_its_time_of_change(cases, folder):
    with (folder / "large.dat").open("wb") as file:
        file.truncate(1 << 40)
    os.utime(folder / "large.dat", ns=(5, 5))
    (case,) = cases({"command": "'./a program' {n}", "files": {"in": ["large.dat"]}}, sweep={"n": [1]})
    assert case.program.sha256["large.dat"] == "not hashed: 1099511627776 bytes, changed at 5 ns"


def test_a_case_is_stored_and_restored_whole_without_anything_of_a_training(cases):
    figures = {"t": {"regex": "(.)", "unit": "ms", "better": "lower"}}
    (case,) = cases({"params": {"n": 1}, "figures": figures, "step_time": "t", "success": {"exit": 3}})
    document = json.loads(json.dumps(to_document(case)))
    assert not {"model", "train", "plan", "data", "inject"} & document.keys()
    restored = from_dict(Case, {name: value for name, value in document.items() if name != "id"})
    assert restored == case
    assert restored.id == document["id"]


def test_a_script_is_a_file_of_the_command(cases, folder):
    (folder / "script.py").write_text("")
    command = f"{shlex.quote(sys.executable)} {{here}}/script.py {{n}}"
    (case,) = cases({"command": command}, sweep={"n": [1]})
    assert arguments(case) == (sys.executable, f"{folder}/script.py", "1")
    assert {"script.py", os.path.basename(sys.executable)} == case.program.sha256.keys()  # noqa: PTH119


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "suites" / "watch").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_shipped_workload_asks_a_question_of_an_example_that_is_there(path, folder, monkeypatch):
    """Programs that are to be built are stood for by others; those that are there are the shipped ones."""
    (folder / "examples").mkdir()
    (folder / "suites" / "watch").mkdir(parents=True)
    for example in filter(Path.is_file, (ROOT / "examples").iterdir()):
        (folder / "examples" / example.name).write_bytes(example.read_bytes())
        built = folder / "examples" / example.stem
        built.touch()
        built.chmod(0o755)
    suite = folder / "suites" / "watch" / path.name
    suite.write_text(path.read_text())
    (folder / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    first, question, *_ = path.read_text().splitlines()
    assert first == "# yaml-language-server: $schema=../suite.schema.json"
    assert "?" in question
    loaded = load_suite(suite)
    assert loaded.name == path.stem
    assert loaded.title
    cases = expand(loaded, MACHINE).cases
    assert len(cases) == 4
    assert all(arguments(case)[0].startswith(str(folder)) for case in cases)
    assert f"watch/{path.name}" in (ROOT / "docs" / "any-program.md").read_text()


def test_the_suite_of_the_manual_is_a_scaling_study_of_a_program_beside_it(folder):
    text = (ROOT / "docs" / "any-program.md").read_text()
    (suite,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (folder / "mine.yaml").write_text(suite)
    (folder / "a program").rename(folder / "mine")
    options = re.findall(r"^pscale run mine.yaml --set (\S+)", text, re.MULTILINE)
    assert options == ["size=1600", "workload.watch=once"]
    cases = expand(load_suite(folder / "mine.yaml", options), MACHINE).cases
    assert [arguments(case) for case in cases] == [(f"{folder}/mine", "1600")] * 4
    assert [case.workload.watch for case in cases] == ["once"] * 4


AS_WRITTEN = ("1e6", "3.10", "007", "1e16", "9007199254740993", "-.5", "+3", "12", "0.25", "1" * 308)


@pytest.mark.parametrize("text", AS_WRITTEN)
@pytest.mark.figure
def test_a_number_reaches_the_command_as_it_was_written_and_computes_as_a_number(text, folder):
    file = folder / "suite.yaml"
    workload = {"command": "'./a program' {n} {twice}", "params": {"twice": "=2 * n"}}
    head = f"name: w\nscaling: strong\nworkload: {json.dumps(workload)}\n"
    file.write_text(f"{head}sweep: {{n: [{text}]}}\nexclude: [n == 77]\n")
    suite_ = load_suite(file)
    (case,) = expand(suite_, MACHINE).cases
    _, written, twice = arguments(case)
    assert written == text
    assert float(twice) == 2 * float(text)
    document = {"cases": [to_document(case)], "suite": {"resolved": suite_.resolved}}
    again = json.loads(json.dumps(document))
    assert not trouble_of(again)
    assert str(float(numeric(again["cases"][0]["workload"]["params"]["n"]))) == str(float(text))
    assert from_dict(Case, again["cases"][0]).id == case.id


@pytest.mark.figure
def test_a_whole_number_that_other_readers_of_json_would_round_is_kept_by_its_text():
    assert [stored(2**53), stored(-(2**53))] == [2**53, -(2**53)]
    assert [stored(2**53 + 1), stored(-(2**53) - 1)] == ["9007199254740993", "-9007199254740993"]
    whole = {"cases": [], "suite": {}, "repeats": 1, "seed": 2**53}
    assert "seed" not in trouble_of(whole)
    assert "seed" in trouble_of(whole | {"seed": 2**53 + 1})


@pytest.mark.figure
def test_other_text_of_the_same_number_is_other_work(suite):
    ids = {
        expand(suite({}, [f"sweep.n=[{text}]"]), MACHINE).cases[0].id for text in ("1e6", "1000000", "1.0e6")
    }
    assert len(ids) == 3


@pytest.mark.figure
def test_a_quoted_text_of_digits_stays_a_text_in_results():
    assert numeric("12") == "12"  # a number 12 is kept as one
    assert numeric("x1") == "x1"
    assert numeric(12) == 12


@pytest.mark.parametrize(
    ("words", "program"),
    [
        ("env A=1 -u B numactl -N 0 cat file", "cat"),
        ("time -v stdbuf -o 0 ls", "ls"),
        ("env A=1 --absent", "env"),
        ("cat env", "cat"),
    ],
)
def test_a_program_is_found_behind_those_that_start_it(words, program):
    assert workload_command.innermost(words.split()) == program


def test_a_command_that_starts_ranks_itself_is_refused_with_what_to_write(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda word: word if word in ("mpiexec", "a") else None)
    for words in ("/x/mpiexec.hydra -n 2 a", "env A=1 mpiexec -n 2 a", "srun a", "flux run a"):
        assert "write the program alone" in workload_command.why_nested(words.split())
    for words in ("a mpiexec", "flux a run"):
        assert not workload_command.why_nested(words.split())
