import json

import pytest

from pscale.launch import hang


@pytest.fixture
def report(tmp_path):
    """Let a rank say that it stands still."""

    def write(rank, ranks=4, host="a", still_s=61.0, **place):
        place = {"step": 7, "phase": "sync", "axis": None, "verb": None, "group": [], "stack": [], **place}
        line = {"rank": rank, "ranks": ranks, "still_s": still_s, **place}
        with (tmp_path / f"hang-{host}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    return write


def in_call(verb, axis, *group):
    return {"verb": verb, "axis": axis, "group": list(group)}


def test_the_roll_call_says_who_is_in_which_call_who_is_missing_and_where_those_are(report, tmp_path):
    for rank, host in ((0, "a"), (1, "a"), (3, "b")):
        report(rank, host=host, **in_call("all_reduce", "dp", 0, 1, 2, 3))
    report(2, host="b", stack=["/lib/x.py:9 outer: f()", "/lib/late.py:12 nap: time.sleep(1000)"])
    told = hang.told(tmp_path)
    assert told.startswith("no progress for 61 s: ranks 0-1, 3 in all_reduce over dp (step 7, sync)")
    assert "rank 2 missing; rank 2 is in no call but at late.py:12 nap: time.sleep(1000)" in told


def test_ranks_that_are_in_different_calls_are_told_apart_and_so_are_groups_of_one_axis(report, tmp_path):
    report(0, **in_call("all_reduce", "tp", 0, 1))
    report(1, **in_call("broadcast", "tp", 0, 1))
    report(2, **in_call("all_reduce", "tp", 2, 3))
    told = hang.told(tmp_path)
    assert "rank 0 in all_reduce over tp (step 7, sync), rank 1 missing" in told
    assert "rank 1 in broadcast over tp (step 7, sync), rank 0 missing" in told
    assert "rank 2 in all_reduce over tp (step 7, sync), rank 3 missing" in told
    assert "no word from rank 3" in told


def test_the_roll_call_waits_for_the_slow_and_not_for_the_dead(report, tmp_path, monkeypatch):
    monkeypatch.setattr(hang, "_ANSWER_S", 0.0)
    monkeypatch.setattr(hang, "_ANSWER_SHARE", 0.0)
    call = hang.RollCall(tmp_path)
    assert not call.is_over()
    assert not hang.told(tmp_path)
    report(0, ranks=2)
    assert not call.is_over()  # heard of for the first time just now
    assert call.is_over()
    monkeypatch.setattr(hang, "_ANSWER_S", 1000.0)
    assert not call.is_over()
    report(1, ranks=2, host="b")
    assert call.is_over()


def test_a_line_that_is_being_written_is_left_for_the_next_look(report, tmp_path):
    report(0, ranks=2)
    (tmp_path / "hang-b.jsonl").write_text('{"rank": 1, ')
    assert "no word from rank 1" in hang.told(tmp_path)
