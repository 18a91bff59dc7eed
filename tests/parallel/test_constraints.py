"""What refusals name would work."""

import itertools
import re
from dataclasses import fields, replace

import pytest
from plans import TEXT, on_plan

from pscale.config import Case, Matrix, Model, Plan, Train
from pscale.errors import PlanError
from pscale.parallel.constraints import alternatives, divisors
from pscale.parallel.strategies import check


def test_choices_are_written_as_people_do():
    assert alternatives(divisors(12, least=2)) == "2, 3, 4, 6 or 12"
    assert alternatives(divisors(7)) == "1 or 7"


@pytest.mark.parametrize("parts", range(2, 8))
def test_heads_that_are_named_are_multiples_and_divide_the_width_that_goes_with_them(parts):
    for each, count in itertools.product(range(1, 7), range(1, 9)):
        settings = {"ranks": parts, "ty": parts, "heads": count, "width": each * count, "vocabulary": 420}
        _, clash, ways = refusal(settings).partition(f"heads {count} do not divide by ty {parts}; ")
        named, _, width = ways.removesuffix(" would work").partition(" with width ")
        for number in map(int, re.findall(r"\d+", named)):
            assert number % parts == 0
            assert int(width or each * count) % number == 0
        assert bool(named) == bool(clash) == (count % parts > 0)


@pytest.mark.parametrize(("tp", "cp"), [(2, 2), (3, 2), (2, 3), (3, 4)])
@pytest.mark.parametrize("placement", ["zigzag", "contiguous"])
def test_a_sequence_that_is_named_suits_all_that_cut_it(tp, cp, placement):
    plan, refusals = Plan(tp=tp, cp=cp, sp=True, placement=placement), 0

    def case_of(length):
        return replace(on_plan(TEXT, plan), model=Model(layers=2, heads=12, width=24, sequence=length))

    for length in range(5, 30):
        try:
            check(case_of(length))
        except PlanError as error:
            refusals += 1
            named = re.search(r"; sequence ([\d or]+)", str(error))
            for fit in map(int, re.findall(r"\d+", named[1])):
                check(case_of(fit))
    assert refusals > 10


@pytest.mark.parametrize("batch", [4, 6, 12, 20])
def test_micro_batches_that_are_named_are_whole_rounds_of_the_batch(batch):
    plan = Plan(pp=2, schedule="interleaved", virtual_stages=2)

    def case_of(micro_batches):
        train = replace(TEXT.train, batch=batch, micro_batches=micro_batches)
        return replace(on_plan(TEXT, plan), train=train, model=Model(layers=4, heads=2, width=8, sequence=8))

    with pytest.raises(
        PlanError, match=r"micro_batches 1 do not divide by pp 2; micro_batches [\d or]+ would"
    ) as said:
        check(case_of(1))
    for fit in re.findall(r"\d+", str(said.value).rpartition("micro_batches")[2]):
        check(case_of(int(fit)))


CHOICES = (
    "rest",
    "true",
    "false",
    "none",
    "bucketed",
    "summa",
    "axonn",
    "agarwal",
    "gpt",
    "moe",
    "ring",
    "all-gather",
)
WORDS = {*CHOICES, "1f1b", "interleaved", "contiguous"}
GROUPS = {kind: {field.name for field in fields(kind)} for kind in (Model, Train, Plan, Matrix)}
NAMES = {"ranks", *itertools.chain.from_iterable(GROUPS.values())}
DEGREES = {"ranks", "dp", "tp", "pp", "cp", "ep", "tx", "ty", "tz"}


def proposals(said):
    """Return what a refusal proposes: choices of settings by name, as they stand behind names of fields."""
    found, name, run, joined = [], "", [], False
    for word in re.findall(r"[\w-]+", said.partition("; ")[2]):
        if word in {"with", "and"}:
            name, joined = "", True
        elif word in NAMES:
            run, name, also, joined = run if joined else [], word, joined, False
        elif name and (word.isdigit() or word in WORDS):
            value = int(word) if word.isdigit() else {"true": True, "false": False}.get(word, word)
            if also:
                run[:] = [each | {name: value} for each in run]
                found[-len(run) :] = run
            else:
                run.append({name: value})
                found.append(run[-1])
        elif word != "or":
            name = ""
    return found


