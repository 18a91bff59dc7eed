"""Examples below the help of every command: what one types, and what for."""

from __future__ import annotations

import os

_EXAMPLES = {
    "doctor": (("pscale doctor", "is this machine fit for measuring?"),),
    "suites": (("pscale suites", "what is ready to run"),),
    "init": (("pscale init weak wide.yaml", "copy the suite weak to wide.yaml, to edit"),),
    "show": (
        ("pscale show weak", "cases and their costs"),
        ("pscale show weak --set model.width=512", "the same, wider"),
        ("pscale show pipeline --schedule", "work of each stage"),
    ),
    "run": (
        ("pscale run weak strong", "measure and report"),
        ("pscale run weak --only 'ranks <= 2'", "some cases"),
        ("pscale run weak --set inject.delay=10ms", "with a slow rank"),
    ),
    "scale": (
        ("pscale scale -- ./mine 800", "strong scaling"),
        ("pscale scale --weak -- ./mine '{800 * ranks}'", "weak scaling"),
        ("pscale scale --set n=4,8 -- python mine.py '{n}'", "two series"),
        ("pscale scale --save mine.yaml -- ./mine 800", "the suite, to edit"),
    ),
    "import": (
        ("pscale import table.csv --ranks P --time 'Time [s]'", "a table of launches"),
        ("pscale import t.csv --ranks P --time T --param n=N", "a series for each n"),
    ),
    "status": (("pscale status --watch", "launches and jobs until the run has finished"),),
    "cancel": (("pscale cancel reports/weak/RUN", "finished launches are kept"),),
    "list": (("pscale list --suite weak -n 5", "the five newest runs of a suite"),),
    "predict": (
        ("pscale predict weak --from RUN --ranks 64,4096", "on more ranks"),
        ("pscale predict weak --from RUN --network cluster.yaml", "on another network"),
        ("pscale predict weak --from RUN --probe 30s", "at new shapes"),
        ("pscale predict weak --from RUN --tokens 300B --price 2", "time and cost"),
    ),
    "advise": (
        ("pscale advise strong --from RUN --ranks 8", "the 5 best, measured"),
        ("pscale advise strong --from RUN --ranks 64 --measure 0", "only predicted"),
    ),
    "report": (
        ("pscale report", "the newest run in brief"),
        ("pscale report --full", "with all tables"),
        ("pscale report --what-if 'all: {latency: 5us}'", "on another network"),
        ("pscale report --format csv reports/weak/RUN", "for other programs"),
    ),
    "compare": (
        ("pscale compare A B --fail-if slower:3%", "two runs; exit code 1 if B is slower"),
        ("pscale compare A", "the variants of one run"),
    ),
    "check": (
        ("pscale check --junit results.xml", "do its expectations hold?"),
        ("pscale check --update --reference nightly.yaml", "keep references"),
    ),
    "history": (
        ("pscale history add", "add the newest run"),
        ("pscale history weak", "what became slower, and when"),
        ("pscale history weak --check", "exit code 1 if the newest is worse"),
        ("pscale history weak --accept 'new MPI'", "the new speed is normal from now on"),
    ),
    "trace": (("pscale trace --steps 3-5 -o trace.json.gz", "for ui.perfetto.dev"),),
    "export": (
        ("pscale export --format goal", "the newest run for LogGOPSim"),
        ("pscale export RUN --format chakra --steps 0-3", "some steps for ASTRA-sim"),
        ("pscale export RUN --format extrap", "all launches for Extra-P"),
    ),
    "watch": (
        ("pscale watch -n 4 -- ./a.out --size 100", "any MPI program"),
        ("pscale watch -n 2 -- python train.py", "or a Python program"),
    ),
    "verify": (("pscale verify strategies", "every plan equals the serial program"),),
    "schema": (("pscale schema > suite.schema.json", "completion and checks in an editor"),),
}


def epilog(command: str) -> str:
    """Return the examples of a command, a line each; as paragraphs where help is plain, which joins lines."""
    width = max(len(typed) for typed, _ in _EXAMPLES[command])
    lines = (f"{typed:<{width}}  # {purpose}" for typed, purpose in _EXAMPLES[command])
    return ("\n\n" if os.environ.get("NO_COLOR") else "\n").join(("Examples:", *lines))


def examples_of(command: str) -> tuple[tuple[str, str], ...]:
    """Return what one may type, each with its purpose."""
    return _EXAMPLES[command]
