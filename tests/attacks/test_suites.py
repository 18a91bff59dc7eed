"""Suites, profiles of sites, references and options that are anything: one message, soon, with its place."""

import json
import re
import time
from contextlib import contextmanager
from cProfile import Profile
from pathlib import Path

import pytest
import yaml
from mutations import TEXTS, as_yaml, mutated, mutated_bytes, value
from patience import check_spent

from pscale.cli.costs import memory_fits
from pscale.errors import LaunchError, PlanError, PscaleError, SuiteError
from pscale.launch import machine
from pscale.suite.expand import expand
from pscale.suite.fields import LEAVES, fields_of
from pscale.suite.file import File
from pscale.suite.load import find_site, load_references, load_suite
from pscale.suite.network import read_network
from pscale.training.prediction import predict

SOON_S = 2.0  # of CPU time
MACHINE = {"cores": 4.0, "cores_per_node": 4.0, "memory_gib": 16.0, "nodes": 1.0}
FIELDS = [
    *LEAVES,
    *fields_of(File),
    "workload.figures.time.regex",
    "workload.params.n",
    "launch.env.A",
    "sweep.zip.ranks",
    "model.kind",
    "data.kind",
    "plan.kind",
]
SUITE = """
name: attacked
title: A suite
scaling: weak
model: {kind: gpt, layers: 2, width: 64, heads: 4, sequence: 32}
data: {kind: text, source: python-stdlib}
train: {batch: 4, lr: 1.0e-3, clip: 1.0, steps: 4}
plan: {dp: ranks, bucket: 4MiB, matrix: {tx: 1}}
precision: {type: float32}
jitter: {mean: 1ms, ranks: [0]}
launch: {bind: core, time_limit: 10m, env: {A: b}, directives: ["--x"], omp: {places: cores}, scheduler: none}
sweep: {zip: {ranks: [1, 2], model.width: [64, 128]}, train.seed: [1, 2]}
exclude: ["ranks * threads > cores"]
base: "ranks == 1 and train.seed == 1"
expect: [{metric: efficiency, where: "ranks <= 2", at_least: 0.85}]
"""
MOE = """
name: attacked
scaling: strong
model: {kind: moe, layers: 2, width: 32, heads: 2, sequence: 16, experts: 4, top_k: 2}
train: {batch: 16, micro_batches: 2, optimizer: sgd, steps: 2}
plan: {dp: rest, pp: 1, tp: 1, cp: 1, ep: 2, checkpoint: full}
launch: {oversubscribe: true, scheduler: none}
repeat: auto
known_to: 3%
budget: 2m
sweep: {cases: [{ranks: 2}, {ranks: 4, zero: 1}]}
"""
SITES = """
here: {hosts: ["*"], poll: 1s, nodes: 2, cores_per_node: 4, launch: {env: {A: b}, partition: x}}
other: {hosts: [a, "b*"], launch: {bind: none}}
"""
REFERENCES = """
suite: attacked
expect: [{metric: step_s, case: 1 rank, value: 0.1, upper: 0.2, unit: s}, {metric: efficiency, at_least: 0.5}]
"""
NETWORK = """
tiers:
- {name: node, ranks: 8, latency: 2us, bandwidth: 10GB/s}
- {name: leaf, ranks: 64, latency: 5us, bandwidth: 100Gbit/s, oversubscription: 2}
algorithms: {all_reduce: ring}
"""
LINKS = "{dp: {latency: 5us, bandwidth: 10GB/s}, tp+cp: ideal}"


def answer(act, place):
    """Return what an attempt ends with, and check that it is the message of a mistake, and there soon."""
    found, begun_s = None, time.process_time()
    try:
        act()
    except PscaleError as error:
        found = error
    check_spent(begun_s, SOON_S)
    if found is not None:
        assert found.exit_code in {2, 3, 4}
        lines = str(found).splitlines() if isinstance(found, SuiteError) else [str(found)]
        assert isinstance(found, LaunchError) or unplaced(lines, place) == []
    return found


def unplaced(lines, place):
    """Return the lines of a message that name neither a line of the file nor an option."""
    placed = re.compile(rf"{re.escape(str(place))}:[1-9][0-9]*: |--(set|only|site|what-if)\b|and \d+ more$")
    return [line for line in lines if not placed.match(line)]


