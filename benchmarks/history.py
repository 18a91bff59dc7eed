"""How surely `pscale history` finds what changed, and how seldom it finds what did not.

    python benchmarks/history.py [--rounds 1000] [--json FILE]

Histories of 40 runs are drawn: launches scatter, the machine drifts from run to run (AR(1), 0.5), the commit
changes with every run, and now and then something else of the fingerprint. Where launches are paced, a fixed
piece of work beside the steps has felt the machine too. A false alarm is any change that is found where none
is; a change of +5 % is found if the case is called worse two runs after it began; it is named if it is placed
at its run, and after the field that changed there. Recorded noise is that of launches with their pace in
tests/analysis/recorded. `--rounds` histories are drawn of each kind.

Beside what is found stands what could be: by a detector that knows how large the noise is, and that no
machine drifts, and has only to look for the place, at as many false alarms as are allowed.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import figures
import numpy as np
from threadpoolctl import threadpool_limits

from pscale.analysis.history import CaseHistory, case_history, suite_history
from pscale.runs.history import Entry, append, read

RECORDED = Path(__file__).parent.parent / "tests" / "analysis" / "recorded"
RUNS, LAUNCHES, SLOWER = 40, 5, 0.05
ALARMS = 0.02  # goal: in so many histories in which nothing changes
FIRST = 10_000  # seed: the detector was adjusted on others
FIELDS = ("MPI", "BLAS", "operating system", "driver", "governor", "host", "OMP_NUM_THREADS", "package numpy")


def recorded(random: np.random.Generator, at: int | None = None) -> list[Entry]:
    """Make a history of launches that were recorded with their pace: a run is one of these, in five parts."""
    times = STEPS_S[random.integers(len(STEPS_S))]
    parts = times[random.integers(len(times), size=RUNS)].reshape(RUNS, 2, LAUNCHES, -1)
    logs = np.log(parts)
    if at is not None:
        logs[at:, 0] += np.log1p(SLOWER)
    steps, (levels, paces) = np.median(logs[:, 0], axis=2), logs.mean(axis=3).swapaxes(0, 1)
    return [
        replace(entry, steps=steps[run].tolist(), levels=levels[run].tolist(), paces=paces[run].tolist())
        for run, entry in enumerate(drawn(random, others=3))
    ]


def read_steps() -> list[np.ndarray]:
    """Return step times and paces of recorded launches, by MPI and number of ranks."""
    found = []
    for path in sorted(RECORDED.glob("*.csv")):
        rows = np.loadtxt(path, delimiter=",")
        found += [rows[rows[:, 0] == ranks, 2:].reshape(-1, 2, 80) * 1e-6 for ranks in np.unique(rows[:, 0])]
    return found


def drawn(
    random: np.random.Generator,
    *,
    own: float = 0.03,
    machine: float = 0.0,
    paced: bool = True,
    launches: int = LAUNCHES,
    runs: int = RUNS,
    at: int | None = None,
    field: str = "",
    others: int = 0,
) -> list[Entry]:
    """Draw a history: scatter of launches and of the machine, and a change with run `at`.

    The machine differs from run to run and, by as much, from launch to launch.
    """
    drift = ar(random, runs) * machine
    felt = drift[:, None] + machine * random.normal(size=(runs, launches)) * paced
    levels = np.log(0.2) + felt + own * random.normal(size=(runs, launches))
    if at is not None:
        levels[at:] += np.log1p(SLOWER)
    levels, paces = levels.round(7), (felt - 4.6).round(7)  # as they are recorded
    changed = {run: FIELDS[random.integers(len(FIELDS))] for run in random.integers(4, runs - 4, others)}
    if at is not None and field:
        changed = {run: name for run, name in changed.items() if run != at} | {at: field}
    known = dict.fromkeys(FIELDS, "1")
    found = []
    for run in range(runs):
        if run in changed:
            known = known | {changed[run]: f"since {run}"}
        found.append(
            Entry(
                run=f"run {run:04}",
                begun_unix_s=1.7e9 + 86400.0 * run,
                case="0123456789",
                label="2 ranks",
                work="gpt, 8, 2048, 3356160",
                steps=levels[run].tolist(),
                levels=levels[run].tolist() if paced else (),
                paces=paces[run].tolist() if paced else (),
                times_s={"backward compute": 0.12},
                counters={"bytes of dp all_reduce": 26849280, "executed FLOPs": 43486543872},
                code=f"{run:012x}",
                fingerprint=known,
            )
        )
    return found


def ar(random: np.random.Generator, count: int, memory: float = 0.5) -> np.ndarray:
    """Draw values of variance 1 that keep half of themselves from one to the next."""
    values = random.normal(size=count)
    for place in range(1, count):
        values[place] = memory * values[place - 1] + np.sqrt(1 - memory**2) * values[place]
    return values


def judged(entries: list[Entry]) -> CaseHistory:
    """Return what is found."""
    return case_history(entries, None, SLOWER)


HALF = 0.03 / np.sqrt(2)  # of a scatter of 3 %, where the machine has as large a part as the launch itself
STEPS_S = read_steps()
QUIET: dict[str, Callable[[np.random.Generator], list[Entry]]] = {
    "launches scatter by 3 %": lambda random: drawn(random, others=3),
    "drift of 3 %": lambda random: drawn(random, own=0.005, machine=0.03, paced=False, others=3),
    "drift of 1.3 % beside a scatter of 3 %": lambda random: drawn(
        random, machine=0.013, paced=False, others=3
    ),
    "drift of 0.8 % beside a scatter of 3 %": lambda random: drawn(
        random, machine=0.008, paced=False, others=3
    ),
    "drift of 3 %, one launch a run": lambda random: drawn(
        random, own=0.01, machine=0.03, paced=False, launches=1, others=3
    ),
    "recorded noise, paced": recorded,
    "drift of 2.1 % beside a scatter of 2.1 %, paced": lambda random: drawn(
        random, own=HALF, machine=HALF, others=3
    ),
    "drift of 3 %, paced": lambda random: drawn(random, own=0.02, machine=0.03, others=3),
}


def night_after_night(entries: list[Entry]) -> bool:
    """Tell whether any of the checks of 40 nights calls a case worse that is not."""
    return any(judged(entries[:count]).row.answer == "slower" for count in range(8, RUNS + 1))


def found(random: np.random.Generator, own: float, machine: float, runs: int = RUNS) -> bool:
    """Tell whether a change is found within two runs."""
    return judged(drawn(random, own=own, machine=machine, at=runs - 2, runs=runs)).row.answer == "slower"


def named(random: np.random.Generator) -> bool:
    """Tell whether a change is placed at its run and named after the field that changed there."""
    at, field = int(random.integers(10, RUNS - 7)), FIELDS[random.integers(len(FIELDS))]
    entries = drawn(random, own=HALF, machine=HALF, at=at, field=field, others=2)
    changes = judged(entries).changes
    return any(change.run == entries[at].run and change.cause.startswith(field) for change in changes)


QUESTIONS: dict[str, tuple[Callable[[np.random.Generator], bool], str, float | None]] = {
    **{
        f"false alarms: {name}": (
            lambda random, draw=draw: bool(judged(draw(random)).changes),
            "lower",
            ALARMS,
        )
        for name, draw in QUIET.items()
    },
    **{
        f"false alarms in any of 40 nightly checks: {name}": (
            lambda random, draw=draw: night_after_night(draw(random)),
            "lower",
            None,
        )
        for name, draw in QUIET.items()
    },
    "found: 3 % noise, half of it the machine's": (lambda random: found(random, HALF, HALF), "higher", 0.9),
    "found: the same, after 20 runs": (lambda random: found(random, HALF, HALF, 22), "higher", None),
    "found: recorded noise, paced": (
        lambda random: judged(recorded(random, RUNS - 2)).row.answer == "slower",
        "higher",
        None,
    ),
    "found: 3 % that no pace explains": (lambda random: found(random, 0.03, 0.0), "higher", 0.9),
    "found: the same noise, after 20 runs": (lambda random: found(random, 0.03, 0.0, 22), "higher", None),
    "named after its field": (named, "higher", 0.95),
}


def share(question: Callable[[np.random.Generator], bool], rounds: int) -> float:
    """Return the share of histories in which it is so."""
    return float(np.mean([question(np.random.default_rng(seed)) for seed in range(FIRST, FIRST + rounds)]))


def possible(deviation: float, rounds: int) -> float:
    """Return how often a detector would find a change that knows everything but the place.

    The mean of a run's launches has this standard deviation, independent of all other runs.
    """
    quiet = deviation * np.random.default_rng(FIRST).normal(size=(rounds, RUNS))
    slower = quiet + np.log1p(SLOWER) * (np.arange(RUNS) >= RUNS - 2)
    counts = np.arange(RUNS, 0, -1)[2:-1]  # runs of the new level, by its first

    def largest(values: np.ndarray) -> np.ndarray:
        apart = values - values.mean(axis=1, keepdims=True)
        after = apart[:, ::-1].cumsum(axis=1)[:, ::-1][:, 2:-1]
        return np.asarray(np.abs(after / np.sqrt(counts * (RUNS - counts) / RUNS)).max(axis=1))

    return float(np.mean(largest(slower) > np.quantile(largest(quiet), 1 - ALARMS)))


def large(entry: Entry, label: str) -> Entry:
    """Return the entry of a case with as many fields as real ones have: its line takes 1.3 kB."""
    return replace(
        entry,
        label=label,
        counters={**entry.counters, **{f"bytes of part {part}": 11919360 for part in range(9)}},
        fingerprint={**entry.fingerprint, **{f"package part-{part}": "1.26.4" for part in range(20)}},
    )


def seconds(runs: int = 1000, cases: int = 20, times: int = 5) -> list[float]:
    """Return the CPU time of reading and judging a long history."""
    random = np.random.default_rng(1)
    took = []
    with tempfile.TemporaryDirectory() as name:
        for case in range(cases):
            entries = drawn(random, own=HALF, machine=HALF, runs=runs, others=10)
            append(Path(name), "long", [large(each, f"case {case}") for each in entries])
        gc.disable()  # as the command has it, which uses one thread too
        for _ in range(times):
            with threadpool_limits(1):
                begun = time.process_time()
                suite_history(read(Path(name), "long"))
                took.append(time.process_time() - begun)
    return took


def main() -> None:
    args = figures.parser(__doc__, 1000).parse_args()
    shares = {}
    for name, (question, better, goal) in QUESTIONS.items():
        shares[name] = value = share(question, args.rounds)
        sign = "≤" if better == "lower" else "≥"
        missed = goal is not None and (value > goal if better == "lower" else value < goal)
        print(
            f"{name}: {value:.1%}" + (f", goal {sign} {goal:.0%}" if goal else "") + "  MISSED" * missed,
            flush=True,
        )
    bounds = {
        "found: 3 % that no pace explains": possible(0.03 / np.sqrt(LAUNCHES), 20 * args.rounds),
        "found: 3 % common to all launches of a run": possible(0.03, 20 * args.rounds),
    }
    for name, value in bounds.items():
        print(f"{name}: {value:.1%} if the noise were known")
    took = {"1,000 runs of 20 cases, CPU time": figures.figure(seconds(), "lower", 1.0, unit="s")}
    setting = {
        "histories": args.rounds,
        "runs": RUNS,
        "launches": LAUNCHES,
        "shares": shares,
        "if_the_noise_were_known": bounds,
    }
    figures.finish(args, took, setting)


if __name__ == "__main__":
    main()
