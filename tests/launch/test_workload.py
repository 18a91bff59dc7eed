"""What a launch of a workload leaves: its figures, and why it failed."""

import os
from functools import partial

import pytest

from pscale.config import Case, Figure, Files, Launch, Success, Workload
from pscale.launch.figures import OutputSearch
from pscale.launch.outcome import STDERR, STDOUT
from pscale.launch.workload import INSIDE, Judge, Work, prepare
from pscale.runs.launch_folder import LaunchFolder

NONE = Files()


@pytest.fixture
def ended(tmp_path):
    """Return a function that judges a launch with this output; it returns status, reason and figures."""

    def end(
        out="",
        err="",
        code=0,
        files=(),
        *,
        kept=NONE,
        size=0,
        time_limit_s=600,
        search=OutputSearch,
        **fields,
    ):
        inside = tmp_path / INSIDE
        inside.mkdir(exist_ok=True)
        folder = LaunchFolder(tmp_path)
        for log, text in ((STDOUT, out), (STDERR, err)):
            with folder.make(log) as file:
                file.write(text if isinstance(text, bytes) else text.encode())
        if size:
            os.truncate(tmp_path / STDOUT, size)
        for name, content in dict(files).items():
            (inside / name).parent.mkdir(exist_ok=True)
            (inside / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        workload = Workload(command="./a", files=kept, **fields)
        case = Case(suite="s", label="l", workload=workload, launch=Launch(time_limit_s=time_limit_s))
        found = Judge(case, Work(folder=LaunchFolder(inside), inputs={}), search)(folder, code)
        assert bool(found.reason) == (found.status != "ok")
        values = {name: reading.value for name, reading in found.figures.items()}
        end.figures = found.figures
        return found.status, found.reason, values or None

    return end


T = {"t": Figure(regex=r"^time: (\S*)", unit="s")}
J = {"j": Figure(json="out/a.json", path="runs.1.t")}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5", 1.5),
        ("-2", -2),
        ("1e-3", 1e-3),
        (".5", 0.5),
        ("1.5D-03", 1.5e-3),
        ("+1.E+2", 100),
        ("1.5-103", 1.5e-103),
    ],
)
def test_a_figure_is_the_last_number_that_the_output_has_for_it(ended, text, value):
    output = f"time: 9\nno time: 8\ntime: {text}\nbye\n"
    assert ended(output, figures=T) == ("ok", "", {"t": value})
    assert ended("time is up", output, figures=T)[2] == {"t": value}


@pytest.mark.parametrize(
    ("text", "unit", "resolution"),
    [("1.50", "s", 0.01), ("2.5e3", "s", 100), ("1.5D-03", "s", 1e-4), ("12", "s", 1), ("12", "", None)],
)
@pytest.mark.figure
def test_the_unit_of_the_last_digit_of_a_figure_is_kept_and_a_count_is_exact(ended, text, unit, resolution):
    figures = {"t": Figure(regex="^t (.*)", unit=unit), "j": Figure(json="a.json", path="t", unit=unit)}
    in_json = text.replace("D", "e")
    assert ended(f"t {text}", files={"a.json": f'{{"t": {in_json}}}'}, figures=figures)[0] == "ok"
    for name in figures:
        known = ended.figures[name].resolution
        assert known == (None if resolution is None else pytest.approx(resolution))


@pytest.mark.parametrize("text", ["nan", "-inf", "1e999", "fast", "****", "0x10", "1_000", "1,5", ""])
def test_a_figure_of_nonsense_is_a_failed_launch_with_the_last_lines(ended, text):
    status, reason, figures = ended(f"time: {text}\nlast words\n", figures=T)
    assert (status, figures) == ("failed", None)
    assert reason.startswith(f"figure t: '{text}' is not a finite number: ")
    assert "last words" in reason


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("*****", "widen its format"),
        ("1:02:03", "print seconds, or write `step_time: wall`"),
        ("0:01.50", "print seconds, or write `step_time: wall`"),
        ("1,25", "`launch: {env: {LC_ALL: C}}` leaves them out"),
        ("1,234.5", "`launch: {env: {LC_ALL: C}}` leaves them out"),
        ("1 234,5", "`launch: {env: {LC_ALL: C}}` leaves them out"),
        ("12.5%", "ends before a unit or a comma"),
        ("1.25ms", "ends before a unit or a comma"),
        ("1.25,", "ends before a unit or a comma"),
    ],
)
@pytest.mark.figure
def test_a_text_that_is_no_number_is_answered_with_what_to_write(ended, text, way):
    _, reason, _ = ended(f"time: {text}", figures={"t": Figure(regex="time: (.*)", unit="s")})
    assert reason.startswith(f"figure t: '{text}' is not a finite number: ")
    assert way in reason


