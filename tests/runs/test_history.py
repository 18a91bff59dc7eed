"""The file of a history: what a crash or a merge leaves is read, and no name leads out of its folder."""

import json
import subprocess

import pytest

from pscale.errors import ResultsError, UsageError
from pscale.runs.history import Acceptance, Entry, append, path_of, read, suites


def entry(number, **known):
    return Entry(
        **{
            "run": f"run {number}",
            "begun_unix_s": 1.7e9 + number,
            "case": "abc",
            "label": "2 ranks",
            "work": "gpt",
            "steps": [-1.5, -1.4],
            "counters": {"calls": 10},
            "code": str(number),
            "fingerprint": {"MPI": "MPICH"},
            **known,
        }
    )


@pytest.fixture
def lines(tmp_path):
    """Five runs in a file, as its lines."""
    path = append(tmp_path, "weak", [entry(number) for number in range(5)])
    return path, path.read_text().splitlines(keepends=True)


def test_what_is_added_comes_back_in_the_order_in_which_runs_began(tmp_path):
    accepted = Acceptance(accepted="run 1", label="2 ranks", reason="new BLAS", at_unix_s=2e9)
    append(tmp_path, "weak", [entry(2), accepted])
    append(tmp_path, "weak", [entry(1)])
    known = read(tmp_path, "weak")
    assert known.entries == (entry(1), entry(2))
    assert (known.acceptances, known.damaged) == ((accepted,), ())
    assert suites(tmp_path) == ["weak"]
    assert (tmp_path / ".gitattributes").read_text() == "*.jsonl merge=union\n"


def test_a_union_of_two_branches_counts_every_run_once_in_any_order(lines, tmp_path):
    path, kept = lines
    path.write_text("".join([*kept[3:], *kept, *kept[:2]]))
    assert read(tmp_path, "weak").entries == tuple(entry(number) for number in range(5))
    assert read(tmp_path, "weak").damaged == ()


def test_git_merges_branches_that_both_added_runs_by_itself(tmp_path):
    def git(*arguments):
        named = (
            "-c",
            "user.name=nobody",
            "-c",
            "user.email=nobody@localhost",
            "-c",
            "init.defaultBranch=main",
        )
        subprocess.run(["git", *named, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def commit(*numbers):
        append(tmp_path, "weak", [entry(number) for number in numbers])
        git("add", "--all")
        git("commit", "--message", f"runs {numbers}")

    git("init")
    commit(0, 1)
    git("checkout", "-b", "other")
    commit(2, 4)
    git("checkout", "main")
    commit(3)
    git("merge", "other")
    known = read(tmp_path, "weak")
    assert (known.entries, known.damaged) == (tuple(entry(number) for number in range(5)), ())


def test_both_halves_of_a_conflict_are_read(lines, tmp_path):
    path, kept = lines
    halves = ["<<<<<<< HEAD\n", kept[3], "||||||| base\n", "=======\n", kept[4], ">>>>>>> other\n"]
    path.write_text("".join([*kept[:3], *halves]))
    known = read(tmp_path, "weak")
    assert (len(known.entries), known.damaged) == (5, ())


def test_a_torn_last_line_costs_its_own_run_alone(lines, tmp_path):
    path, kept = lines
    for length in range(1, len(kept[4]) - 1):
        path.write_text("".join(kept[:4]) + kept[4][:length])
        assert len(read(tmp_path, "weak").entries) == 4
        assert read(tmp_path, "weak").damaged == (5,)
    append(tmp_path, "weak", [entry(6)])
    known = read(tmp_path, "weak")
    assert [each.run for each in known.entries] == ["run 0", "run 1", "run 2", "run 3", "run 6"]
    assert known.damaged == (5,)


def test_what_others_have_added_to_a_torn_line_is_not_lost(lines, tmp_path):
    path, kept = lines
    path.write_text("".join(kept[:3]) + kept[3][:40] + kept[4])
    known = read(tmp_path, "weak")
    assert [each.run for each in known.entries] == ["run 0", "run 1", "run 2", "run 4"]
    assert known.damaged == (4,)


def test_a_run_that_was_added_again_with_more_launches_replaces_what_was_there(tmp_path):
    more = entry(1, steps=[-1.5, -1.4, -1.6])
    for order in ([entry(1), more], [more, entry(1)]):
        path_of(tmp_path, "weak").unlink(missing_ok=True)
        append(tmp_path, "weak", order)
        assert read(tmp_path, "weak").entries == (more,)


@pytest.mark.parametrize(
    "broken",
    [
        "[]",
        '"text"',
        "{}",
        '{"format":1}',
        json.dumps({"format": 1, **vars(entry(9)), "steps": []}),
        json.dumps({"format": 1, **vars(entry(9)), "steps": ["x"]}),
        json.dumps({"format": 1, **vars(entry(9)), "steps": [float("nan")]}),
        json.dumps({"format": 1, **vars(entry(9)), "paces": [1.0]}),
        json.dumps({"format": 1, **vars(entry(9)), "counters": [1]}),
        json.dumps({"format": 1, **vars(entry(9)), "counters": {"calls": True}}),
        json.dumps({"format": 1, **vars(entry(9)), "counters": {"calls": 10**400}}),
        json.dumps({"format": 1, **vars(entry(9)), "fingerprint": {"MPI": 4}}),
        json.dumps({"format": 1, **vars(entry(9)), "unknown": 1}),
        "\udcff".encode("utf-8", "surrogateescape"),
    ],
)
def test_a_line_that_says_nothing_is_counted_and_costs_nothing_else(lines, tmp_path, broken):
    path, kept = lines
    text = broken if isinstance(broken, bytes) else broken.encode()
    path.write_bytes(kept[0].encode() + text + b"\n" + kept[1].encode())
    known = read(tmp_path, "weak")
    assert (len(known.entries), known.damaged) == (2, (2,))


def test_what_a_newer_pscale_has_written_is_refused_with_its_line(lines, tmp_path):
    path, _ = lines
    with path.open("a") as file:
        file.write('{"format":2,"anything":1}\n')
    with pytest.raises(ResultsError, match=r"weak\.jsonl:6: written by a newer pscale: format 2"):
        read(tmp_path, "weak")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../weak", "a/b", "/etc/passwd", "a\\b", "-rf", "a\0", "weak\n", "ü", "x" * 65]
)
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    for use in (path_of, read, lambda folder, suite: append(folder, suite, [entry(1)])):
        with pytest.raises(UsageError, match="is not a valid suite name"):
            use(tmp_path, name)
    assert list(tmp_path.iterdir()) == []
