"""What `pscale verify` prints: every tensor and call, what differs, and by how much."""

import math

import pytest
from rich.console import Console

from pscale.cli import verify
from pscale.config import Case, Model, Precision

ROWS = [[0, "dp", "all_reduce", 3, 1200], [0, "pp", "send", 2, 64], [1, "dp", "all_reduce", 3, 1200]]
EQUAL = {
    "label": "dp 2 [red]",
    "ranks": 2,
    "passed": True,
    "reason": "",
    "limits": {"loss": 1e-12, "gradient": 1e-12, "weight": 2e-12},
    "errors": {
        "loss": [["every step", 1e-16]],
        "gradient": [["10/norm.gain", 3e-14], ["2/qkv.weight", 2e-15]],
        "weight": [["2/qkv.weight", 5e-14], ["10/norm.gain", 4e-15]],
    },
    "counted": ROWS,
    "predicted": ROWS,
    "files": {"counted": [], "predicted": []},
}
WRONG = {**EQUAL, "passed": False, "errors": {**EQUAL["errors"], "gradient": [["2/qkv.weight", 0.5]]}}
UNFORESEEN = {**EQUAL, "passed": False, "predicted": ROWS[:-1]}
MOVES = [[0, "read", 4096], [0, "write", 2048], [1, "read", 4096], [1, "write", 2048]]
OFFLOADED = {**EQUAL, "files": {"counted": MOVES, "predicted": MOVES}}
UNREAD = {**OFFLOADED, "passed": False, "files": {"counted": MOVES[1:], "predicted": MOVES}}
FAILED = {"label": "dp 4", "ranks": 4, "passed": False, "reason": "rank 1 died", "errors": {}}


@pytest.fixture
def printed(capsys):
    def of(*tables):
        Console(width=200).print(*tables, sep="\n")
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    return of


def test_a_line_of_the_summary_has_the_worst_of_each_kind_and_all_that_was_counted(printed):
    _, equal, unforeseen, failed = printed(verify.summary([EQUAL, UNFORESEEN, FAILED]))
    assert " ".join(equal) == "dp 2 [red] 2 1e-16 3e-14 5e-14 8 2.41 KiB 2 equal"
    assert " ".join(unforeseen).endswith("8 ≠ 5 2,464 ≠ 1,264 2 differs")
    assert failed == ["dp", "4", "4", "differs"]


def test_bytes_of_files_stand_beside_those_that_are_sent_where_a_case_has_any(printed):
    heading, equal, *_, unread = printed(verify.summary([EQUAL, OFFLOADED, UNREAD]))
    assert heading[-3:] == ["bytes", "messages", "file"]
    assert " ".join(equal).endswith("2.41 KiB 2 0 B equal")
    assert " ".join(unread).endswith("8,192 ≠ 12,288 differs")
    lines = [" ".join(line) for line in printed(*verify.details(UNREAD))]
    assert lines[-2:] == ["read 4,096 ≠ 8,192", "write = 4,096"]
    assert verify.reason(UNREAD) == "bytes of files differ: predicted on rank 0: read 4096 bytes"


def test_what_was_compared_of_choices_is_a_column_where_there_is_any(printed):
    routed = {**EQUAL, "errors": {**EQUAL["errors"], "choice": [["block.3", 2e-3], ["block.1", 0.0]]}}
    heading, dense, mixture = printed(verify.summary([EQUAL, routed]))
    assert heading[:6] == ["case", "ranks", "loss", "gradient", "weight", "choice"]
    assert " ".join(dense).endswith("3e-14 5e-14 8 2.41 KiB 2 equal")
    assert " ".join(mixture).endswith("3e-14 5e-14 2e-03 8 2.41 KiB 2 equal")
    first, *_ = printed(*verify.details(routed))
    assert "loss 1.0e-16, choice block.3 2.0e-03, choice block.1 0.0e+00; limits" in " ".join(first)


def test_details_have_every_tensor_in_the_order_of_the_model_and_every_call(printed):
    lines = [" ".join(line) for line in printed(*verify.details(UNFORESEEN))]
    assert lines[0] == (
        "dp 2 [red]: loss 1.0e-16; limits, of the largest value: loss 1e-12, gradient 1e-12, weight 2e-12"
    )
    assert lines[2:4] == ["2/qkv.weight 2.0e-15 5.0e-14 equal", "10/norm.gain 3.0e-14 4.0e-15 equal"]
    assert lines[-2:] == ["dp all_reduce 6 ≠ 3 2,400 ≠ 1,200", "pp send = 2 = 64"]
    assert list(verify.details(FAILED)) == []


@pytest.mark.parametrize(
    ("dtype", "asked", "proved"),
    [
        ("fp16", "none", verify.SCALE),
        ("fp16", 0.01, verify.SCALE),
        ("fp16", "auto", "dynamic"),
        ("bf16", "none", "none"),
        ("float64", 0.01, 0.01),
    ],
)
def test_numbers_of_fp16_are_proved_at_a_scale_though_none_is_asked_for(dtype, asked, proved):
    case = Case(suite="s", label="l", model=Model(dtype=dtype), precision=Precision(loss_scale=asked))
    assert verify.proof(case).loss_scale == proved


def test_the_reason_names_the_worst_tensor_or_the_call_that_was_not_foreseen():
    assert verify.reason(WRONG) == (
        "gradient 2/qkv.weight differs by 5.0e-01 of its largest value, over the limit of 1e-12"
    )
    diverging = {**WRONG, "errors": {**WRONG["errors"], "loss": [["every step", math.inf]]}}
    assert verify.reason(diverging).startswith("loss every step is not finite")
    assert verify.reason(UNFORESEEN) == ("calls differ: made on rank 1: 3 × all_reduce over dp, 1200 bytes")
