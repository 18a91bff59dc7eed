"""What refusals name would work."""

import itertools
import re
from dataclasses import fields, replace

import pytest
from plans import TEXT, on_plan

from pscale.config import Case, Matrix, Model, Plan, Precision, Train
from pscale.errors import PlanError
from pscale.parallel.constraints import Setting, alternatives, divisors
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
KINDS = Model, Train, Plan, Matrix, Precision
GROUPS = {kind: {field.name for field in fields(kind)} for kind in KINDS}
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
    """Return the case of a suite that says this; dp is what the others leave of the ranks that it names."""
    of = {kind: {name: settings[name] for name in names & settings.keys()} for kind, names in GROUPS.items()}
    plan = Plan(**of[Plan] | {"dp": 1, "matrix": Matrix(**of[Matrix])})
    ranks, dp = settings.get("ranks"), settings.get("dp", "rest")
    plan = replace(plan, dp=max(1, (ranks or plan.ranks) // plan.ranks) if dp == "rest" else dp)
    train = Train(**{"batch": 12} | of[Train])
    scaling = settings.get("scaling", "strong")
    if scaling == "weak":
        train = replace(train, batch=train.batch * plan.batch_parts)
    model = Model(**{"layers": 4, "width": 24, "heads": 4, "sequence": 16} | of[Model])
    assert model.width % model.heads == 0
    parts = {"model": model, "train": train, "plan": plan, "precision": Precision(**of[Precision])}
    return Case(suite="s", label="l", scaling=scaling, ranks=ranks or plan.ranks, **parts)


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


REFUSALS = """
kind moe, experts 4, ep 3
    experts 4 do not divide by ep 3; ep 1 with dp rest, or experts 3 or 6 would work
ep 2
    ep 2 does not go with kind gpt: it has no experts; ep 1 with dp rest or kind moe would work
batch 16, dp 3, ep 4
    batch 16 does not divide by dp 3 × ep 4 = 12; batch 12 or 24 would work
reduction all-reduce, zero 1
    reduction all-reduce does not go with zero 1: its sums are scattered, unit by unit; reduction bucketed
    or zero 0 would work
zero 2, reshard_after_forward false
    reshard_after_forward false does not go with zero 2: no weights are gathered; reshard_after_forward
    true or zero 3 would work
dp 4, shard 2
    shard 2 does not go with zero 0: there is nothing to share; shard 0, or zero 1, 2 or 3 would work
dp 6, zero 1, shard 4
    dp 6 does not divide by shard 4; shard 0, 2, 3 or 6 would work
dp 2, zero 1, shard 4
    dp 2 does not divide by shard 4; shard 0 or 2 would work
zero 1, shard 4
    shard 4 does not go with dp 1: there is nobody to share with; shard 0 would work
sequence 144, cp 5
    sequence 144 does not divide by the 10 chunks of cp 5 in zigzag; sequence 140 or 150 would work
sequence 144, cp 16
    sequence 144 does not divide by the 32 chunks of cp 16 in zigzag; sequence 128 or 160, or placement
    contiguous would work
sequence 144, cp 5, placement contiguous
    sequence 144 does not divide by cp 5; sequence 140 or 145 would work
width 32, sequence 144, cp 3, context ulysses
    heads 4 do not divide by cp 3; context ring or all-gather would work
width 32, sequence 144, tp 2, cp 6, context unified, ulysses 3
    heads 4 do not divide by tp 2 × ulysses 3 = 6; heads 6 with width 36 would work
sequence 144, cp 10, context unified, placement contiguous
    sequence 144 does not divide by cp 10; sequence 140 or 150 would work
sequence 144, cp 12, context unified
    context unified makes groups of cp 12, and ulysses 0 does not cut it into several of several ranks;
    ulysses 2 or 4 would work
cp 4, context unified, ulysses 4
    context unified makes groups of cp 4, and ulysses 4 does not cut it into several of several ranks;
    ulysses 2 would work
sequence 144, cp 12, context unified, ulysses 5
    context unified makes groups of cp 12, and ulysses 5 does not cut it into several of several ranks;
    ulysses 2 or 4 would work
sequence 144, cp 3, context unified, ulysses 2
    context unified makes groups of cp 3, and ulysses 2 does not cut it into several of several ranks;
    context ring with ulysses 0 would work
cp 4, ulysses 2
    ulysses 2 does not go with context ring and cp 4; ulysses 0 or context unified would work
kind linear, cp 2
    cp 2 does not go with kind linear: it has no sequences; cp 1 with dp rest would work
kind linear, tx 2, ty 2, algorithm cannon
    matrix 2 × 2 cannon does not go with kind linear: it has no layers to cut; tx 1 and ty 1 and tz 1 with
    dp rest would work
kind moe, tx 2, ty 2, algorithm cannon
    matrix 2 × 2 cannon does not go with kind moe: it has experts, no whole MLPs; tx 1 and ty 1 and tz 1
    with dp rest or kind gpt would work
tp 2, tx 2, ty 2, algorithm cannon
    tp 2 does not go with matrix 2 × 2 cannon: both would cut the same layers; tp 1 with dp rest would
    work
cp 2, tx 2, ty 2, algorithm cannon
    cp 2 does not go with matrix 2 × 2 cannon: both would cut the same layers; cp 1 with dp rest would
    work
sp true, tx 2, ty 2, algorithm cannon
    sp true does not go with matrix 2 × 2 cannon: it cuts tokens of tensor parallelism, as agarwal does on
    a grid; sp false would work
pp 2, schedule zero-bubble, tx 2, ty 2, algorithm cannon
    schedule zero-bubble does not go with matrix 2 × 2 cannon and pp 2: what it delays communicates;
    schedule 1f1b would work
tx 2, ty 2, tz 2, algorithm cannon
    tz 2 does not go with algorithm cannon: it has two axes; tz 1 with dp rest, or algorithm axonn or
    agarwal would work
dp 2, tx 3, ty 2, algorithm cannon
    algorithm cannon needs a square, and tx 3 is not ty 2; tx 1 and ty 1 with dp rest or tx 2 and ty 2
    with dp rest would work
ty 2, algorithm cannon
    algorithm cannon needs a square, and tx 1 is not ty 2; tx 1 and ty 1 with dp rest or algorithm summa
    would work
width 27, heads 3, tx 2, ty 3, algorithm summa
    width 27 does not divide by the 6 panels of summa on tx 2 and ty 3; width 24 or 30 would work
ty 3
    heads 4 do not divide by ty 3; heads 3 or 6 would work
tx 5
    width 24 does not divide by tx 5; width 20 or 40 would work
width 26, heads 2, tx 2, tz 2
    width 26 does not divide by tx 2 × tz 2 = 4; width 24 or 28 would work
vocabulary 257, tx 2, ty 2
    vocabulary 257 does not divide by ty 2; vocabulary 256 or 258 would work
batch 6, ty 2, tz 2, algorithm agarwal
    batch 6 gives a micro-batch 6 sequences, which do not divide by tz 2 × ty 2 = 4; batch 4 or 8 would
    work
batch 6, micro_batches 2, dp 2, ty 2, tz 2, algorithm agarwal, scaling weak
    batch 6 gives a micro-batch 3 sequences, which do not divide by tz 2 × ty 2 = 4; batch 8 would work
batch 8, dp 3
    batch 8 does not divide by dp 3; batch 6 or 9 would work
dp 2, ranks 4
    the plan needs 2 ranks (dp 2), the case has 4; dp 4 would work
batch 6, micro_batches 2, dp 2
    batch 6 does not divide by dp 2 × micro_batches 2 = 4; batch 4 or 8 would work
batch 5, micro_batches 2, dp 2, scaling weak
    batch 5 does not divide by micro_batches 2; batch 4 or 6 would work
heads 6, tp 4
    heads 6 do not divide by tp 4; tp 1 or 2 with dp rest, or heads 4 or 8 would work
heads 6, kv_heads 2, tp 6
    kv_heads 2 do not divide by tp 6; tp 1 or 2 with dp rest, or kv_heads 6 would work
heads 6, mlp_width 32, tp 3
    mlp_width 32 does not divide by tp 3; tp 1 with dp rest, or mlp_width 30 or 33 would work
kind linear, tp 3
    tp 3 does not go with kind linear: it has no layers to cut; tp 1 with dp rest would work
heads 6, vocabulary 5, tp 6
    tp 6 is more than vocabulary 5; tp 1, 2 or 3 with dp rest would work
heads 6, tp 3, sp true
    sequence 16 does not divide by tp 3; sequence 15 or 18, or sp false would work
heads 6, tp 3, sp true, cp 2
    sequence 16 does not divide by tp 3 × cp 2 = 6; sequence 12 or 24, or sp false would work
kv_heads 2, cp 4, context ulysses
    kv_heads 2 do not divide by cp 4; kv_heads 4, or context ring or all-gather would work
tp 2, cp 4, context ulysses
    heads 4 do not divide by tp 2 × cp 4 = 8; heads 8, or context ring or all-gather would work
kind collectives, cp 2
    cp 2 does not go with kind collectives: it communicates over dp and tp; cp 1 with dp rest would work
kind collectives, zero 1
    zero 1 does not go with kind collectives: it has no parameters; zero 0 would work
kind collectives, shard 2
    shard 2 does not go with zero 0: there is nothing to share; shard 0 would work
kind collectives, message_bytes 240, dp 7
    message 240 does not divide by dp 7 × number_bytes 4 = 28; message 224 or 252 would work
compression sign, zero 1
    compression sign does not go with zero 1: no replica has whole gradients; compression none or zero 0
    would work
reduction all-reduce, compression topk
    compression topk does not go with reduction all-reduce: it has a communication of its own; compression
    none or reduction bucketed would work
kind collectives, compression fp16
    compression fp16 does not go with kind collectives: it has no gradients; compression none would work
layers 2, dp 2, pp 3
    pp 3 is more than layers 2; layers 3, or pp 1 or 2 with dp rest would work
dtype bf16, compression int8
    compression int8 does not go with precision bf16: it needs 32 bits; compression none or precision
    float32 would work
dtype bf16, reduction gather-broadcast, reduce float32
    reduction gather-broadcast does not go with reduce float32 and precision bf16; reduction bucketed or
    all-reduce, or reduce wire would work
kind collectives, reduce float32
    reduce float32 does not go with kind collectives: it has no gradients; reduce wire would work
optimizer adafactor, offload optimizer
    offload optimizer does not go with optimizer_state factored: there is nothing to save; offload none or
    activations, or optimizer adamw would work
optimizer sgd, offload both
    offload both does not go with optimizer_state none: there is nothing to save; offload none or
    activations, or optimizer adamw would work
layers 1, offload activations
    offload activations does not go with layers 1: one unit keeps nothing; offload none or optimizer, or
    layers 2 would work
kind linear, offload both
    offload both does not go with kind linear: one unit keeps nothing; offload none or optimizer would
    work
pp 8, scaling weak
    pp 8 is more than layers 4; layers 8, or pp 1, 2 or 4 with dp rest would work
pp 4, schedule interleaved, virtual_stages 2
    pp 4 × virtual_stages 2 = 8 is more than layers 4; pp 1 with dp rest or schedule 1f1b with
    virtual_stages 1 would work
micro_batches 2, pp 2, schedule interleaved, virtual_stages 3
    pp 2 × virtual_stages 3 = 6 is more than layers 4; layers 6 or pp 1 with dp rest or virtual_stages 2
    or schedule 1f1b with virtual_stages 1 would work
micro_batches 3, pp 2, schedule interleaved, virtual_stages 2
    micro_batches 3 do not divide by pp 2; micro_batches 2 or 4 would work
pp 2, schedule interleaved
    schedule interleaved does not go with virtual_stages 1 and pp 2; schedule 1f1b would work
virtual_stages 2
    virtual_stages 2 does not go with schedule 1f1b; schedule interleaved would work
kind block, pp 2
    pp 2 does not go with kind block: it is one unit; pp 1 with dp rest would work
kind linear, checkpoint full
    checkpoint full does not go with kind linear: it has no blocks; checkpoint none would work
sequence 2048, checkpoint selective
    checkpoint selective recomputes scores, and attention auto keeps none; checkpoint none or attention
    plain would work
kind block, checkpoint full
    checkpoint full does not go with kind block: it is a single block; checkpoint selective or none would
    work
checkpoint every-5
    checkpoint every-5 has more blocks than layers 4; checkpoint full would work
layers 1, checkpoint every-5
    checkpoint every-5 has more blocks than layers 1; checkpoint full would work
lr_warmup 40
    lr_warmup 40 leaves none of warmup 5 + steps 30 at the full rate; lr_warmup 34 would work
compression sign, loss_scale dynamic
    compression sign does not go with loss_scale dynamic: the next step may have another; compression none
    or loss_scale none would work
kind collectives, loss_scale dynamic
    loss_scale dynamic does not go with kind collectives: it has no loss; loss_scale none would work
"""


@pytest.mark.parametrize(
    "row", re.split(r"\n(?! )", REFUSALS.strip()), ids=lambda row: row.partition("\n")[0]
)
def test_a_case_that_cannot_run_is_refused_with_what_would_work(row):
    settings, *message = row.splitlines()
    values = {each.name: each.values[0] for each in map(Setting.parse, settings.split(", "))}
    assert refusal(values) == " ".join(line.strip() for line in message)
