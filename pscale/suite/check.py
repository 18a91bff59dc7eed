"""Whether cases can run: sizes that fit, data that is there, cores enough."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pscale.config import Case, Model
from pscale.data import check as check_data
from pscale.errors import PlanError, SuiteError, UsageError
from pscale.parallel import division, fitting
from pscale.parallel.strategies import check as check_plan
from pscale.suite.document import Path_, Place, dotted
from pscale.suite.draft import Draft, written
from pscale.suite.fields import GROUPS, full_name
from pscale.suite.late import lateness_problems
from pscale.suite.problems import Problem, suite_error
from pscale.suite.suite import Suite

_WAYS_OUT = (
    'leave such cases out with `exclude: ["ranks * threads > cores"]`, or let ranks share cores with '
    "`launch: {oversubscribe: true}`"
)
_NAME = re.compile(r"\w+(?:\.\w+)*")
_FIELD = re.compile(r"\b(model|data|train)\.(\w+)")


def check(suite: Suite, drafts: Sequence[Draft], machine: Mapping[str, float]) -> None:
    """Raise SuiteError for sizes and data that cannot be, then PlanError for cases that cannot run here."""
    unlike = {(draft.case.data, draft.case.model, draft.case.train): draft for draft in drafts}
    problems: dict[Path_, Problem] = {}  # the first of each place: other cases repeat it with other numbers
    for draft in unlike.values():
        for problem in _model_problems(draft.case) + _data_problems(draft.case):
            path = written(draft.point, problem.path)
            problems.setdefault(path, Problem(path, problem.message))
    for draft in drafts:
        for problem in lateness_problems(draft.case):
            path = written(draft.point, problem.path)
            problems.setdefault(path, Problem(path, f"{draft.case.label}: {problem.message}"))
    if problems:
        raise suite_error(problems.values(), suite.places)
    shortages = [(draft, text) for draft in drafts if (text := _shortage(draft.case, machine["cores"]))]
    refusals = [(draft, text) for draft in drafts if (text := _refusal(draft.case))]
    if shortages or refusals:
        lines = [_placed(suite, draft, text) for draft, text in shortages + refusals]
        raise PlanError("\n".join([*lines, *([_WAYS_OUT] if shortages else [])]))


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
    place = next((suite.places[path] for path in paths if path in suite.places), Place(file=suite.file))
    option = f"{place.option}: " if place.option else ""
    return str(
        SuiteError(f"{option}{draft.case.label}: {text}", file=place.file or suite.file, line=place.line)
    )


def _model_problems(case: Case) -> list[Problem]:
    return _head_problems(case) + (_expert_problems(case.model) if case.model.kind == "moe" else [])


def _head_problems(case: Case) -> list[Problem]:
    width, heads = case.model.width, case.model.heads
    if width % heads == 0:
        return []
    would = fitting.heads(case.model, division.head_parts(case.plan))
    message = f"{heads} heads do not divide width {width}; {would} would, or width "
    return [Problem(("model", "heads"), message + str(width + heads - width % heads))]


def _expert_problems(model: Model) -> list[Problem]:
    problems = []
    if model.top_k > model.experts:
        message = f"{model.top_k} experts of a token are more than experts {model.experts}"
        problems.append(Problem(("model", "top_k"), f"{message}; top_k {model.experts} would do"))
    if model.every > model.layers:
        fits = "1" if model.layers == 1 else f"1 to {model.layers}"
        message = f"every {model.every} leaves no block of layers {model.layers} with experts"
        problems.append(Problem(("model", "every"), f"{message}; every {fits} would"))
    return problems


def _data_problems(case: Case) -> list[Problem]:
    try:
        check_data(case.data, case.model, case.train)
    except UsageError as error:
        named = _FIELD.search(str(error))
        path: Path_ = named.groups() if named else ("data",)
        return [Problem(path, re.sub(rf"^{dotted(path)}:? ", "", str(error)))]
    return []


def _shortage(case: Case, cores: float) -> str:
    needed = case.ranks * case.threads
    if needed <= cores or case.launch.oversubscribe:
        return ""
    product = f"ranks {case.ranks} x threads {case.threads} = {needed} cores"
    return f"{product}, this machine has {cores:g}"


def _refusal(case: Case) -> str:
    try:
        check_plan(case)
    except PlanError as error:
        return str(error)
    return ""