@pytest.mark.parametrize("text", ["0", "-1", "-0.0"])
def test_a_step_time_has_to_be_more_than_nothing(ended, text):
    assert ended(f"time: {text}", figures=T)[0] == "ok"
    status, reason, _ = ended(f"time: {text}", figures=T, step_time="t")
    assert status == "failed"
    assert "which is not a step time" in reason


def test_output_without_a_figure_is_a_failed_launch_with_its_last_lines(ended):
    status, reason, _ = ended("one\ntwo\nthree\nfour\n", "a warning", figures=T)
    assert status == "failed"
    assert reason.startswith(
        "the output has no figure t: nothing matches '^time: (\\S*)' in 28 bytes of output: two / three"
    )
    assert reason.endswith("stdout.log]")


def test_a_figure_in_json_is_found_by_its_path(ended):
    files = {"out/a.json": '{"runs": [{}, {"t": 2.5}]}'}
    assert ended(files=files, figures=J) == ("ok", "", {"j": 2.5})


@pytest.mark.figure
def test_a_file_that_was_copied_in_is_a_result_only_where_the_program_wrote_it_anew(tmp_path):
    given = tmp_path / "given.json"
    given.write_text('{"t": 1}')
    figures = {"j": Figure(json="given.json", path="t")}
    case = Case(
        suite="s",
        label="l",
        workload=Workload(command="./a", figures=figures, files=Files(in_=(str(given),))),
    )
    for result in ("", '{"t": 2}'):
        launch = tmp_path / f"launch {len(result)}"
        launch.mkdir()
        work, folder = prepare(case, launch), LaunchFolder(launch)
        for log in (STDOUT, STDERR):
            folder.make(log).close()
        if result:
            (launch / INSIDE / "given.json").write_text(result)
        ended = Judge(case, work)(folder, 0)
        if result:
            assert ended.figures["j"].value == 2
        else:
            assert "wrote no given.json: that of `files.in` is unchanged" in ended.reason


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "there is no figure j: the program wrote no out/a.json"),
        ("{", "figure j: out/a.json is not JSON"),
        ('{"runs": [{}]}', "there is no runs.1.t in it"),
        ('{"runs": {"t": 1}}', "there is no runs.1.t in it"),
        ('{"runs": [0, {"t": NaN}]}', "is 'NaN', not a finite number"),
        ('{"runs": [0, {"t": "2 s"}]}', "is '2 s', not a finite number"),
        ('{"runs": [0, {"t": [1]}]}', 'is ["1"], not a finite number'),
        ('{"runs": [0, {"t": true}]}', "is true, not a finite number"),
        ('{"runs": [0, {"t": 1' + "0" * 400 + "}]}", "not a finite number"),
    ],
)
def test_json_without_the_number_is_a_failed_launch(ended, content, expected):
    files = {} if content is None else {"out/a.json": content}
    status, reason, figures = ended("last words", files=files, figures=J)
    assert (status, figures) == ("failed", None)
    assert expected in reason
    assert "last words" in reason