def attempt(path, options=(), only=None):
    """Do what `pscale show` does, of the first case alone."""
    suite = load_suite(path, options)
    json.dumps(suite.resolved)
    cases = expand(suite, MACHINE, only).cases[:1]
    for fit in memory_fits(cases, machine.inspect()).values():
        predict(fit.case)
        assert fit.fullest.total_bytes >= 0


def attacks(text, fields, draw, count, first=0):
    """Yield bytes of files that differ from a good one, in what it says or as bytes."""
    document = yaml.safe_load(text)
    for number in range(first, first + count):
        if number % 3:
            yield as_yaml(mutated(document, fields, draw), draw).encode()
        else:
            yield mutated_bytes(text.encode(), draw)


SHIPPED = [path.read_text() for path in sorted((Path(__file__).parents[2] / "suites").rglob("*.yaml"))]


def test_whatever_a_suite_is_made_to_say_showing_it_answers_with_its_place_and_soon(pscale, tmp_path, attack):
    path, refused, count = tmp_path / "suite.yaml", 0, attack.times(270)
    for _ in range(count):
        text = attack.draw.choice([SUITE, MOE, attack.draw.choice(SHIPPED)])
        (raw,) = attacks(text, FIELDS, attack.draw, 1, attack.draw.randrange(3))
        path.write_bytes(raw)
        try:
            begun_s = time.process_time()
            code, _, err = pscale("show", path)
            assert code in {0, 2, 3}
            if code:
                check_spent(begun_s, SOON_S)
            lines = err.removeprefix("pscale: ").splitlines()[: 1 if code == 3 else None]  # then advice
            assert code == 0 or unplaced(lines, path) == []
        except BaseException as error:
            error.add_note(f"of the document:\n{raw[:3000]!r}")
            raise
        refused += code != 0
    assert refused > count / 3
    assert [each.name for each in tmp_path.iterdir()] == ["suite.yaml"], "nothing is written"


def _tried(act, path, raw):
    try:
        return answer(act, path) is not None
    except BaseException as error:
        error.add_note(f"of the document:\n{raw[:3000]!r}")
        raise


def test_whatever_the_files_of_a_site_or_of_references_say_the_answer_is_its_place(tmp_path, attack):
    sites, references = tmp_path / "sites.yaml", tmp_path / "references.yaml"
    names = ["here.launch.bind", "here.nodes", "here.hosts", "other.poll", "here", "kind"]
    for raw in attacks(SITES, names, attack.draw, attack.times(80)):
        sites.write_bytes(raw)
        _tried(lambda: find_site(None, tmp_path, "host"), sites, raw)
    names = ["suite", "expect", "expect.metric", "kind"]
    for raw in attacks(REFERENCES, names, attack.draw, attack.times(80)):
        references.write_bytes(raw)
        _tried(lambda: load_references(references), references, raw)


def test_whatever_an_option_says_the_answer_names_it(tmp_path, attack):
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    for _ in range(attack.times(80)):
        name = attack.draw.choice([*FIELDS, *TEXTS, "sweep.ranks", "sweep"])
        what = attack.draw.choice([attack.draw.choice(TEXTS), as_yaml(value(attack.draw), attack.draw)])
        option = mutated_bytes(f"{name}={what}".encode(errors="replace"), attack.draw).decode(
            errors="replace"
        )
        _tried(lambda: attempt(path, [option]), path, option)  # noqa: B023 - called at once
        condition = attack.draw.choice(["ranks == 1", "ranks <= 2 and width in [64]"]).encode()
        only = mutated_bytes(condition, attack.draw).decode(errors="replace")
        _tried(lambda: attempt(path, (), only), path, only)  # noqa: B023 - called at once


def test_whatever_a_network_says_the_answer_is_its_place(tmp_path, attack):
    path, count = tmp_path / "network.yaml", attack.times(80)
    for raw in attacks(NETWORK, ["tiers.name", "algorithms.all_reduce", "kind"], attack.draw, count):
        path.write_bytes(raw)
        _tried(lambda: read_network(str(path)), path, raw)
    lines = [
        raw.decode(errors="replace") for raw in attacks(LINKS, ["tp.latency", "all"], attack.draw, count)
    ]
    for line in ["[" * 5_000, "all: &a {b: *a}", *lines]:
        _tried(lambda: read_network(line), path, line)  # noqa: B023 - called at once


