"""Texts that want to be more: control characters, markup, formulas, other directions, and secrets."""

import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from noop_runs import make_suite
from synthetic import Point, write_run

from pscale.worker.environment import software

EVIL = (
    "=cmd|' /C calc'!A0 +1 @SUM(1) \x1b[2J\x1b]8;;http://evil\x07\x9b31m\r\x08\x7f\u202e\u2066\u2028 "
    "<img src=x onerror=alert(1)></script><script>alert(1)</script> ]]> &lt; [a](javascript:alert) "
    "[red]x[/red] ![b](http://c) @everyone `id` $(id) {{7*7}} {0.__class__} %s \\input{/etc/passwd} "
    "\\write18{id} $x$ _~^# ::error:: |\n# x\n- y"
)
DIRECTIONS = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\u2028", "\u2029"}
SECRETS = ("SLURM_JWT", "OMPI_MCA_AUTH_TOKEN", "OMP_API_KEY", "FI_SECRET", "UCX_PASSWORD", "MPICH_Key")


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
    run = write_run(tmp_path_factory.mktemp("hostile") / "run", points, title=EVIL, expect=expect)
    file = run / "run.json"
    document = json.loads(file.read_text())
    facts = dict.fromkeys(["kernel", "python", "git", "packages", "environment"], EVIL)
    facts |= {"packages": {EVIL: EVIL}, "environment": {EVIL: EVIL}, "git": {"commit": EVIL, "dirty": True}}
    machine = {**document.get("provenance", {}).get("machine", {}), "host": EVIL, "cpu_model": EVIL}
    file.write_text(json.dumps({**document, "site": EVIL, "provenance": {**facts, "machine": machine}}))
    return run


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
    *(("compare", "RUN", "RUN", "-f", name) for name in ("terminal", "md", "json", "csv", "latex")),
    *(("check", "RUN", "--junit", "junit.xml"), ("check", "RUN", "--update"), ("check", "RUN", "--json")),
    *(("status", "RUN"), ("list", "--reports", "RUNS"), ("list", "--reports", "RUNS", "--json")),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_text_of_a_run_is_obeyed_by_whatever_reads_it(pscale, hostile, tmp_path, command):
    place = {"RUN": hostile, "RUNS": hostile.parent}
    code, out, err = pscale(*(place.get(word, word) for word in command))
    assert code in {0, 1, 6}, err
    assert (evil_letters(out), evil_letters(err)) == (set(), set())
    kinds = {".html", ".svg", ".md", ".csv", ".tex", ".xml", ".yaml"}
    files = [path for path in tmp_path.rglob("*") if path.suffix in kinds]
    for name, text in [("output", out), *((path.name, path.read_text()) for path in files)]:
        assert evil_letters(text) == set(), name
        if name.endswith((".html", ".svg", ".md")) or "md" in command:
            assert not re.search(r"<img|</script><script|alert\(1\)</script>", text), name
        if name.endswith(".md") or "md" in command:
            assert not re.search(r"[^\\]\]\(javascript", text), name
        if "latex" in command:
            lines = [line for line in text.splitlines() if not line.startswith("%")]
            assert not re.search(r"\\(input|write18)\b", "\n".join(lines)), name
        if name.endswith(".csv"):
            assert not re.search(r'(^|,)"?[=@]', text, re.MULTILINE), name
        if name.endswith((".svg", ".xml")):
            ET.fromstring(text)
    if {"json", "--json"} & set(command):
        json.loads(out)


SUITE = f"""
name: evil
title: {json.dumps(EVIL, ensure_ascii=True)}
scaling: throughput
data: {{kind: synthetic}}
launch: {{oversubscribe: true, env: {{A: {json.dumps(EVIL)}}}, scheduler: none}}
sweep: {{launch.env.B: [{json.dumps(EVIL)}, b]}}
"""


@pytest.mark.parametrize(
    "options", [(), ("--json",), ("--memory",), ("--only", EVIL), ("--set", f"title: {EVIL}")]
)
def test_no_text_of_a_suite_is_obeyed_by_a_terminal(pscale, tmp_path, options):
    (tmp_path / "evil.yaml").write_text(SUITE)
    code, out, err = pscale("show", "evil.yaml", *options)
    assert code == (2 if "--only" in options or "--set" in options else 0), err
    assert (evil_letters(out), evil_letters(err)) == (set(), set())


def test_secrets_of_the_environment_are_stored_nowhere(tmp_path, monkeypatch):
    for name in SECRETS:
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("OMP_DISPLAY_ENV", "seen")
    make_suite(tmp_path)
    run = [sys.executable, "-m", "pscale", "run", "noop.yaml", "--no-report"]
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True)
    stored = [path for path in Path(tmp_path).rglob("*") if path.is_file()]
    assert any(b"OMP_DISPLAY_ENV" in path.read_bytes() for path in stored), "what matters is kept"
    assert [path for path in stored if b"hunter2" in path.read_bytes()] == []
    assert "hunter2" not in json.dumps(software())
    assert "seen" in json.dumps(software())
