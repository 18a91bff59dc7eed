"""Whether cases can run: sizes that fit, data that is there, cores enough."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pscale.config import Case, workload_command
from pscale.config.case import OF_TRAINING
from pscale.config.expressions import names_in
from pscale.config.training import is_16_bit
from pscale.data import check as check_data
from pscale.data import find_corpus
from pscale.errors import PlanError, SuiteError, UsageError
from pscale.parallel.strategies import MODEL, TABLE
from pscale.suite.document import Path_, Place, dotted
from pscale.suite.draft import Draft, written
from pscale.suite.fields import GROUPS, PARAMS, full_name
from pscale.suite.load import FILE as SITES
from pscale.suite.load import Suite
from pscale.suite.problems import SHOWN, Problem, suite_error

_WAYS_OUT = (
    'leave such cases out with `exclude: ["ranks * threads > cores"]`, or let ranks share cores with '
    "`launch: {oversubscribe: true}`"
)
_LARGEST = 1 << 50  # numbers of an array: sizes in bytes have 64 bits
_MOST_TOKENS = 1 << 26  # of a rank and micro-batch: a dry run has real indices of them
_LONGEST_STEP = 200_000  # blocks that micro-batches pass: a dry run takes half a millisecond for each
_EXCLUDE = "leave such cases out with `exclude`"
_NAME = re.compile(r"\w+(?:\.\w+)*")
_FIELD = re.compile(r"\b(model|data|train)\.(\w+)")


def check(suite: Suite, drafts: Sequence[Draft], machine: Mapping[str, float]) -> None:
    """Raise SuiteError for sizes and data that cannot be, then PlanError for cases that cannot run here."""
    find_corpus.cache_clear()  # files may have changed since the last suite
    programs = [draft for draft in drafts if draft.case.workload.command]
    trained = [draft for draft in drafts if not draft.case.workload.command]
    problems: dict[Path_, Problem] = {}  # the first of each place: other cases repeat it with other numbers
    for draft, problem in _problems(suite, trained, programs):
        path = written(draft.point, problem.path)
        problems.setdefault(path, Problem(path, problem.message))
        if len(problems) == SHOWN:  # nobody reads more at once
            break
    if problems:
        raise suite_error(problems.values(), suite.places)
    shortages = [(draft, text) for draft in drafts if (text := _shortage(draft.case, machine["cores"]))]
    refusals = [(draft, constraint) for draft in trained if (constraint := TABLE.clash(draft.case))]
    if found := shortages + refusals:
        lines = [
            _placed(suite, draft, why if isinstance(why, str) else TABLE.words(why, draft.case))
            for draft, why in found[:SHOWN]
        ]
        more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise PlanError("\n".join([*lines, *more, *([_WAYS_OUT] if shortages else [])]))


def _problems(
    suite: Suite, trained: Sequence[Draft], programs: Sequence[Draft]
) -> Iterator[tuple[Draft, Problem]]:
    """Yield what is wrong with the values of each case."""
    unlike = {(draft.case.data, draft.case.model, draft.case.train): draft for draft in trained}
    read = _read_names(suite) if programs else set()
    for draft in unlike.values():
        yield from ((draft, each) for each in _work_problems(draft.case))
    for draft in programs:
        yield from ((draft, each) for each in _program_problems(suite, draft, read))
    for draft in (*trained, *programs):
        yield from ((draft, each) for each in _injection_problems(draft.case))
        yield from ((draft, each) for each in _ghost_problems(draft.case))


def _placed(suite: Suite, draft: Draft, text: str) -> str:
    """Put before why a case cannot be where a field that it names was written, in the sweep if it can be."""
    clash, _, _ = text.partition("; ")  # what would work names other fields too
    fields = [field for name in _NAME.findall(clash) if (field := full_name(name) or GROUPS.get(name))]
    swept = [
        setting.written
        for field in fields
        for setting in draft.point
        if f"{setting.field}.".startswith(f"{field}.")
    ]
    paths = [*swept, *(tuple(field.split(".")) for field in fields)]
    place = next(
        (suite.places[path] for path in paths if path in suite.places), Place(file=suite.file, line=1)
    )
    option = f"{place.option}: " if place.option else ""
    return str(
        SuiteError(f"{option}{draft.case.label}: {text}", file=place.file or suite.file, line=place.line)
    )


def _work_problems(case: Case) -> Iterator[Problem]:
    """Yield what is wrong with the sizes of the model and with the data."""
    model = case.model
    get = TABLE.get(case)
    for constraint in [each for each in MODEL if not each.holds(get)][:1]:
        yield Problem(("model", constraint.ways[0][0]), TABLE.words(constraint, case))
    yield from _size_problems(case)
    try:
        check_data(case.data, model, case.train)
    except UsageError as error:
        named = _FIELD.search(str(error))
        path: Path_ = named.groups() if named else ("data",)
        yield Problem(path, re.sub(rf"^{dotted(path)}:? ", "", str(error)))


def _size_problems(case: Case) -> Iterator[Problem]:
    """Yield sizes that no machine can have, nor a dry run."""
    model, micro_batches = case.model, case.train.micro_batches
    amounts = {
        ("model", "width"): (model.width * max(4 * model.width, model.vocabulary), _LARGEST, "weights"),
        ("train", "batch"): (
            case.train.batch * model.sequence // (case.plan.batch_parts * micro_batches),
            _MOST_TOKENS,
            "tokens of a rank and micro-batch",
        ),
        ("train", "micro_batches"): (model.layers * micro_batches, _LONGEST_STEP, "layers x micro_batches"),
    }
    for field, (amount, most, what) in amounts.items():
        if amount > most:
            yield Problem(field, f"makes {amount} {what}; at most {most} are possible")


_OF_TRAINER = {
    "timing": ("gemm_peak", "overhead_steps", "pace"),
    "launch": ("blas", "kernels", "memory_limit"),
}
_OF_WATCH = {"timing": ("trace",), "launch": ("hang_after",)}


def _program_problems(suite: Suite, draft: Draft, read: set[str]) -> Iterator[Problem]:
    """Yield what is wrong with a case of a workload; expressions of the suite `read` some names."""
    for path, message in workload_command.problems(draft.case):
        yield Problem(path, message)
    if unused := draft.case.workload.params.keys() - workload_command.used_names(draft.case) - read:
        for name in sorted(unused):
            yield Problem((*_PARAMS, name), f"is not used; write {{{name}}} in the command, or leave it out")
    yield from _foreign_fields(suite, draft)


_PARAMS: Path_ = ("workload", "params")


def _read_names(suite: Suite) -> set[str]:
    """Return the names that expressions of a suite read, in parameters, other fields and the sweep."""
    found, values = set(), list(suite.values.values())
    while values:
        value = values.pop()
        values += value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        found |= names_in(value[1:]) if isinstance(value, str) and value.startswith("=") else set()
    return {name.removeprefix(PARAMS) for name in found}


def _foreign_fields(suite: Suite, draft: Draft) -> Iterator[Problem]:
    """Yield fields that say something of pscale's own trainer, unless a site does for all suites."""
    said: list[Path_] = [(group,) for group in OF_TRAINING if suite.values.get(group) is not None]
    swept = [setting.field.split(".") for setting in draft.point]
    said += [tuple(field) for field in swept if field[0] in OF_TRAINING]
    for path in said:
        yield Problem(path, "is of pscale's own trainer, which a suite with a workload does not run")
    watched = draft.case.workload.watch
    for chosen, why in ((_OF_TRAINER, "is of pscale's own trainer"), (_OF_WATCH, "needs watch: true")):
        for group, names in chosen.items() if chosen is _OF_TRAINER or not watched else ():
            for name in names:
                place = suite.places.get(written(draft.point, (group, name)))
                if place and (place.file is None or place.file.name != SITES):
                    yield Problem((group, name), why)


