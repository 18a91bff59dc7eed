"""Texts that want to be more: control characters, markup, formulas, other directions, and secrets."""

import json
import os
import re
import shutil
import xml.etree.ElementTree as ET

import fake_scheduler
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from login_node import SITE
from noop_runs import make_suite
from recordings import record_of
from synthetic import Point, write_run

from pscale.worker.environment import software

EVIL = (
    "=cmd|' /C calc'!A0 +1 @SUM(1) \x00\x1b[2J\x1b]8;;http://evil\x07\x9b31m\r\x08\x7f\u202e\u2066\u2028 "
    "<img src=x onerror=alert(1)></script><script>alert(1)</script> ]]> &lt; [a](javascript:alert) "
    "[red]x[/red] ![b](http://c) @everyone `id` $(id) {{7*7}} {0.__class__} %s \\input{/etc/passwd} "
    "\\write18{id} $x$ _~^# ::error:: |\n# x\n- y"
)
HALF = "\ud800"  # of a character, which JSON can hold and no file
DIRECTIONS = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\u2028", "\u2029"}
SECRETS = (
    *("SLURM_JWT", "OMPI_MCA_AUTH_TOKEN", "OMP_API_KEY", "FI_SECRET", "UCX_PASSWORD", "MPICH_Key"),
    *("OMP_DB_PASS", "UCX_PWD", "FI_CRED", "I_MPI_PW", "SLURM_MINE", "PBS_O_MINE", "LSB_MINE", "FLUX_MINE"),
    *("OMP_MINE", "MKL_MINE", "OPENBLAS_MINE", "PMIX_MINE", "A_PASS_NUM_THREADS", "SLURM_JOB_ACCOUNT"),
)
SECRET_VALUES = {
    "I_MPI_PROXY": "https://user:hunter2@host",
    "UCX_NET_DEVICES": "user:hunter2@host",
    "FI_PROVIDER": "verbs;ghp_hunter2",
    "MPIR_CVAR_NAME": "hunter2" * 5,
}


@pytest.fixture
def hostile(poisoned, tmp_path):
    return shutil.copytree(poisoned, tmp_path / "runs" / "run")


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    """A run in which every text that is free to be anything is evil."""
    points = [
        Point(
            ranks=ranks,
            series=series,
            label=f"{EVIL} {ranks}",
            hosts=(EVIL, EVIL + "2"),
            transfer_s=0.01,
            losses=[2.0, 1.0],
            rank_row={"blas_version": EVIL, "blas_library": EVIL, "blas_architecture": EVIL},
        )
        for series in ("=a", EVIL)
        for ranks in (1, 2)
    ]
    points.append(Point(ranks=4, status="failed", reason=EVIL, label=EVIL))
    cases = [points[1].case.id]
    expect = [{"metric": "efficiency", "where": "ranks == 2", "at_least": 2.0, "cases": cases, "case": EVIL}]
    run = write_run(
        tmp_path_factory.mktemp("hostile") / "run", points, title=EVIL, expect=expect, joined=False
    )
    file = run / "run.json"
    document = json.loads(file.read_text())
    document["run"] = EVIL + HALF
    facts = dict.fromkeys(["kernel", "python", "git", "packages", "environment"], EVIL)
    facts |= {"packages": {EVIL: EVIL}, "environment": {EVIL: EVIL}, "git": {"commit": EVIL, "dirty": True}}
    machine = {**document.get("provenance", {}).get("machine", {}), "host": EVIL, "cpu_model": EVIL}
    file.write_text(json.dumps({**document, "site": EVIL, "provenance": {**facts, "machine": machine}}))
    return run