def subject(said):
    """Return what a refusal is about: the field that it names first, or all degrees whose product it is."""
    if said.startswith("the plan needs"):
        return DEGREES
    return {next(word for word in re.findall(r"\w+", said) if word in NAMES)}


def case_with(settings):
    """Return the case of a suite that says this; dp is what the others leave of the ranks."""
    of = {kind: {name: settings[name] for name in names & settings.keys()} for kind, names in GROUPS.items()}
    plan = Plan(**of[Plan] | {"dp": 1, "matrix": Matrix(**of[Matrix])})
    dp = settings.get("dp", "rest")
    plan = replace(plan, dp=max(1, settings["ranks"] // plan.ranks) if dp == "rest" else dp)
    train = Train(**{"batch": 12} | of[Train])
    scaling = settings.get("scaling", "strong")
    if scaling == "weak":
        train = replace(train, batch=train.batch * plan.batch_parts)
    model = Model(**{"layers": 4, "width": 24, "heads": 4, "sequence": 16} | of[Model])
    assert model.width % model.heads == 0
    return Case(
        suite="s", label="l", scaling=scaling, ranks=settings["ranks"], model=model, train=train, plan=plan
    )


def refusal(settings):
    try:
        check(case_with(settings))
    except PlanError as error:
        return str(error)
    return ""


def every(**values):
    """Return the settings of all combinations."""
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


SIZES = [{"heads": 3}, {"heads": 5, "width": 40}, {"heads": 6, "width": 30}, {"vocabulary": 33}, {"batch": 6}]
SPREAD = every(tx=(1, 2, 3, 4), ty=(1, 2, 3), tz=(1, 2), algorithm=("axonn", "agarwal", "summa", "cannon"))
WRONG = {
    "degrees": every(dp=("rest", 1, 2), tp=(1, 2, 3, 4), pp=(1, 2, 3), cp=(1, 2), ep=(1, 2)),
    "tensor": every(tp=(2, 3, 4, 5, 6, 8), heads=(3, 4, 6, 8), vocabulary=(5, 256)),
    "context": every(
        cp=(2, 3, 4),
        tp=(1, 2, 3),
        sp=(False, True),
        context=("ring", "ulysses"),
        placement=("zigzag", "contiguous"),
    ),
    "experts": every(kind=("moe",), ep=(2, 3, 4, 6, 8), tp=(1, 2), experts=(4, 6, 8)),
    "pipeline": every(
        pp=(1, 2, 3, 5),
        schedule=("gpipe", "interleaved", "zero-bubble"),
        virtual_stages=(1, 2, 3),
        micro_batches=(1, 2, 5),
    ),
    "batch": every(batch=(1, 5, 6, 7), micro_batches=(1, 2, 3), scaling=("strong", "weak"), tz=(1, 2)),
    "matrix": [grid | sizes for grid in SPREAD for sizes in (*SIZES, {"tp": 2}, {"pp": 2}, {"sp": True})],
    "zero": every(
        zero=(0, 2, 3),
        shard=(0, 2, 3),
        reshard_after_forward=(True, False),
        reduction=("bucketed", "all-reduce"),
        compression=("none", "fp16"),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_a_refusal_proposes_is_taken_or_refused_for_something_else(what):
    for settings, ranks in itertools.product(WRONG[what], (1, 4, 12)):
        asked = settings | {"ranks": ranks}
        said = refusal(asked)
        changes = proposals(said)
        assert bool(changes) == (said != "")
        for change in changes:
            then = refusal(asked | change)
            assert not then or not subject(then) & change.keys(), f"{asked}: {said}; with {change}: {then}"
