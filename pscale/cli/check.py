"""`pscale check` and `pscale compare`: a run against what is expected of it, or against another run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pscale.analysis.columns import Row
from pscale.analysis.contrasts import Comparison, variants
from pscale.analysis.contrasts import compare as compare_runs
from pscale.analysis.difference import RELEVANT
from pscale.analysis.expect import references, with_cases
from pscale.analysis.findings import Findings
from pscale.analysis.frames import Run, load, records
from pscale.cli import fail, tell
from pscale.cli.console import new_console
from pscale.cli.options import Check, Compare, percentage
from pscale.errors import FAILED, UNDECIDED, ResultsError, UsageError, writing
from pscale.report.brief import write_changed
from pscale.report.comparison import comparison_document, comparison_sheet
from pscale.report.exports import render_junit, render_references
from pscale.report.markup import summary
from pscale.report.table import Table, print_table
from pscale.report.topics.problems import expectations, failures, missing_launches
from pscale.runs.atomic_files import to_json
from pscale.runs.run_folders import run_folder

_CONDITIONS = ("slower", "faster", "undecided", "missing")
_CONDITION = re.compile(r"(?P<answer>[a-z]+)(?::(?P<percent>[0-9]+(?:\.[0-9]+)?)%)?")


def check(options: Check) -> int:
    """Say what holds of all that is expected of a run; returns 1 if something does not or a case failed.

    Returns 6 if nothing is known to fail, and the intervals leave something open or nothing is expected.
    """
    folder, files = run_folder(options.path, options.reports), options.reference or []
    as_format = "json" if options.as_json else options.as_format
    if options.update:
        if options.junit or as_format != "terminal" or len(files) > 1:
            raise UsageError("--update writes one file and checks nothing; --reference FILE names it")
        return _update(folder, files[0] if files else None)
    findings = Findings(_expected(load(folder), files), predict=None)
    if options.junit is not None:
        _write(options.junit, render_junit(findings))
    if as_format == "json":
        document = {
            "run": findings.run,
            "outcome": _outcome(findings).lower(),
            "passed": findings.passed,
            "expectations": records(findings.expectations),
        }
        print(to_json(document))
    elif as_format == "terminal":
        console = new_console(highlight=False)
        for table in _tables(findings):
            print_table(table, console)
        tell(f"\n{_verdict(findings)}")
    else:
        open_ = [row for row in findings.rows("expectations") if row.answer != "holds"]
        answers = [f"{row.label}: {row.demand}: {row.text}" for row in open_]
        print(summary(_verdict(findings), answers, _tables(findings)), end="")
    return _CODES[_outcome(findings)]


_CODES = {"passed": 0, "nothing to check": UNDECIDED, "UNDECIDED": UNDECIDED, "FAILED": FAILED}


def _outcome(findings: Findings) -> str:
    if findings.complete and findings.expectations.empty:
        return "nothing to check"
    return "passed" if findings.passed else "UNDECIDED" if findings.undecided else "FAILED"


def _update(path: Path, file: Path | None) -> int:
    """Write what a run measured as references for later ones; returns 1 if there was nothing to write."""
    findings = Findings(load(path), predict=None)
    target = file or Path(f"{findings.suite or 'pscale'}.reference.yaml")
    known = references(findings.rows("cases"), findings.rows("merits"))
    if not known:
        raise ResultsError(f"{findings.path}: no case was measured, so there are no values to keep")
    _write(target, render_references(findings))
    missing = len(findings.rows("cases")) - len({entry.case for entry in known})
    tell(f"{target}: {len(known)} values of {len(findings.rows('cases')) - missing} cases of {findings.run}")
    if missing:
        print(f"{missing} of {len(findings.rows('cases'))} cases were not measured and are left out")
    return 0


def _expected(run: Run, files: Sequence[Path]) -> Run:
    """Return the run with what files expect of it, after what its suite does."""
    if not files:
        return run
    from pscale.suite.load import load_references  # pydantic takes its time

    entries = list(run.document.get("expect") or [])
    for file in files:
        suite, expected = load_references(file)
        if suite and suite != run.suite.get("name"):
            other = run.suite.get("name")
            raise UsageError(f"{file} is for the suite '{suite}', but the run is of '{other}'")
        entries += with_cases(run, expected)
    return replace(run, document={**run.document, "expect": entries})


_NO_EXPECTATIONS = (
    "it has no expectations; add `expect:` to the suite, or name a file with --reference "
    "(`pscale check --update` writes one)"
)


def _tables(findings: Findings) -> list[Table]:
    return [*failures(findings), *expectations(findings)]


def _verdict(findings: Findings) -> str:
    answers = [entry.answer for entry in findings.rows("expectations")]
    verdict = f"{answers.count('holds')} of {len(answers)} expectations hold"
    verdict += f", {count} undecided" if (count := answers.count("undecided")) else ""
    said = [verdict] if answers else [_NO_EXPECTATIONS]
    said += [words for words, _ in missing_launches(findings)]
    return f"{_outcome(findings)}: {findings.run}" + "".join(f" · {part}" for part in said)


def _write(path: Path, content: str) -> None:
    with writing(path, UsageError):
        write_changed(path, content)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What makes `pscale compare` fail; `least` is a relative difference in step time."""

    answer: str
    least: float

    def outcome(self, comparison: Comparison) -> int:
        """Return the exit code: 1 if any case is so, 6 if the interval of any allows it, else 0."""
        if self.answer == "missing":
            return FAILED if comparison.missing or not comparison.compared else 0
        return max((self._of(compared) for compared in comparison.compared), key=_WORST.index, default=0)

    def _of(self, compared: Row) -> int:
        """Decide by the interval of the ratio where the condition has a percentage, else by the answer."""
        if self.answer == "undecided" or not self.least:
            undecided = UNDECIDED if compared.answer == "undecided" else 0
            return FAILED if compared.answer == self.answer else undecided
        low, high = compared.ratio.low, compared.ratio.high
        if low is None or high is None:
            return UNDECIDED
        ends = (low - 1, high - 1) if self.answer == "slower" else (1 - high, 1 - low)
        return FAILED if ends[0] >= self.least else UNDECIDED if ends[1] >= self.least else 0


