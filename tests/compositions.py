"""Suites that combine any options of the trainer, drawn by Hypothesis from the declarations of the fields.

A field that is added to a group joins by itself: `_USUAL` only makes it likely that sizes fit together.
"""

import re
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import get_args

import yaml
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from pydantic import ConfigDict, TypeAdapter, ValidationError
from warm_ranks import failure_of
from whole_runs import SMALL_TEXT

from pscale.cli.options import SuiteOptions
from pscale.cli.prepare import prepare
from pscale.cli.verify import proof
from pscale.config import Data, Model, Plan, Train
from pscale.config.axes import DEGREES, GRID_AXES
from pscale.config.choices import Number, Scaling, Text
from pscale.errors import PlanError, PscaleError, UsageError
from pscale.nn.counts import parameters
from pscale.suite.fields import LEAVES, field_at, fields_of, full_name, kinds_of
from pscale.suite.file import Precision
from pscale.suite.load import DATA_OF

MOST_RANKS = 8
MOST_REPAIRS = 12
GROUPS = {"model": Model, "data": Data, "train": Train, "plan": Plan, "precision": Precision}
AXES = {axis: f"plan.matrix.{axis}" if axis in GRID_AXES else f"plan.{axis}" for axis in DEGREES}
_USUAL = {  # small, and with many divisors; rates at which a training converges; words that are seldom
    "model.kind": (*kinds_of(Model), *("gpt", "moe") * 3),  # most options are for these
    "model.width": (16, 24, 32),
    "model.heads": (4, 2, 6, 3),
    "model.sequence": (8, 16, 12, 24),
    "model.vocabulary": (256, 260, 264),
    "model.layers": (2, 3, 4, 1),
    "model.experts": (4, 8, 6, 3),
    "model.message": (840, 1680, 512, 24),
    "data.source": (str(SMALL_TEXT),),
    "data.samples": (480, 10_000),
    "train.batch": (8, 4, 12, 6, 16),
    "train.lr": (1e-3, 1e-4, 1e-2),
    "train.lr_batch": (0, 8, 24, 100),
    "train.beta2": (0.95, 0.9, 0.99),  # at 0 rates are divided by single gradients, rounding and all
    "train.seed": (1, 2, 3, 2**32 - 1),
    "train.save.folder": ("",),
    "train.load": ("",),
    "plan.bucket": (4096, 1, 30_000),
    "plan.offload_folder": ("", "/tmp"),
    "precision.type": ("float64", "float32", "bf16", "fp16", None, "float64"),
}
_NONSENSE = (
    *(None, "", "nonsense", True, 0, -1, 7, 10**9, 10**30, 0.5, -0.5, 1e300, float("nan"), float("inf")),
    *([], [1, 2], {}, {"kind": "x"}, "=ranks", "=2 * ranks", "=1 / 0", "=ranks +", "rest", "4MiB", "10%"),
)
_USUAL_FIELDS = ("model.layers", "model.width", "model.heads", "model.sequence", "model.vocabulary")


@cache
def values_of(leaf):
    """Return a strategy for the values of a field: usual ones, else what its declaration allows."""
    if leaf in _USUAL:
        return st.sampled_from(_USUAL[leaf])
    field = field_at(leaf)
    words, marks = _parts(field.hint)
    texts = [mark.pattern for mark in marks if isinstance(mark, Text)]
    if texts:
        return st.from_regex(texts[0], fullmatch=True)
    default = field.job_default
    near = [default * factor for factor in (1, 2, 0.5)] if isinstance(default, float) else [default]
    candidates = [*near, *words, True, False, *range(1, 7), 0, 0.5, 0.1]
    fits = [value for value in candidates if _is_valid(leaf, value)]
    return st.sampled_from(list({repr(value): value for value in fits}.values()))


def _parts(hint):
    """Return the words and the marks of an annotation, wherever in it they are."""
    words, marks = [], [*getattr(hint, "__metadata__", ())]
    words += [word for mark in marks if isinstance(mark, Number) for word, _ in mark.words]
    for part in get_args(hint):
        inner = _parts(part) if not isinstance(part, str) else ([part], [])
        words, marks = words + inner[0], marks + inner[1]
    return words, marks


def _is_valid(leaf, value):
    try:
        _adapter(leaf).validate_python(value)
    except ValidationError:
        return False
    return True


@cache
def _adapter(leaf):
    hint = field_at(leaf).hint
    return TypeAdapter(hint, config=None if is_dataclass(hint) else ConfigDict(strict=True))


@st.composite
def compositions(draw):
    """Draw a suite of one case by the dotted names of its fields; it may be impossible."""
    assume(draw(st.integers(0, 2**32)))  # else the first draw is always the simplest
    ranks = draw(st.integers(1, MOST_RANKS))
    kind = draw(values_of("model.kind"))
    data = draw(st.sampled_from([DATA_OF[kind], DATA_OF[kind], "synthetic"]))
    chosen = {"scaling": draw(st.sampled_from(get_args(Scaling))), "ranks": ranks}
    chosen |= {"model.kind": kind, "data.kind": data} | _degrees(draw, ranks)
    own_kind = {"model": kind, "data": data}
    for leaf in LEAVES:
        group, name = leaf.split(".")[0], leaf.rpartition(".")[2]
        if leaf in chosen or group not in GROUPS or leaf in AXES.values():
            continue
        if group in own_kind and name not in fields_of(GROUPS[group], own_kind[group]):
            continue
        if leaf in _USUAL or draw(st.integers(0, 2)) == 2:
            chosen[leaf] = draw(values_of(leaf))
    if draw(st.integers(0, 4)) == 4:
        wrong = draw(
            st.sampled_from([*(leaf for leaf in LEAVES if leaf.split(".")[0] in GROUPS), "plan.unknown"])
        )
        chosen[wrong] = draw(st.sampled_from(_NONSENSE))
    return chosen