@pytest.fixture(scope="module")
def traced(with_events, tmp_path_factory):
    """A traced run whose labels, hosts and facts are evil."""
    run = shutil.copytree(with_events, tmp_path_factory.mktemp("traced") / "run")
    document = json.loads((run / "run.json").read_text())
    for case in document["cases"]:
        case |= {"label": EVIL + HALF + case["label"], "series": EVIL + HALF}
    document["suite"] |= {"title": EVIL + HALF, "given": EVIL}
    facts = {"kernel": EVIL, "packages": {EVIL: EVIL}, "machine": {"host": EVIL, "cpu_model": EVIL + HALF}}
    document |= {"run": EVIL, "site": EVIL, "provenance": facts, "warnings": [EVIL], "notes": [EVIL]}
    (run / "run.json").write_text(json.dumps(document))
    for part in (run / "data").iterdir():
        table = pq.read_table(part)
        for name in {"host", "cpus", "blas", "blas_version", "reason", "label"} & {*table.column_names}:
            if part.name.startswith("events"):  # whose labels have numbers
                continue
            place = table.column_names.index(name)
            texts = [EVIL if text is None else EVIL + text for text in table[name].to_pylist()]
            table = table.set_column(place, table.schema.field(name), pa.array(texts))
        pq.write_table(table, part)
    return run


@pytest.fixture
def record(tmp_path):
    """What a program has recorded whose names are evil."""
    folder = record_of(tmp_path / "record")
    for facts in folder.glob("facts.*"):
        evil = re.sub(r"[\r\n]", "", EVIL)
        text = facts.read_text().replace("host node", f"host {evil}").replace("halo", f"halo {evil}")
        facts.write_text(text.replace("library MPICH", f"library MPICH {evil}"))
    return folder


def evil_letters(text):
    """Return the characters that a terminal or a reader would not show but obey."""
    return {
        letter
        for letter in text
        if letter in DIRECTIONS or (not letter.isprintable() and letter not in "\n\t")
    }


COMMANDS = (
    *(("report", "RUN", "--full", "--plot", "--no-figures"), ("report", "RUN", "--figure-format", "svg")),
    *(("report", "RUN", "-f", name) for name in ("md", "html", "json", "csv", "latex")),
    *(("compare", "RUN", "OTHER", "-f", name) for name in ("terminal", "md", "json", "csv", "latex")),
    *(("check", "RUN", "--junit", "junit.xml"), ("check", "RUN", "--update"), ("check", "RUN", "--json")),
    *(("status", "RUN"), ("list", "--reports", "RUNS"), ("list", "--reports", "RUNS", "--json")),
)


