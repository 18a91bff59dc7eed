"""`pscale scale`: the suite that a command line stands for, and what it refuses, before anything starts."""

import os
from contextlib import contextmanager

import pytest
import yaml

from pscale.cli.options import Scale
from pscale.cli.scale import Study
from pscale.suite.expand import expand
from pscale.suite.load import load_suite

MACHINE = {"cores": 64, "nodes": 1, "cores_per_node": 64, "memory_gib": 64.0}
PROGRAM = "#!/bin/sh\necho Total time: 1.5 s\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a program and a file, in which commands are typed."""
    (tmp_path / "mine").write_text(PROGRAM)
    (tmp_path / "mine").chmod(0o755)
    (tmp_path / "mine.py").write_text("print('Total time: 2 s')\n")
    (tmp_path / "input.dat").write_text("1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def saved(pscale, folder):
    """Return a function that saves the suite of a command line and returns it, as values."""

    def save(*words):
        code, out, err = pscale("scale", "--save", "kept.yaml", *words)
        assert code == 0, err
        assert "pscale run kept.yaml" in out
        return yaml.safe_load((folder / "kept.yaml").read_text())

    return save


def test_a_program_alone_is_strong_scaling_of_the_whole_launch_watched_apart(saved):
    suite = saved("--ranks", "1,2,4,8", "--", "./mine", "800")
    assert suite["name"] == "mine"
    assert suite["scaling"] == "strong"
    assert suite["workload"] == {"command": "./mine 800", "watch": "once"}
    assert suite["sweep"] == {"ranks": [1, 2, 4, 8]}


def test_sizes_are_powers_of_two_up_to_the_cores_where_none_are_named(saved):
    cores = len(os.sched_getaffinity(0))
    ranks = saved("--threads", "1", "./mine")["sweep"]["ranks"]
    assert ranks == [2**power for power in range(len(ranks))]
    assert ranks[-1] <= cores < 4 * ranks[-1]


@pytest.mark.parametrize(
    ("options", "program", "workload", "others"),
    [
        (
            ["--weak"],
            ["./mine", "{800 * ranks}"],
            {"command": "./mine {arg1}", "params": {"arg1": "=800 * ranks"}},
            {"scaling": "weak"},
        ),
        (
            ["--set", "n=400,800", "--step-time", r"Total time: (\S+) s"],
            ["python", "mine.py", "{n}"],
            {
                "command": "python {here}/mine.py {n}",
                "figures": {"time": {"regex": r"Total time: (\S+) s", "unit": "s", "better": "lower"}},
                "step_time": "time",
            },
            {"sweep": {"ranks": [1, 2], "n": [400, 800]}},
        ),
        (
            ["--metric", r"gflops=GFLOP/s: (\S+)", "--metric", "error=@result.json:norm.l2"],
            ["./mine"],
            {
                "command": "./mine",
                "figures": {
                    "gflops": {"regex": r"GFLOP/s: (\S+)"},
                    "error": {"json": "result.json", "path": "norm.l2"},
                },
            },
            {},
        ),
        (
            ["--set", "n=3", "--work", "n**3", "--weak"],
            ["./mine", "--size={ceil(n * ranks ** (1/3))}", "{{left}}", '{"json": 1}'],
            {
                "command": """./mine --size={arg1} {{left}} '{"json": 1}'""",
                "params": {"arg1": "=ceil(n * ranks ** (1/3))", "n": 3},
                "work": "=n**3",
            },
            {"scaling": "weak"},
        ),
        (
            ["--set", "n=400,800"],
            ["./mine", "{n * ranks}"],
            {"command": "./mine {arg1}", "params": {"arg1": "=n * ranks", "n": 400}},
            {"sweep": {"ranks": [1, 2], "n": [400, 800]}},
        ),
        (
            ["--threads", "2", "--bind", "none", "--oversubscribe", "--budget", "1m", "--no-watch"],
            ["./mine", "--in=input.dat", "{cores * 2}"],
            {"command": "./mine --in={here}/input.dat {arg2}", "params": {"arg2": "=(ranks * threads) * 2"}},
            {
                "threads": 2,
                "launch": {"bind": "none", "oversubscribe": True},
                "repeat": "auto",
                "budget": "1m",
            },
        ),
        (
            ["--set", "launch.time_limit=2m", "--set", "repeat=5", "--step-time", r"took (\S+) (\w+)"],
            ["./mine"],
            {
                "command": "./mine",
                "figures": {"time": {"regex": r"took (\S+) (\w+)", "unit": "match", "better": "lower"}},
                "step_time": "time",
            },
            {"launch": {"time_limit": "2m"}, "repeat": 5},
        ),
    ],
)
def test_each_form_of_a_command_line_is_a_suite(saved, options, program, workload, others):
    suite = saved("--ranks", "1,2", *options, "--", *program)
    watch = {} if "--no-watch" in options else {"watch": "once"}
    assert suite["workload"] == workload | watch
    assert {name: suite[name] for name in others} == others


def test_the_saved_suite_has_the_cases_of_the_command_line(saved, folder):
    words, settings = ["python", "mine.py", "{n}", "{007 * ranks}".replace("007", "7")], ["n=1e3,010"]
    saved("--ranks", "1,2", "--set", *settings, "--", *words)
    study = Study(words, Scale(values=settings), [1, 2]).document()
    direct, kept = (
        expand(load_suite(source, folder=folder), MACHINE).cases for source in (study, folder / "kept.yaml")
    )
    assert [case.id for case in direct] == [case.id for case in kept]
    assert [case.label for case in direct] == [case.label for case in kept]
    assert {case.workload.params["n"] for case in kept} == {"1e3", "010"}


def test_a_study_that_is_watched_has_the_cases_of_one_that_is_not(folder):
    def ids(watch):
        document = Study(["./mine"], Scale(watch=watch), [1, 2]).document()
        return [case.id for case in expand(load_suite(document, folder=folder), MACHINE).cases]

    assert ids(watch=True) == ids(watch=False)


@contextmanager
def standard_input(descriptor):
    kept = os.dup(0)
    os.dup2(descriptor, 0)
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_the_file_that_is_standard_input_is_that_of_every_launch(folder):
    with (folder / "input.dat").open() as file, standard_input(file.fileno()):
        document = Study(["./mine"], Scale(), [1]).document()
    assert document.values["workload"]["stdin"] == "input.dat"


def test_a_pipe_is_refused_if_it_has_data_and_else_nothing_reads_it(pscale, folder):  # noqa: ARG001
    command = ("scale", "--ranks", "1", "--dry-run", "./mine")
    end, other_end = os.pipe()
    with standard_input(end):
        code, out, _ = pscale(*command)
        assert (code, "an open pipe, which launches do not read; name a file" in out) == (0, True)
        os.write(other_end, b"800\n")
        code, _, err = pscale(*command)
        assert (code, "is a pipe, of which only one launch could read" in err) == (2, True)
        os.close(other_end)
    os.close(end)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "name a program: pscale scale --ranks 1,2,4 -- ./a.out"),
        (["--size", "100", "./mine"], 2, "options of the program follow its name: pscale scale --ranks"),
        (["--ranks", "1,two", "./mine"], 2, "--ranks: expected numbers such as 1,2,4,8, got '1,two'"),
        (["--ranks", "", "./mine"], 2, "--ranks: expected numbers"),
        (["--ranks", "1,64000", "./mine"], 3, "--ranks 1 leaves them out, --oversubscribe lets"),
        (["./their"], 2, "there is no program"),
        (["--step-time", "time: (\\S+", "./mine"], 2, "--step-time: workload.figures.time: regex is not"),
        (["--step-time", "time: .*", "./mine"], 2, "regex has 0 groups; expected one, the number"),
        (["--metric", "GFLOP/s: (.*)", "./mine"], 2, "expected name=REGEX or name=@FILE:PATH"),
        (["--metric", "e=@out.json", "./mine"], 2, "expected @FILE:PATH, such as @result.json:norm.l2"),
        (["./mine", "{800 * rnks}"], 2, "did you mean 'ranks'?"),
        (["./mine", "{n}"], 2, "{n} has no value; give it one: --set n=400,800"),
        (["--set", "m=1", "./mine", "800"], 2, "the program has no {m}; write it where its value belongs"),
        (["--set", "m", "./mine", "{m}"], 2, "--set m: expected name=value"),
        (["--set", "launch.time=2m", "./mine"], 2, "'launch' has no such field"),
        (["--work", "n**3", "./mine"], 2, "--work: workload.work: expression 'n**3': unknown name 'n'"),
        (["--save", "/tmp/elsewhere.yaml", "./mine"], 2, "names in the command are relative to this folder"),
        (["--save", "input.dat", "./mine"], 2, "the file exists"),
        (["mpiexec", "-n", "4", "./mine", "800"], 2, "pscale scale --ranks 1,2,4 -- ./mine 800"),
        (["srun", "--ntasks=2", "./mine"], 2, "pscale scale --ranks 1,2 -- ./mine"),
        (["--quick", "--precise", "./mine"], 2, "--quick is a budget of 30 s"),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_with_what_to_type(pscale, folder, words, code, said):
    found, _, err = pscale("scale", *words)
    assert found == code
    assert said in " ".join(err.split())
    assert not (folder / "reports").exists()