_WORST = (0, UNDECIDED, FAILED)
_GATES = {0: "passed", UNDECIDED: "UNDECIDED", FAILED: "FAILED"}


def compare(options: Compare) -> int:
    """Print run B, or A's other variants, against run A, and return the exit code.

    It is 1 if a condition of `fail_if` holds, 6 if that is undecided or no case was compared.
    """
    a, b = run_folder(options.a, options.reports), options.b and run_folder(options.b, options.reports)
    as_format = options.as_format
    if b is not None and a.resolve() == b.resolve():
        raise UsageError(
            f"A and B are the same run, {a}; name another run: SUITE~1 is the one before the newest"
        )
    conditions = [condition(text) for text in options.fail_if or ()]
    least = _relevant(options.relevant, conditions)
    comparison = compare_runs(load(a), load(b), least) if b else variants(load(a), least)
    code, why = _gate(comparison, conditions)
    if why:
        fail(why)
    if as_format == "json":
        print(to_json(comparison_document(comparison)))
    elif as_format == "terminal":
        comparison_sheet(comparison).print(new_console())
    else:
        print(comparison_sheet(comparison).render(as_format, _GATES[code] if conditions else ""), end="")
    return code


def _gate(comparison: Comparison, conditions: Sequence[Condition]) -> tuple[int, str]:
    """Return the exit code by all conditions, and its reason where the answers of cases do not give it."""
    code = max((each.outcome(comparison) for each in conditions), key=_WORST.index, default=0)
    if conditions and not comparison.compared:
        why = next((f": {each.label}: {each.reason}" for each in comparison.missing), "")
        return code or UNDECIDED, f"undecided: no case was compared{why}"
    vague = "undecided: the intervals include what --fail-if names; more launches would decide"
    return code, vague if code == UNDECIDED else ""


def condition(text: str) -> Condition:
    """Read a condition such as "slower:3%" or "missing"."""
    found = _CONDITION.fullmatch(text)
    if found is None or found["answer"] not in _CONDITIONS:
        raise UsageError(
            f"--fail-if: expected slower, faster, undecided or missing, the first two also with a percentage "
            f"as in slower:3%, got '{text}'"
        )
    if found["percent"] and found["answer"] not in ("slower", "faster"):
        raise UsageError(f"--fail-if: {found['answer']} has no percentage, got '{text}'")
    return Condition(answer=found["answer"], least=float(found["percent"] or 0) / 100)


def _relevant(text: str | None, conditions: Sequence[Condition]) -> float:
    """Return the least difference that matters: as asked, else the least that is to fail, else the usual."""
    if text is not None:
        return percentage("--relevant", text)
    return min((condition.least for condition in conditions if condition.least), default=RELEVANT)
