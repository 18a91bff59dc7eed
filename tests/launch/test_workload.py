"""What a launch of a workload leaves: its figures, and why it failed."""

import pytest

from pscale.config import Case, Figure, Files, Success, Workload
from pscale.launch.outcome import STDERR, STDOUT
from pscale.launch.workload import INSIDE, Work, judge
from pscale.launch_folder import LaunchFolder

NONE = Files()


@pytest.fixture
def ended(tmp_path):
    """Return a function that judges a launch with this output; it returns status, reason and figures."""

    def end(out="", err="", code=0, files=(), kept=NONE, **fields):
        inside = tmp_path / INSIDE
        inside.mkdir(exist_ok=True)
        (tmp_path / STDOUT).write_text(out)
        (tmp_path / STDERR).write_text(err)
        for name, content in dict(files).items():
            (inside / name).parent.mkdir(exist_ok=True)
            (inside / name).write_text(content)
        case = Case(suite="s", label="l", workload=Workload(command="./a", files=kept, **fields))
        found = judge(case, Work(folder=LaunchFolder(inside), inputs={}), LaunchFolder(tmp_path), code)
        assert bool(found.reason) == (found.status != "ok")
        return found.status, found.reason, found.figures or None

    return end


T = {"t": Figure(regex=r"^time: (\S*)", unit="s")}
J = {"j": Figure(json="out/a.json", path="runs.1.t")}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.5", 1.5), ("-2", -2), ("1e-3", 1e-3), (".5", 0.5), ("1.5D-03", 1.5e-3), ("+1.E+2", 100)],
)
def test_a_figure_is_the_last_number_that_the_output_has_for_it(ended, text, value):
    output = f"time: 9\nno time: 8\ntime: {text}\nbye\n"
    assert ended(output, figures=T) == ("ok", "", {"t": value})
    assert ended("time is up", output, figures=T)[2] == {"t": value}


@pytest.mark.parametrize("text", ["nan", "-inf", "1e999", "fast", "****", "0x10", "1_000", "1,5", ""])
def test_a_figure_of_nonsense_is_a_failed_launch_with_the_last_lines(ended, text):
    status, reason, figures = ended(f"time: {text}\nlast words\n", figures=T)
    assert (status, figures) == ("failed", None)
    assert reason.startswith(f"figure t: '{text}' is no finite number: ")
    assert "last words" in reason


@pytest.mark.parametrize("text", ["0", "-1", "-0.0"])
def test_a_step_time_has_to_be_more_than_nothing(ended, text):
    assert ended(f"time: {text}", figures=T)[0] == "ok"
    status, reason, _ = ended(f"time: {text}", figures=T, step_time="t")
    assert status == "failed"
    assert "which is no step time" in reason


def test_output_without_a_figure_is_a_failed_launch_with_its_last_lines(ended):
    status, reason, _ = ended("one\ntwo\nthree\nfour\n", "a warning", figures=T)
    assert status == "failed"
    assert reason.startswith(
        "the output has no figure t: nothing matches '^time: (\\S*)': two / three / four ["
    )
    assert reason.endswith("stdout.log]")


def test_a_figure_in_json_is_found_by_its_path(ended):
    files = {"out/a.json": '{"runs": [{}, {"t": 2.5}]}'}
    assert ended(files=files, figures=J) == ("ok", "", {"j": 2.5})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "there is no figure j: the program wrote no out/a.json"),
        ("{", "figure j: out/a.json is not JSON"),
        ('{"runs": [{}]}', "there is no runs.1.t in it"),
        ('{"runs": {"t": 1}}', "there is no runs.1.t in it"),
        ('{"runs": [0, {"t": NaN}]}', "is NaN, no finite number"),
        ('{"runs": [0, {"t": "2"}]}', 'is "2", no finite number'),
        ('{"runs": [0, {"t": true}]}', "is true, no finite number"),
        ('{"runs": [0, {"t": 1' + "0" * 400 + "}]}", "no finite number"),
    ],
)
def test_json_without_the_number_is_a_failed_launch(ended, content, expected):
    files = {} if content is None else {"out/a.json": content}
    status, reason, figures = ended("last words", files=files, figures=J)
    assert (status, figures) == ("failed", None)
    assert expected in reason
    assert "last words" in reason


def test_success_is_an_exit_code_and_a_text_in_the_output(ended):
    assert ended("done\n", success=Success(regex="^done$"))[0] == "ok"
    assert ended(err="done\n", success=Success(regex="^done$"))[0] == "ok"
    status, reason, _ = ended("not done\n", success=Success(regex="^done$"))
    assert (status, reason[: reason.index(" [")]) == (
        "failed",
        "no success: nothing in the output matches '^done$': not done",
    )
    assert ended(code=3, success=Success(exit=3))[0] == "ok"
    assert ended(err="oh\n", code=3)[1].startswith("exit code 3: oh [")
    assert ended("oh\n", code=0, success=Success(exit=3))[1].startswith("exit code 0, not 3: oh [")
    assert ended(code=1, success=Success(exit=3))[1].startswith("exit code 1, not 3")


def test_only_files_that_are_asked_for_are_kept_and_all_of_them_where_one_is_missing(ended, tmp_path):
    written = {"a.log": "", "b.log": "", "core": "", "deep/x": ""}

    def left():
        found = (tmp_path / INSIDE).rglob("*")
        return sorted(str(path.relative_to(tmp_path / INSIDE)) for path in found if path.is_file())

    status, reason, _ = ended("last words", files=written.items(), kept=Files(out=("absent",)))
    assert (status, left()) == ("failed", sorted(written))
    assert reason.startswith("the program left no file absent: last words")
    assert ended(files=written.items(), kept=Files(out=("*.log", "deep/x")))[0] == "ok"
    assert left() == ["a.log", "b.log", "deep/x"]
    assert ended(files=written.items())[0] == "ok"
    assert not (tmp_path / INSIDE).exists()