def _injection_problems(case: Case) -> Iterator[Problem]:
    """Yield what is wrong with the injection into a case."""
    inject, jitter, steps = case.inject, case.jitter, case.train.steps
    if inject.delay_s:
        yield from _problem_of(case, "inject.rank", _rank_problem(case, inject.rank, inject.phase))
        if inject.every > steps:
            text = f"one step of {inject.every} is more than the {steps} measured steps"
            yield from _problem_of(case, "inject.every", text)
    for rank in jitter.ranks:
        yield from _problem_of(case, "jitter.ranks", _rank_problem(case, rank, jitter.phase))
    if jitter.mean_s and not jitter.ranks and jitter.phase == "data" and case.plan.pp > 2:
        text = "stages between the first and the last read no data; name ranks that do, or another phase"
        yield from _problem_of(case, "jitter.phase", text)


_NO_LEARNING = "ghosts learn nothing to save, load or evaluate; leave {} out"
_NO_SAMPLES = "ghosts read no samples; leave {} out"


def _ghost_problems(case: Case) -> Iterator[Problem]:
    """Yield what a case whose computing is slept cannot have."""
    data, train, dtype = case.data, case.train, case.model.dtype
    sums = f"sums of {dtype} are computed, and ghosts compute nothing; set precision: float32"
    pace = "the pace is that of computing, and ghosts compute nothing; set timing.pace: false"
    for field, is_set, text in (
        ("plan.offload", case.plan.offload != "none", "ghost computing moves nothing to files; set {}: none"),
        ("precision", is_16_bit(dtype), sums),
        ("train.save", train.save.every, _NO_LEARNING),
        ("train.evaluate", train.evaluate.every, _NO_LEARNING),
        ("train.load", train.load, _NO_LEARNING),
        ("data.prefetch", data.prefetch, _NO_SAMPLES),
        ("data.hints", data.hints, _NO_SAMPLES),
        ("model.op", case.model.op != "sum", "ghosts reduce by sum alone; set {}: sum"),
        ("timing.pace", case.timing.pace, pace),
    ):
        if case.ghost.gflops and is_set:
            yield from _problem_of(case, field, text.format(field))


def _problem_of(case: Case, field: str, text: str) -> Iterator[Problem]:
    """Yield what is wrong with a field of a case, if anything is."""
    if text:
        yield Problem(tuple(field.split(".")), f"{case.label}: {text}")


def _rank_problem(case: Case, rank: int, phase: str) -> str:
    if rank >= case.ranks:
        there = "only rank 0" if case.ranks == 1 else f"ranks 0 to {case.ranks - 1}"
        return f"there is no rank {rank}, the case has {there}; {_EXCLUDE}"
    if phase == "data" and 0 < (stage := rank * case.plan.pp // case.ranks) < case.plan.pp - 1:
        return f"rank {rank} is of stage {stage}, which reads no data; take another phase"
    return ""


def _shortage(case: Case, cores: float) -> str:
    needed = case.ranks * case.threads
    if needed <= cores or case.launch.oversubscribe:
        return ""
    product = f"ranks {case.ranks} x threads {case.threads} = {needed} cores"
    return f"{product}, this machine has {cores:g}"