@pytest.mark.figure
def test_success_is_an_exit_code_and_a_text_in_the_output(ended):
    assert ended("done\n", success=Success(regex="^done$"))[0] == "ok"
    assert ended(err="done\n", success=Success(regex="^done$"))[0] == "ok"
    status, reason, _ = ended("not done\n", success=Success(regex="^done$"))
    assert (status, reason[: reason.index(" [")]) == (
        "failed",
        "no success: nothing matches '^done$' in 9 bytes of output: not done",
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


@pytest.mark.figure
def test_line_ends_of_any_kind_end_a_line_and_colours_and_nulls_are_not_there(ended):
    output = b"time: 9\r\n10 %\rtime: 8\r\n\x1b[1;32mtime:\x1b[0m \x1b]0;title\x071\0.5\x1b[K\r20 %\r"
    assert ended(output, figures={"t": Figure(regex=r"^time: (\S+)$")})[2] == {"t": 1.5}


@pytest.mark.figure
def test_output_is_read_in_its_encoding(ended):
    figures = {"t": Figure(regex="^Zeit für alles: (.*) µs$")}
    text = "Zeit für alles: 5 µs\n"
    assert ended(text.encode("latin-1"), figures=figures, encoding="latin-1")[2] == {"t": 5}
    assert ended(text.encode("utf-16"), figures=figures, encoding="utf-16")[2] == {"t": 5}
    assert ended(text, figures=figures)[2] == {"t": 5}
    for encoding in ("latin-1", "utf-16"):
        assert "not all utf-8: name their `encoding`" in ended(text.encode(encoding), figures=figures)[1]
    assert "encoding" not in ended("Zeit: 5 µs", figures=figures)[1]


@pytest.mark.figure
def test_reasons_quote_the_bytes_that_were_there(ended):
    reason = ended(b"time: 1.5\xff\x07x\nlast \x1b[31mwords\0\n", figures=T)[1]
    assert reason.startswith(r"figure t: '1.5\xff\x07x' is not a finite number: ")
    assert r"last \x1b[31mwords\0 [" in reason


@pytest.mark.figure
def test_the_whole_of_a_large_output_is_searched_and_a_match_may_have_several_lines(ended):
    filler = b"." * 99 + b"\n"
    middle = b"begin\n" + filler * 500 + b"time: 1.5\n"
    for before in (15_000, 10_485):  # the second ends within a part
        output = filler * before + middle + filler * 20_000
        assert ended(output, figures=T)[2] == {"t": 1.5}
        across = {"t": Figure(regex=r"begin\n(?:[.]*\n)*time: (\S+)")}
        assert ended(output, figures=across)[2] == {"t": 1.5}
    assert f"in {len(output):,} bytes of output" in ended(output, figures={"x": Figure(regex="(x)")})[1]
    assert ended(output, success=Success(regex="^begin$"))[0] == "ok"
    assert ended(b"x" * 5_000_000 + b" time=2 \n", figures={"t": Figure(regex="time=(.) ")})[2] == {"t": 2}


def test_matches_at_the_seams_of_parts_are_found_once(ended):
    lines = "".join(f"n {number}\n" for number in range(400_000))
    asked = {"count": Figure(regex="^n .*$", pick="count"), "sum": Figure(regex="^n (.*)$", pick="sum")}
    assert ended(lines, figures=asked)[2] == {"count": 400_000, "sum": 400_000 * 399_999 / 2}


@pytest.mark.figure
def test_a_pattern_that_backtracks_for_ever_fails_its_launch_and_is_named(ended):
    regex, search = "(a+)+b", partial(OutputSearch, pattern_s=0.5)
    status, reason, _ = ended("a" * 60, search=search, figures={"t": Figure(regex=regex)})
    assert status == "failed"
    assert reason.startswith(f"figure t: the search for '{regex}' took more than 0.5 s in 1 MiB of output: ")
    reason = ended("a" * 60, search=search, success=Success(regex=regex))[1]
    assert reason.startswith(f"success: the search for '{regex}'")


def test_a_search_in_much_output_takes_no_longer_than_a_launch_may(ended):
    assert ended("time: 1\n" * 300_000, figures=T, time_limit_s=1e-9)[0] == "ok"
    search = partial(OutputSearch, search_s=0.0)
    status, reason, _ = ended("time: 1\n" * 300_000, figures=T, time_limit_s=1e-9, search=search)
    assert status == "failed"
    assert "took more than 1e-09 s in output: " in reason


def test_of_a_log_that_holds_less_than_it_says_the_rest_is_left_out(ended):
    assert ended("time: 1.5\n", figures=T, size=1 << 43) == ("ok", "", {"t": 1.5})


@pytest.mark.parametrize(
    ("pick", "value"),
    [
        *((None, 4), ("last", 4), ("first", 3), ("min", 1), ("max", 4)),
        *(("mean", 8 / 3), ("median", 3), ("sum", 8), ("count", 3)),
    ],
)
@pytest.mark.figure
def test_of_several_numbers_the_one_that_is_asked_for_counts(ended, pick, value):
    text = Figure(regex=r"^t (\S+)", pick=pick)
    lines = Figure(json="a.jsonl", path="t", pick=pick)
    column = Figure(csv="a.csv", column="t", pick=pick)
    files = {
        "a.jsonl": '{"t": 3}\n{"u": 9}\n\n{"t": 1}\n{"t": "4"}\n',
        "a.csv": "name;t\na;3\nb;1\nc;4\n",
    }
    found = ended("t 3\nt 1\nt 4\n", files=files, figures={"x": text, "y": lines, "z": column})[2]
    assert found == pytest.approx({"x": value, "y": value, "z": value})


def test_nothing_that_is_counted_is_there_no_times(ended):
    assert ended("fine\n", figures={"w": Figure(regex="WARNING", pick="count")})[2] == {"w": 0}


@pytest.mark.figure
def test_a_unit_is_read_beside_its_number_and_all_are_converted(ended):
    asked = {"t": Figure(regex=r"^t (\S+) (\S+)", unit="match", pick="sum")}
    assert ended("t 1 s\nt 500 ms\n", figures=asked, step_time="t")[2] == {"t": 1500}
    assert ended.figures["t"].unit == "ms"
    assert "figure t is in 's' and in 'GB'" in ended("t 1 s\nt 5 GB\n", figures=asked)[1]
    assert "in 'GB', which is not a unit of time" in ended("t 5 GB\n", figures=asked, step_time="t")[1]


@pytest.mark.figure
def test_all_numbers_are_the_steps_of_the_launch_where_that_is_asked(ended):
    asked = {"t": Figure(regex=r"^step (\S+)", unit="ms", steps=True)}
    assert ended("step 3\nstep 1\nstep 2\n", figures=asked, step_time="t")[2] == {"t": 2}
    assert ended.figures["t"].steps == (3, 1, 2)
    assert "which is not a step time" in ended("step 3\nstep 0\n", figures=asked, step_time="t")[1]
    listed = {"t": Figure(json="a.json", path="times", unit="s", steps=True)}
    assert ended(files={"a.json": '{"times": [1, 2, 9]}'}, figures=listed, step_time="t")[2] == {"t": 2}


@pytest.mark.parametrize(
    ("content", "path", "value"),
    [
        ('{"lat": {"99.9": 7}}', "/lat/99.9", 7),
        ('{"a/b": {"~": 7}}', "/a~1b/~0", 7),
        ('{"runs": [1, 2, 7]}', "runs.-1", 7),
        ('{"runs": [1, 2, 7]}', "/runs/-1", 7),
        (b'\xef\xbb\xbf{"t": "7e0"}', "t", 7),
    ],
)
@pytest.mark.figure
def test_a_number_in_json_is_found_by_names_and_places(ended, content, path, value):
    asked = {"t": Figure(json="a.json", path=path)}
    assert ended(files={"a.json": content}, figures=asked)[2] == {"t": value}


@pytest.mark.parametrize(
    ("content", "fields", "expected"),
    [
        ("name,GB/s\ncopy,1\ntriad,7\n", {"column": "GB/s", "row": "triad"}, 7),
        ("name\tGB/s\r\ncopy\t1\r\n", {"column": "GB/s"}, 1),
        ("copy, 1, 7\n", {"column": "2"}, 7),
        ("name,t\na,1\n", {"column": "u"}, "it has no column u, but name, t"),
        ("name,t\na,1\n", {"column": "t", "row": "b"}, "there is nothing in column t in a row b"),
        ("name,t\na,fast\n", {"column": "t"}, "t in a.csv is 'fast', not a finite number"),
        ("", {"column": "t"}, "it has no column t"),
    ],
)
@pytest.mark.figure
def test_a_number_in_csv_is_found_by_column_and_row(ended, content, fields, expected):
    _, reason, found = ended(files={"a.csv": content}, figures={"t": Figure(csv="a.csv", **fields)})
    assert found == {"t": expected} if isinstance(expected, int) else expected in reason


def test_a_figure_that_is_computed_has_others_parameters_and_the_size(ended):
    figures = {
        **T,
        "work": Figure(value="=2 * n**3", unit="FLOP"),
        "rate": Figure(value="=work / t / cores", unit="FLOP/s"),
    }
    assert ended("time: 4.0", figures=figures, params={"n": "1e2"})[2] == {"t": 4, "work": 2e6, "rate": 5e5}
    resolutions = {name: reading.resolution for name, reading in ended.figures.items()}
    assert resolutions["work"] is None
    assert resolutions["rate"] == pytest.approx(5e5 - 2e6 / 4.1), "as the digits of the time leave it open"


@pytest.mark.parametrize(
    ("value", "said"),
    [("=1 / (t - 4)", "divides by zero"), ("=t - 4", "figure c is 0, which is not a step time")],
)
def test_a_computed_figure_that_is_no_time_fails_the_launch(ended, value, said):
    figures = {**T, "c": Figure(value=value, unit="s")}
    status, reason, _ = ended("time: 4", figures=figures, step_time="c")
    assert status == "failed"
    assert said in reason


@pytest.mark.parametrize(
    ("unit", "step_s"), [("GFLOP/s", 0.25), ("ns/day", 21600), ("MB/ms", 0.00025), ("GFLOPS", 0.25)]
)
def test_the_step_of_a_rate_is_the_time_of_one_unit(unit, step_s):
    workload = Workload(command="./a", figures={"r": Figure(regex="(.*)", unit=unit)}, rate="r")
    assert workload.step_s(4.0, unit) == pytest.approx(step_s)
