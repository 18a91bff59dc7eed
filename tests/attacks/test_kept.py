"""Histories and predictions that others have changed: what can be read is, the rest is left out or named."""

import json
import random
from contextlib import suppress

import pytest
from mutations import mutated, mutated_bytes
from synthetic import Point, write_run

from pscale.analysis.difference import RELEVANT
from pscale.analysis.frames import load
from pscale.analysis.history import suite_history
from pscale.analysis.predictions import held, machine_of, recorded, score_in
from pscale.errors import ResultsError
from pscale.report.comparison import history_sheet, render_history
from pscale.runs import history, predictions
from pscale.runs.history import Acceptance, Entry
from pscale.runs.predictions import Predicted
from pscale.runs.run_folders import prediction_file

FIELDS = [*Entry.__annotations__, *Acceptance.__annotations__, "format", "fingerprint.MPI", "counters.bytes"]


def entries():
    """Return 12 runs of two cases, of which the last three are slower."""
    source = random.Random(1)
    for number in range(12):
        logs = [-1.0 + 0.1 * (number > 8) + source.gauss(0, 0.005) for _ in range(3)]
        for label in ("1 rank", "2 ranks"):
            yield Entry(
                run=f"run{number:02}",
                begun_unix_s=1.7e9 + 86400 * number,
                case="0123456789",
                label=label,
                work="work",
                steps=logs,
                levels=logs,
                paces=[0.1 * log for log in logs],
                times_s={"forward compute": 0.1},
                counters={"bytes": 100.0},
                fingerprint={"MPI": "MPICH"},
            )
    yield Acceptance(accepted="run10", label="1 rank", reason="on purpose", at_unix_s=1.8e9)


def test_whatever_a_history_holds_its_lines_are_read_or_left_out(tmp_path, attack):
    path, left_out = history.append(tmp_path, "suite", entries()), 0
    good = path.read_bytes()
    for _ in range(attack.times(16)):
        lines = good.split(b"\n")[:-1]
        places = attack.draw.sample(range(len(lines)), 6)
        for place in places:
            if attack.draw.random() < 0.3:
                lines[place] = mutated_bytes(lines[place], attack.draw)
            else:
                document = mutated(json.loads(lines[place]), FIELDS, attack.draw)
                lines[place] = json.dumps(document, separators=(",", ":")).encode()
        path.write_bytes(b"\n".join(lines))
        try:
            left_out += _shown(tmp_path) < len(lines)
        except BaseException as error:
            error.add_note(f"with the lines:\n{[lines[place][:1000] for place in places]!r}")
            raise
    assert left_out


def _shown(folder):
    """Read and show a history; return how many lines it has that say something; 0: it is refused."""
    try:
        read = history.read(folder, "suite")
    except ResultsError as error:
        assert "newer pscale" in str(error)  # noqa: PT017 - the other end of an attempt
        return 0
    found = suite_history(read, RELEVANT)
    assert render_history(found).rstrip().endswith("</html>")
    sheet = history_sheet(found)
    assert sheet.headline
    assert len(sheet.rows) == len(found.cases)
    assert bool(sheet.tables) == bool(found.cases)
    return len(read.entries) + len(read.acceptances)


@pytest.fixture
def foreseen(tmp_path):
    """A run beside a prediction of its cases."""
    points = [Point(ranks=ranks, row={"started_unix_s": 1.7e9}) for ranks in (1, 2)]
    run = write_run(tmp_path / "suite" / "run", points, repeats=2, steps=4, joined=False)
    made = [
        Predicted(
            case=points[ranks - 1].case.id,
            label=f"{ranks}",
            ranks=ranks,
            made_unix_s=1.6e9,
            step_s=0.1,
            low_s=0.05,
            high_s=0.2,
            losses_s={"compute": 0.1},
            quantiles_s=[0.1, 0.2],
            checked_ranks=2,
            notes=[],
            inputs={"profile": "x"},
        )
        for ranks in (1, 2)
    ]
    predictions.add(tmp_path / "suite", made)
    return run


def test_whatever_a_prediction_says_runs_are_held_to_those_that_can_be(foreseen, attack):
    file, run = prediction_file(foreseen.parent), load(foreseen)
    good = file.read_bytes()
    assert len([*held(recorded(run))]) == 2
    for _ in range(attack.times(40)):
        raw = mutated_bytes(good, attack.draw)
        if attack.draw.random() < 0.8:
            raw = json.dumps(
                _sealed(mutated(json.loads(good), ["format", "predictions"], attack.draw))
            ).encode()
        file.write_bytes(raw)
        try:
            with suppress(ResultsError):
                assert all(each["error"] > -1 for each in held(recorded(run)))
                if attack.draw.random() < 0.1:
                    score_in(foreseen.parents[1], machine_of(run))
                predictions.add(foreseen.parent, predictions.read(foreseen.parent))
        except BaseException as error:
            error.add_note(f"with the predictions:\n{raw[:2000]!r}")
            raise


def _sealed(document):
    """Give predictions the seal of what they say."""
    with suppress(TypeError, AttributeError, KeyError):
        for entry in document["predictions"]:
            entry.pop("seal", None)
            entry["seal"] = Predicted(**entry).seal
    return document
