"""Several runs as one, each case with the name of its run: what is said and drawn of one is of all then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from pscale.analysis.frames import CASE_TABLES, Run


def overlay(runs: Sequence[Run], path: Path) -> Run:
    """Return one run with the cases of all, a series of its own for each series of each run.

    `path` is where its report goes. Suites may differ; what they are is said in the notes.
    """
    names = _names(runs)
    marked = [_marked(run, name) for run, name in zip(runs, names, strict=True)]
    first = marked[0]
    suites = list(dict.fromkeys(str(run.suite.get("name", "")) for run in runs))
    titles = list(dict.fromkeys(str(run.suite.get("title") or run.suite.get("name", "")) for run in runs))
    notes = [f"{name}: {gap}" for name, run in zip(names, runs, strict=True) for gap in run.gaps]
    if len(suites) > 1:
        notes.append(f"The runs are of different suites: {', '.join(suites)}. Compare only equal cases.")
    return replace(
        first,
        path=path,
        document={
            **first.document,
            "run": " + ".join(names),
            "suite": {**first.suite, "name": "+".join(suites), "title": " / ".join(titles)},
            "cases": [case for run in marked for case in run.document["cases"]],
            "expect": [entry for run in marked for entry in run.document["expect"]],
            "auto": first.document.get("auto")
            if len({str(r.document.get("auto")) for r in runs}) == 1
            else None,
            "provenance": {"machine": _machine(runs)},
        },
        cases=pd.concat([run.cases for run in marked], ignore_index=True),
        unclear=tuple(call for run in marked for call in run.unclear),
        pending=sum((run.pending for run in marked), Counter()),
        gaps=tuple(notes),
        origins={case: origin for run in marked for case, origin in run.origins.items()},
        **{table: _joined([getattr(run, table) for run in marked]) for table in CASE_TABLES},
    )


def _names(runs: Sequence[Run]) -> list[str]:
    """Return what to call each run: its name, or the path where names are the same."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _marked(run: Run, name: str) -> Run:
    """Return a run whose cases, labels and series bear its name."""

    def marked(case: str) -> str:
        return f"{case}@{name}"

    cases = run.cases.assign(
        case=run.cases["case"].map(marked),
        label=run.cases["label"].map(lambda label: _with(label, name)),
        series=run.cases["series"].map(lambda series: _with(series, name)),
    )
    planned = [
        {
            **case,
            "id": marked(case["id"]),
            "label": _with(case.get("label"), name),
            "series": _with(case.get("series"), name),
            "run": name,
        }
        for case in run.document["cases"]
    ]
    expect = [
        {**entry, "cases": [marked(case) for case in entry.get("cases") or run.planned]}
        for entry in run.document.get("expect") or []
    ]
    tables = {
        table: rows.assign(case=rows["case"].cat.rename_categories(marked))
        for table in CASE_TABLES
        for rows in [getattr(run, table)]
    }
    return replace(
        run,
        document={**run.document, "cases": planned, "expect": expect},
        cases=cases,
        unclear=tuple(call._replace(case=marked(call.case)) for call in run.unclear),
        pending=Counter({marked(case): count for case, count in run.pending.items()}),
        origins={marked(case): (run.path, case) for case in run.planned},
        **tables,
    )


def _with(text: Any, name: str) -> str:
    return f"{text} · {name}" if isinstance(text, str) and text else name


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return tables as one; texts that are categories stay so."""
    texts = {name: str for table in tables for name in table.columns if table[name].dtype == "category"}
    kept = dict.fromkeys(texts, "category")
    plain = [table.astype(dict.fromkeys(texts, object)) for table in tables if len(table)] or [tables[0]]
    return pd.concat(plain, ignore_index=True).astype(kept)


def _machine(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the machine of all; names joined where they differ, numbers left out."""
    found = [run.machine for run in runs]
    models = list(dict.fromkeys(str(machine["cpu_model"]) for machine in found if machine.get("cpu_model")))
    cores = {machine.get("cores") for machine in found}
    return {"cpu_model": " / ".join(models), **({"cores": cores.pop()} if len(cores) == 1 else {})}