TOP = "name: large\nscaling: weak\n"
HEAD = f"{TOP}launch: {{oversubscribe: true, scheduler: none}}\n"
LARGE = {  # what takes long if anything is looked at more than once
    "a list": "sweep: {ranks: [" + "1," * 250_000 + "1]}",
    "different numbers": "sweep: {ranks: [" + ",".join(map(str, range(1, 9_000))) + ", 1]}",
    "cases": "sweep: {cases: [" + ",".join(f"{{seed: {n}}}" for n in range(5_000)) + ", {seed: 1}]}",
    "wrong cases": "sweep: {zip: {model.width: [" + ",".join(map(str, range(3, 2_000))) + "]}}",
    "unknown fields": "".join(f"k{n}: 1\n" for n in range(9_000)),
    "wrong demands": "expect: [" + "{metrc: efficiency}," * 4_000 + "]",
    "comments": "#\n" * 200_000 + "x: 1",
    "empty lines": "\n" * 400_000 + "x: 1",
    "a long text": "title: " + "x" * 400_000,
    "escapes": 'title: "' + "\\x41" * 100_000 + '"',
    "a text without end": "title: '" + "''" * 200_000,
    "directives": "...\n" + "%A b\n" * 80_000,
    "lists in lists": "x: " + "[" * 200_000,
    "groups in groups": "x: " + "{a: " * 10_000,
    "items in items": "x:\n" + "- " * 100_000,
    "anchors": "x: " + "&a " * 100_000,
    "ten megabytes": "x: " + "y" * 10_000_000,
    "a time": f"{TOP}launch: {{time_limit: " + "1" * 9_990 + "m}",
    "a size": "plan: {bucket: " + "1" * 9_990 + "MiB}",
    "a degree": "plan: {tp: " + "r" * 9_990 + "}",
    "an expression": "plan: {tp: '=" + "(" * 9_000 + "'}",
    "a word of a list": f"{TOP}launch: {{bind: " + "c" * 9_990 + "}",
    "a pattern of files": "data: {kind: text, source: '" + "/*" * 6 + "'}",
    "a deep pattern of files": "data: {kind: text, source: '" + "/**" * 6 + "/x'}",
    "a long name of a file": "data: {kind: text, source: " + "a" * 5_000 + "}",
    "a long name of a suite": "extends: " + "a" * 5_000,
    "a long name of a program": "workload: {command: " + "a" * 5_000 + "}",
    "a long path of a program": "workload: {command: ./" + "a" * 5_000 + "}",
    "too many layers": "model: {kind: gpt, layers: 1000000000}",
    "too wide": "model: {kind: gpt, width: 1000000000, heads: 1}",
    "too long": "model: {kind: gpt, sequence: 1000000000}",
    "too many sequences": "model: {kind: block}\ntrain: {batch: 1000000000}",
    "too many micro-batches": "model: {kind: block}\ntrain: {batch: 1000000000, micro_batches: 1000000000}",
    "too many ranks": "ranks: 1000000000",
}


@pytest.mark.parametrize("name", LARGE)
def test_no_suite_takes_long_to_refuse(tmp_path, name):
    path = tmp_path / "large.yaml"
    text = LARGE[name]
    path.write_text(text if text.startswith((TOP, "...")) else HEAD + text)
    refused = answer(lambda: attempt(path), path)
    assert isinstance(refused, SuiteError | PlanError)
    assert "given twice" not in str(refused), "it is read"


@contextmanager
def counted():
    """Count the calls of Python and C functions, which no other work on the machine changes."""
    calls = Profile()
    calls.enable()
    try:
        yield calls
    finally:
        calls.disable()


WRONG = {  # cases of which each is wrong, at most three of them at one place
    "sizes": "sweep: {zip: {model.width: [" + ",".join(map(str, range(1_003, 2_003))) + "]}}",
    "plans": f"sweep: {{ranks: [3], plan.dp: [2], train.seed: {[*range(1_000)]}}}",
    "expressions": f"plan: {{tp: '=ranks / (ranks - ranks)'}}\nsweep: {{ranks: {[*range(1, 1_001)]}}}",
    "the last one": f"plan: {{bucket: '=1000 - ranks'}}\nsweep: {{ranks: {[*range(1, 1_001)]}}}",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_thousand_wrong_cases_are_refused_with_little_work_and_few_words(tmp_path, name):
    path = tmp_path / "wrong.yaml"
    path.write_text(HEAD + WRONG[name])
    suite = load_suite(path)
    with counted() as calls, pytest.raises((SuiteError, PlanError)) as refused:
        expand(suite, MACHINE)
    assert sum(entry.callcount for entry in calls.getstats()) < 2_500 * 1_000
    assert len(str(refused.value).splitlines()) <= 52
