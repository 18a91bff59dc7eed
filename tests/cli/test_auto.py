"""`repeat: auto`: which launches are made, until when, and what a killed run does about it."""

import random as chance

import numpy as np
import pytest
from synthetic import Point, write_launch

from pscale.cli.auto import UntilPrecise
from pscale.config import to_dict
from pscale.launch import campaign, machine
from pscale.launch.journal import Journal, fingerprint, newest_unfinished
from pscale.launch.mpi import Launcher

LEAST, MOST, SEED = 5, 12, 3
POINTS = {
    "quiet": Point(ranks=1, label="quiet", series="a", launch_noise=0.001),
    "noisy": Point(ranks=1, label="noisy", series="aa", launch_noise=0.02),
    "hopeless": Point(ranks=1, label="hopeless", series="aaa", launch_noise=0.2),
    "broken": Point(ranks=1, label="broken", series="aaaa", bad_repeats=range(MOST)),
    "shaky": Point(ranks=1, label="shaky", series="aaaaa", launch_noise=0.001, bad_repeats=(0, 2, 3)),
}
CASES = [point.case for point in POINTS.values()]


class Killed(Exception):  # noqa: N818 - as a signal ends a program
    pass


@pytest.fixture
def make(tmp_path):
    """Make a run whose job does nothing, and which is as precise as `POINTS` say."""
    program = tmp_path / "launcher"
    program.write_text('#!/bin/sh\nfor folder; do :; done\necho "{}" > "$folder/result.json"\n')
    program.chmod(0o755)
    launcher = Launcher(path=str(program), flavour="mpich", version="0")

    def create(name):
        document = {
            "suite": {"name": "s", "resolved": {}},
            "cases": [{**to_dict(case), "id": case.id} for case in CASES],
            "repeats": LEAST,
            "auto": {"precision": 0.02, "most": MOST},
            "seed": SEED,
            "provenance": {},
        }
        return Journal.create(tmp_path / name, "s", document)

    def go_on(journal, die_after=10**9):
        left = die_after

        def row(job, _outcome):
            nonlocal left
            random = np.random.default_rng([job.repeat, *job.case.id.encode()])
            write_launch(journal.data, POINTS[job.case.label], job.repeat, 10, random)
            left -= 1
            if left < 0:
                raise Killed

        jobs = campaign.launches(CASES, MOST, SEED)
        wanted = UntilPrecise(journal).wanted
        try:
            campaign.run(
                journal, jobs, launcher, machine.inspect(), on_start=lambda _: None, on_end=row, wanted=wanted
            )
        except Killed:
            return False
        return True

    return create, go_on


def launches_of(journal):
    counts = dict.fromkeys(POINTS, 0)
    labels = {case.id: case.label for case in CASES}
    for case, _ in journal.finished():
        counts[labels[case]] += 1
    return counts


def test_cases_are_launched_as_often_as_they_need_and_no_more(make):
    create, go_on = make
    journal = create("whole")
    assert go_on(journal)
    counts = launches_of(journal)
    assert counts["quiet"] == counts["broken"] == counts["shaky"] == LEAST
    assert LEAST < counts["noisy"] < MOST
    assert counts["hopeless"] == MOST
    assert journal.is_finished()
    widths = {record["case"]: record["half_width"] for record in journal.records() if "half_width" in record}
    assert widths[POINTS["quiet"].case.id] < 0.02
    assert widths[POINTS["broken"].case.id] is None
    before = journal.records()
    assert go_on(journal), "a finished run has nothing left to do"
    assert journal.records() == before


def test_a_run_that_is_killed_again_and_again_makes_the_launches_of_one_that_is_not(make, tmp_path):
    create, go_on = make
    whole, broken = create("whole"), create("broken")
    go_on(whole)
    chance.seed(4)
    kills = 0
    while not go_on(broken, die_after=chance.randrange(9)):
        assert not broken.is_finished()
        found = newest_unfinished(tmp_path / "broken", "s", fingerprint(broken.document))
        assert found is not None
        kills += 1
    assert kills > 3
    assert broken.finished() == whole.finished()
    assert broken.enough() == whole.enough()
    ended = [record for record in broken.records() if record["event"] == "enough"]
    assert len(ended) == len(broken.enough())