def _degrees(draw, ranks):
    """Deal the prime factors of `ranks` out to up to three axes, dp among them by what is left."""
    axes = draw(st.lists(st.sampled_from(DEGREES), max_size=3, unique=True))
    degrees = dict.fromkeys(axes, 1)
    for factor in _prime_factors(ranks) if axes else ():
        degrees[draw(st.sampled_from(axes))] *= factor
    return {AXES[axis]: degree for axis, degree in degrees.items()}


def _prime_factors(number):
    for factor in range(2, number + 1):
        if number % factor == 0:
            return [factor, *_prime_factors(number // factor)]
    return []


def text_of(values):
    """Write a composition as a suite."""
    document = {"name": "composition"}
    for leaf, value in values.items():
        *groups, name = leaf.split(".")
        holder = document
        for group in groups:
            holder = holder.setdefault(group, {})
        holder[name] = value
    document["launch"] = {"oversubscribe": True}
    return yaml.safe_dump(document, sort_keys=False)


def prepared(values, folder):
    """Return the case of a composition, and nothing; or why it is refused, which has to be clear."""
    path = Path(folder, "composition.yaml")
    text = text_of(values)
    path.write_text(text, encoding="utf-8")
    try:
        suite = prepare(path, SuiteOptions(), submits=False)
        too_large = [*suite.refused.values()]
    except PscaleError as refusal:
        if isinstance(refusal, UsageError | PlanError) and re.match(r"\S+\.yaml:\d+: \S", str(refusal)):
            return None, str(refusal)
        refusal.add_note(text)
        raise
    except Exception as error:
        error.add_note(text)
        raise
    return (None, too_large[0]) if too_large else (suite.cases[0], "")


def repaired(values, folder):
    """Return the case that is left of a composition when each refusal has been heeded, and its values.

    What a refusal suggests is done; where it suggests nothing or is repeated, the field that it names goes.
    No case: too much is wrong, or what it needs is more than this machine has.
    """
    refusals = []
    for _ in range(MOST_REPAIRS):
        case, refusal = prepared(values, folder)
        if case or not (line := re.search(r"\.yaml:(\d+): ", refusal)):
            return case, values, [*refusals, refusal] if refusal else refusals
        suggested = {} if refusal in refusals else _suggested(refusal)
        place = _leaf_at(text_of(values), int(line[1]))
        refusals.append(refusal)
        if not suggested and place not in values:
            break
        values = {leaf: value for leaf, value in values.items() if suggested or leaf != place} | suggested
    return None, values, refusals


def _suggested(refusal):
    """Return the fields that the first way out of a refusal sets."""
    ways_out = refusal.partition("; ")[2].splitlines() or [""]
    way_out = re.sub(" (and|with) ", ", ", ways_out[0].partition(", or ")[0])
    found = {}
    for name, text in re.findall(r"([a-z_.]+) ([\w-]+)", way_out):
        leaf, value = full_name(name), yaml.safe_load(text)
        if leaf in LEAVES and leaf not in found and _is_valid(leaf, value):
            found[leaf] = value
    return found


def _leaf_at(text, number):
    """Return the dotted name of the field in a line of a suite that has one in each."""
    path = []
    for line in text.splitlines()[:number]:
        indent = len(line) - len(line.lstrip())
        path = [*path[: indent // 2], line.strip().partition(":")[0]]
    return ".".join(path)


def check_draw(number, ranks, folder, counts, tell=lambda _: None):
    """Draw the composition with seed `number` and check it; the smallest that fails is a note of the error.

    One at a time, since of many draws Hypothesis makes most by changing others a little. `counts` has what
    became of the draw, and in which numbers it ran; `tell` hears of every failure on the way to the smallest.
    """
    ends = []

    @seed(number)
    @settings(
        max_examples=1,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,  # else no smallest suite is a note of the error
    )
    @given(compositions())
    def holds(values):
        case, left, refusals = repaired(values, folder)
        counts["refusals"] += len(refusals)
        if case is None or is_large(case):
            ends.append("not run")
            return
        ends.append(f"ran in {proof(case).model.dtype}")
        try:
            failure = failure_of(case, ranks, folder)
            assert not failure, f"seed {number}: {failure}"
        except Exception as error:
            error.add_note(text_of(left))
            tell(f"{text_of(left)}{error!r}\n")
            raise

    try:
        holds()
    finally:
        counts[ends[0]] += 1


def is_large(case):
    """Tell whether a case takes long; what is wrong on purpose may be possible."""
    sizes = (
        parameters(case.model) / 1e6,
        case.train.batch * case.model.sequence / 1e5,
        case.train.micro_batches * case.model.layers / 200,
        case.model.message_bytes * case.model.calls / 1e8,
        case.data.samples / 1e6,
    )
    return max(sizes) > 1