FROM = ("--from", "RUN", "--any-machine")
OF_TRACED = (
    *(("trace", "RUN"), ("trace", "RUN", "-o", "-"), ("trace", "RUN", "--figure", "step.svg")),
    *(("export", "RUN", "-f", name) for name in ("chakra", "goal", "otf2", "extrap")),
    *(
        ("predict", "weak", "--from", "RUN", "--any-machine", *more)
        for more in ((), ("--ranks", "2", "--json"))
    ),
    ("advise", "weak", *FROM, "--ranks", "2", "--measure", "0"),
    *(("history", "-f", name) for name in ("terminal", "html", "md", "json", "csv", "latex")),
    *(("history", "--check"), ("history", "--accept", EVIL, "--case", "x")),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_text_of_a_run_is_obeyed_by_whatever_reads_it(pscale, hostile, tmp_path, command):
    other = shutil.copytree(hostile, tmp_path / "other")
    code, out, err = called(pscale, command, RUN=hostile, OTHER=other, RUNS=hostile.parent)
    assert code in {0, 1, 6}, err
    look(tmp_path, command, out, err)


@pytest.mark.parametrize("command", OF_TRACED, ids=lambda command: " ".join(command)[:40])
def test_no_text_of_a_traced_run_or_a_history_is_obeyed(pscale, traced, tmp_path, command):
    if command[0] == "history":
        added = ("history", "add", "RUN")
        look(tmp_path, added, *called(pscale, added, RUN=traced)[1:])
    code, out, err = called(pscale, command, RUN=traced)
    assert code == {"--accept": 2, "--check": 6}.get(command[1], 0), err
    look(tmp_path, command, out, err)


def test_no_text_of_a_program_that_was_watched_is_obeyed(pscale, record, tmp_path):
    command = ("watch", "--read", record)
    code, out, err = pscale(*command)
    assert code == 0, err
    look(tmp_path, command, out, err)


def called(pscale, command, **places):
    return pscale(*(places.get(word, word) for word in command))


def look(folder, command, out, err):
    """Look for what is obeyed in what a command has said and written."""
    assert (evil_letters(out), evil_letters(err)) == (set(), set())
    kinds = {".html", ".svg", ".md", ".csv", ".tex", ".xml", ".yaml", ".goal"}
    files = [path for path in folder.rglob("*") if path.suffix in kinds or path.name.startswith("trace")]
    for name, text in [("output", out), *((path.name, path.read_text()) for path in files)]:
        assert evil_letters(text) == set(), name
        if name.endswith((".html", ".svg", ".md")) or "md" in command:
            assert not re.search(r"<img|</script><script|alert\(1\)</script>", text), name
        if name.endswith(".md") or "md" in command:
            assert not re.search(r"[^\\]\]\(javascript", text), name
        if "latex" in command:
            lines = [line for line in text.splitlines() if not line.startswith("%")]
            assert not re.search(r"\\(input|write18)\b", "\n".join(lines)), name
        if name.endswith(".csv") or ("csv" in command and name == "output" and command[0] == "history"):
            assert not re.search(r'(^|,)"?[=@]', text, re.MULTILINE), name
        if name.endswith((".svg", ".xml")):
            ET.fromstring(text)
    if {"json", "--json"} & set(command) or "-" in command:
        json.loads(out)


YAML = json.dumps(EVIL.replace("\0", ""))  # which it does not allow
SUITE = f"""
name: evil
title: {YAML}
scaling: throughput
data: {{kind: synthetic}}
launch: {{oversubscribe: true, env: {{A: {YAML}}}, scheduler: none}}
sweep: {{launch.env.B: [{YAML}, b]}}
"""


@pytest.mark.parametrize(
    "options", [(), ("--json",), ("--memory",), ("--only", EVIL), ("--set", f"title: {EVIL}")]
)
def test_no_text_of_a_suite_is_obeyed_by_a_terminal(pscale, tmp_path, options):
    (tmp_path / "evil.yaml").write_text(SUITE)
    code, out, err = pscale("show", "evil.yaml", *options)
    assert code == (2 if "--only" in options or "--set" in options else 0), err
    assert (evil_letters(out), evil_letters(err)) == (set(), set())


def test_secrets_of_the_environment_are_told_and_stored_nowhere(
    pscale, with_events, record, tmp_path, monkeypatch
):
    for name in SECRETS:
        monkeypatch.setenv(name, "hunter2")
    for name, value in SECRET_VALUES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_DISPLAY_ENV", "seen")
    slurm = fake_scheduler.install(tmp_path.with_name(f"{tmp_path.name}-slurm"), "slurm")
    monkeypatch.setenv("PATH", f"{slurm}:{os.environ['PATH']}")
    make_suite(tmp_path)
    (tmp_path / "sites.yaml").write_text(f"{SITE}  nodes: 4\n  cores_per_node: 2\n")
    submitted = ("run", "noop.yaml", "--new", "--set", "launch.scheduler=slurm")
    for command in (
        ("run", "noop.yaml", "--no-report", "--record"),
        (*submitted, "--dry-run"),
        (*submitted, "--detach"),
        ("run", "noop.yaml", "--new", "--set", "launch.launcher=env"),
        ("watch", "--read", record),
        ("predict", "weak", "--from", with_events, "--any-machine", "--ranks", "2"),
        ("report", with_events, "-f", "json"),
    ):
        code, *said = pscale(*command)
        assert (command, code) == (command, 4 if "launch.launcher=env" in command else 0), said
        assert "hunter2" not in "".join(said)
    stored = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"OMP_DISPLAY_ENV" in path.read_bytes() for path in stored), "what matters is kept"
    assert any(b"#SBATCH" in path.read_bytes() for path in stored), "jobs are among it"
    assert [path for path in stored if b"hunter2" in path.read_bytes()] == []
    assert "hunter2" not in json.dumps(software())
    assert "seen" in json.dumps(software())
