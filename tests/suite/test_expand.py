import re
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
from mistakes import mistakes

from pscale.errors import PlanError, SuiteError, UsageError
from pscale.suite.derive import resized
from pscale.suite.expand import expand
from pscale.suite.load import load_suite

MACHINE = {"cores": 4.0, "memory_gib": 16.0, "nodes": 1.0}
RANKS = "  ranks: [1, 2, 4]"
SWEEP = "  ranks: [1, 2, 4]\n  threads: [1]"


def labels(cases):
    return [case.label for case in cases]


TWO = "ranks: [1, 2]\n  plan.reduction: [bucketed, all-reduce]"
ZIPPED = "data.loading: [memory, mpi-io]\n  zip: {ranks: [1, 2], model.width: [64, 128]}"
BY_HAND = "cases: [{ranks: 1}, {ranks: 2, optimizer: sgd}, {threads: 2, steps: 5}]"
NAMES = "width: [64]\n  model.heads: [2]\n  launch.env.A: [b, c]"
CASES = """
ranks plan.dp plan.reduction | 1 1 bucketed, 1 1 all-reduce, 2 2 bucketed, 2 2 all-reduce
data.loading ranks model.width | memory 1 64, memory 2 128, mpi-io 1 64, mpi-io 2 128
ranks threads train.optimizer train.steps | 1 1 adamw 10, 2 1 sgd 10, 1 2 adamw 5
model.width model.heads launch.env | 64 2 {'A':'b'}, 64 2 {'A':'c'}
"""


@pytest.mark.parametrize(
    ("sweep", "row"), [*zip([TWO, ZIPPED, BY_HAND, NAMES], CASES.strip().splitlines(), strict=True)]
)
def test_a_sweep_is_every_combination_of_lists_of_zipped_ones_and_of_cases_by_hand(cases, sweep, row):
    fields, expected = row.split(" | ")
    values = [attrgetter(*fields.split())(case) for case in cases((SWEEP, f"  {sweep}"))]
    assert [" ".join(str(one).replace(": ", ":") for one in each) for each in values] == expected.split(", ")


@pytest.mark.parametrize(
    ("sweep", "called", "series"),
    [
        (TWO, "1 rank · bucketed, 1 rank · all-reduce, 2 ranks · bucketed", "bucketed, all-reduce, bucketed"),
        (ZIPPED, "1 rank · memory · width 64, 2 ranks · memory · width 128", "memory, memory, mpi-io"),
        (NAMES, "A b, A c", "A b, A c"),
        ("ranks: [1, 2]\n  threads: [1, 2]", "1 rank · 1 thread, 1 rank · 2 threads", "1 thread, 2 threads"),
        ("threads: [1, 2, 4]", "1 thread, 2 threads, 4 threads", ", , "),
    ],
)
def test_a_label_names_what_varies_and_a_series_that_without_the_size_and_what_goes_with_it(
    cases, sweep, called, series
):
    made = cases((SWEEP, f"  {sweep}"))
    assert ", ".join(labels(made)).startswith(called)
    assert ", ".join(case.series for case in made).startswith(series)


def test_a_sweep_may_set_fields_of_groups_that_the_suite_leaves_out(cases):
    data = ("data: {kind: text, source: python-stdlib}", "data: null")
    made = cases(data, (SWEEP, "  data.loading: [memory, files]\n  reduction: [all-reduce]"))
    assert [case.data.loading for case in made] == ["memory", "files"]


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("bucket: 4MiB", {"dp": 8}),
        ("dp: rest", {"dp": 8}),
        ("dp: 4, tp: 2", {"dp": 4, "tp": 2}),
        ("tp: 2, cp: 2", {"dp": 2, "tp": 2, "cp": 2}),
        ("pp: ranks", {"pp": 8}),
        ("tp: rest", {"tp": 8}),
        ("dp: 4, cp: rest", {"dp": 4, "cp": 2}),
        ('tp: "=ranks // 2", pp: rest', {"tp": 4, "pp": 2}),
    ],
)
def test_one_degree_is_what_the_others_leave_of_the_ranks(cases, plan, expected):
    changes = [("dp: ranks, bucket: 4MiB", plan), ("layers: 2", "layers: 8"), ("heads: 4", "heads: 8")]
    (case,) = cases(*changes, ("[1, 2, 4]", "[8]"), cores=8.0)
    degrees = {"dp": 1, "tp": 1, "pp": 1, "cp": 1, "ep": 1} | expected
    assert {axis: getattr(case.plan, axis) for axis in degrees} == degrees


def test_every_choice_of_a_plan_reaches_the_job(cases):
    choices = {
        "sp": True,
        "embedding": "column",
        "zero": 2,
        "schedule": "gpipe",
        "context": "ulysses",
        "placement": "contiguous",
    }
    text = ", ".join(f"{name}: {str(value).lower()}" for name, value in choices.items())
    plan = cases(("bucket: 4MiB", text))[0].plan
    assert {name: getattr(plan, name) for name in choices} == choices


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("tp: [1, 2, 4]", ["dp 4", "dp 2 · tp 2", "tp 4"]),
        ("pp: [1, 2], tp: [1, 2]", ["dp 4", "dp 2 · tp 2", "dp 2 · pp 2", "tp 2 · pp 2"]),
        ("sp: [false, true], tp: [2, 4]", ["dp 2 · tp 2", "tp 4", "dp 2 · tp 2 · sp", "tp 4 · sp"]),
        ("sp: [false, true]", ["no sp", "sp"]),
        (
            "zero: [0, 1], lr: [0.1, 0.2]",
            ["zero 0 · lr 0.1", "zero 0 · lr 0.2", "zero 1 · lr 0.1", "zero 1 · lr 0.2"],
        ),
        (
            "cases: [{zero: 1}, {tp: 2, sp: true}, {cp: 4, context: ulysses}, {pp: 2, schedule: gpipe}]",
            ["dp 4 · zero 1", "dp 2 · tp 2 · sp", "cp 4 · ulysses", "dp 2 · pp 2 · gpipe"],
        ),
        (
            "cases: [{zero: 1}, {tx: 2, ty: 2, algorithm: cannon}, {tz: 2}, {ty: 2, algorithm: agarwal}]",
            ["dp 4 · zero 1", "tx 2 · ty 2 · cannon", "dp 2 · tz 2 · axonn", "dp 2 · ty 2 · agarwal"],
        ),
        ("cases: [{tp: 2}, {zero: 2, shard: 2}]", ["dp 2 · tp 2", "dp 4 · zero 2 · shard 2"]),
        # An option that an axis of one rank ignores, where nothing else distinguishes two cases:
        ("tp: [1, 4], sp: [false, true]", ["dp 4 · tp 1 · no sp", "dp 4 · tp 1 · sp", "tp 4", "tp 4 · sp"]),
        (
            "ranks: [2, 4], tp: [1, 2]",
            ["2 ranks · tp 1", "2 ranks · tp 2", "4 ranks · tp 1", "4 ranks · tp 2"],
        ),
    ],
)
def test_a_plan_is_called_after_what_it_does(cases, sweep, expected):
    ranks = () if "ranks" in sweep else (("scaling: weak", "ranks: 4\nscaling: weak"),)
    made = cases(("dp: ranks, ", ""), (f"sweep:\n{SWEEP}", f"sweep: {{{sweep}}}"), *ranks)
    assert labels(made) == expected
    assert [case.series for case in made] == [re.sub(r"^\d ranks · ", "", label) for label in expected]


def test_a_suite_without_a_sweep_is_one_case(cases):
    assert labels(cases(("sweep:\n" + SWEEP + "\n", ""))) == ["1 rank"]


def test_a_label_does_not_depend_on_the_machine_or_on_what_is_chosen(cases):
    assert labels(cases(cores=1.0)) == ["1 rank"]
    assert labels(cases(only="ranks == 4")) == ["4 ranks"]
    two = (SWEEP, "  ranks: [1, 2]\n  plan.reduction: [bucketed, all-reduce]")
    assert labels(cases(two, cores=1.0)) == ["1 rank · bucketed", "1 rank · all-reduce"]


def test_expressions_read_other_fields_and_the_machine_in_any_order(cases):
    made = cases(
        ("width: 64, heads: 4", 'width: "=heads * 16", heads: "=2 * ranks"'),
        ("steps: 10", 'steps: "=min(20, 5 * cores)"'),
        ("lr: 1.0e-3", 'lr: "=0.001 / sqrt(ranks)"'),
        ("time_limit: 10m", 'time_limit: "=60 * ranks"'),
        (RANKS, '  ranks: [1, "=cores"]'),
    )
    assert [(c.ranks, c.model.heads, c.model.width) for c in made] == [(1, 2, 32), (4, 8, 128)]
    assert made[1].train.steps == 20
    assert made[1].train.lr == 0.0005
    assert made[1].launch.time_limit_s == 240
    assert type(made[1].model.width) is int


def test_a_value_that_an_expression_gives_again_is_no_second_case(cases):
    assert labels(cases((RANKS, '  ranks: [1, 4, "=cores"]'))) == ["1 rank", "4 ranks"]


IMPOSSIBLE = r"""
width: 64 => width: "=63.5 * ranks"
    weak.yaml:4: model.width: expected a whole number, got 63.5
width: 64 => width: "=64 * rank"
    weak.yaml:4: model.width: expression '64 * rank': unknown name 'rank'; did
width: 64 => width: "=0 * ranks"
    weak.yaml:4: model.width: expected at least 1, got 0
width: 64 => width: "=ranks > 1"
    weak.yaml:4: model.width: expression 'ranks > 1' gives False, not a number
width: 64 => width: "=open(1)"
    weak.yaml:4: model.width: expression 'open(1)': 'open(1)' is not allowed
width: 64, heads: 4 => width: "=heads", heads: "=width"
    goes in a circle: model.heads, model.width
  ranks: [1, 2, 4] =>   ranks: ["=corse"]
    weak.yaml:13: sweep.ranks[0]: expression 'corse': unknown name 'corse'; did you
  ranks: [1, 2, 4] =>   ranks: [1, 2, 0]
    weak.yaml:13: sweep.ranks[2]: expected at least 1, got 0
  ranks: [1, 2, 4] =>   ranks: [1, two]
    weak.yaml:13: sweep.ranks[1]: expected a whole number, got 'two'
  ranks: [1, 2, 4] =>   rnaks: [1]
    weak.yaml:13: sweep.rnaks: cannot be swept; did you mean 'ranks'?
  ranks: [1, 2, 4] =>   train.bacth: [1]
    weak.yaml:13: sweep.train.bacth: cannot be swept; did you mean 'train.batch'
  ranks: [1, 2, 4] =>   kind: [gpt]
    weak.yaml:13: sweep.kind: cannot be swept
  ranks: [1, 2, 4] =>   cases: [{rnaks: 1}]
    weak.yaml:13: sweep.cases[0].rnaks: cannot be swept
  ranks: [1, 2, 4] =>   zip: {threads: [1]}
    sweep.threads: threads is set in two ways
  ranks: [1, 2, 4] =>   width: [64]\n  model.width: [32]
    sweep.model.width: model.width is set in two ways
  ranks: [1, 2, 4] =>   model.kind: [block]
    weak.yaml:4: model.layers: 'model' of kind block, unlike that of kind gpt or moe, has
  ranks: [1, 2, 4] =>   plan.reduction: [best]
    weak.yaml:13: sweep.plan.reduction[0]: 'best' is not possible
  ranks: [1, 2, 4]\n  threads: [1] =>   cases: [{ranks: 1}, {ranks: 1, threads: 1}]
    weak.yaml:12: sweep: has duplicates: '1 rank' twice
  ranks: [1, 2, 4]\n  threads: [1] =>   launch.time_limit: [10s, 20s]
    'time_limit 10' and 'time_limit 20', which are the same work
["ranks * threads > cores"] => ["rank > cores"]
    weak.yaml:15: exclude[0]: expression 'rank > cores': unknown
["ranks * threads > cores"] => ["ranks"]
    exclude[0]: expression 'ranks' gives 1, which is neither true nor
["ranks * threads > cores"] => ["ranks > 0"]
    weak.yaml:15: exclude: leaves out all 3 cases on this machine
repeat: 2 => base: "ranks == 3"
    weak.yaml:16: base: 'ranks == 3' matches no case; expected one per series
repeat: 2 => base: "ranks > 1"
    weak.yaml:16: base: 'ranks > 1' matches 2 cases
where: "ranks <= 2" => where: "rnaks <= 2"
    weak.yaml:18: expect[0].where: expression 'rnaks <= 2': unknown
heads: 4 => heads: 5
    weak.yaml:4: model.heads: width 64 does not divide by heads 5; heads 4 or 8, or width 60 or 65 would work
kind: gpt => kind: moe, experts: 1, top_k: 2
    weak.yaml:4: model.top_k: top_k 2 is more than experts 1; top_k 1 would work
kind: gpt => kind: moe, every: 3
    weak.yaml:4: model.every: every 3 is more than layers 2; every 2 would work
  ranks: [1, 2, 4]\n  threads: [1] =>   lr: [0.001, 0.0010000001]
    sweep: has duplicates: 2 cases called 'lr 0.001'
python-stdlib => python-stdlb
    weak.yaml:5: data.source: no file 'python-stdlb'; did you mean 'python
python-stdlib => none.txt
    weak.yaml:5: data.source: no file
python-stdlib => ~nobody-here/x
    weak.yaml:5: data.source: no file
vocabulary: 256 => vocabulary: 100
    weak.yaml:4: model.vocabulary: 100 is too small for text
"""


@pytest.mark.parametrize(("old", "new", "expected"), mistakes(IMPOSSIBLE))
def test_what_cannot_be_expanded_is_named_where_it_is_written(cases, old, new, expected):
    with pytest.raises(SuiteError) as caught:
        cases((old, new))
    assert [part for part in expected if part not in str(caught.value)] == []


def test_more_cases_and_launches_than_anybody_means_are_refused(cases):
    with pytest.raises(SuiteError, match="asks for 10201 cases; at most 10000"):
        cases((SWEEP, f"  width: {[*range(1, 102)]}\n  steps: {[*range(1, 102)]}"))
    launches = f"{SWEEP}\n  steps: {[*range(1, 335)]}"
    with pytest.raises(SuiteError, match="repeat: asks for 1000 launches of 1002 cases; at most 1000000"):
        cases((SWEEP, launches), ("repeat: 2", "repeat: 1000"))


def test_mistakes_of_all_cases_are_named_at_once(cases):
    with pytest.raises(SuiteError) as caught:
        cases((RANKS, '  ranks: [1, two]\n  heads: [4, "=hedas"]'))
    text = str(caught.value)
    assert "weak.yaml:13: sweep.ranks[1]" in text
    assert "weak.yaml:14: sweep.heads[1]" in text
    assert len(text.splitlines()) == 2


def test_excluded_cases_need_not_be_possible(cases):
    made = cases((SWEEP, "  heads: [4, 5]"), ('["ranks * threads > cores"]', '["width % heads != 0"]'))
    assert [case.model.heads for case in made] == [4]


def test_weak_batches_are_of_a_rank_and_others_of_all(cases):
    assert [case.train.batch for case in cases()] == [4, 8, 16]
    for scaling in ("strong", "throughput"):
        assert {case.train.batch for case in cases(("scaling: weak", f"scaling: {scaling}"))} == {4}


def test_the_base_is_marked_in_its_series_alone(cases):
    sweep = (SWEEP, "  ranks: [1, 2]\n  plan.reduction: [bucketed, all-reduce]")
    made = cases(sweep, ("repeat: 2", "base: \"ranks == 2 and reduction == 'bucketed'\""))
    assert [case.label for case in made if case.base] == ["2 ranks · bucketed"]


def test_only_filters_and_names_the_cases_when_none_is_left(cases):
    assert labels(cases(only="ranks > 1 and width == 64")) == ["2 ranks", "4 ranks"]
    with pytest.raises(UsageError, match="matches no case; the cases are 1 rank, 2 ranks, 4 ranks"):
        cases(only="ranks == 3")
    with pytest.raises(UsageError, match="--only: expression 'rnks == 3': unknown name"):
        cases(only="rnks == 3")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("", ["1 rank", "2 ranks", "4 ranks"]),
        ("ranks <= 2", ["1 rank", "2 ranks"]),
        ("batch == 4 and train.batch == batch", ["1 rank", "2 ranks", "4 ranks"]),
        ("ranks * threads == cores and nodes == 1 and memory_gib > 8", ["4 ranks"]),
        ("bucket == 4 * 2 ** 20 and time_limit == 600 and ranks == 1", ["1 rank"]),
        ("ranks > 4", []),
    ],
)
def test_an_expectation_names_its_cases_by_the_same_names_as_other_conditions(suite, cases, where, expected):
    loaded = suite(("ranks <= 2", where))
    (expectation,) = expand(loaded, MACHINE).expect
    called = {case.id: case.label for case in cases()}
    assert [called[case] for case in expectation.cases] == expected
    assert (expectation.metric, expectation.where, expectation.at_least) == ("efficiency", where, 0.85)
    if expected:
        assert labels(expand(loaded, MACHINE, where or "true").cases) == expected


def test_an_expectation_is_only_about_cases_that_are_kept(suite):
    kept = expand(suite(), MACHINE, "ranks == 2")
    assert [list(entry.cases) for entry in kept.expect] == [[case.id for case in kept.cases]]


def test_more_ranks_than_cores_are_refused_with_two_ways_out(cases):
    everything = ('exclude: ["ranks * threads > cores"]\n', "")
    with pytest.raises(PlanError) as caught:
        cases(everything, cores=1.0)
    first, second, advice = str(caught.value).splitlines()
    assert "weak.yaml:13: 2 ranks: ranks 2 x threads 1 = 2 cores, this machine has 1" in first
    assert "4 ranks" in second
    assert 'exclude: ["ranks * threads > cores"]' in advice
    assert "oversubscribe: true" in advice
    assert len(cases(everything, ("bind: core", "oversubscribe: true"), cores=1.0)) == 3
    assert len(cases(everything, only="ranks == 1", cores=1.0)) == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            [("dp: ranks", "dp: 2")],
            "1 rank: the plan needs 2 ranks (dp 2), the case has 1; dp 1 would work",
        ),
        (
            [("dp: ranks", "dp: rest, tp: 2"), ("[1, 2, 4]", "[2, 3]")],
            "3 ranks: the plan needs 2 ranks (tp 2), the case has 3; tp 1 with dp rest would work",
        ),
        (
            [("dp: ranks", "dp: rest, shard: 3, zero: 1"), ("[1, 2, 4]", "[4]")],
            "4 ranks: dp 4 does not divide by shard 3; shard 0, 2 or 4 would work",
        ),
        (
            [("dp: ranks", "tp: 2, cp: 2"), ("[1, 2, 4]", "[4, 2]")],
            "2 ranks: the plan needs 4 ranks (tp 2 × cp 2), the case has 2; tp 1 with dp rest or cp 1",
        ),
        (
            [("dp: ranks", "tp: ranks"), ("[1, 2, 4]", "[1, 3]")],
            "3 ranks: heads 4 do not divide by tp 3; tp 1 with dp rest would work",
        ),
        (
            [("scaling: weak", "scaling: strong"), ("batch: 4", "batch: 6")],
            "4 ranks: batch 6 does not divide by dp 4; batch 4 or 8 would work",
        ),
        (
            [("batch: 4", "batch: 4\n  micro_batches: 3")],
            "4 ranks: batch 4 does not divide by micro_batches 3; batch 3 or 6 would work",
        ),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_its_numbers(cases, changes, expected):
    with pytest.raises(PlanError, match=re.escape(expected)):
        cases(*changes)


@pytest.mark.parametrize(
    ("changes", "overrides", "expected"),
    [
        (
            [("bucket: 4MiB", "compression: fp16"), (SWEEP, "  ranks: [2]\n  cases:\n  - {zero: 3}")],
            [],
            "weak.yaml:15: 2 ranks: compression fp16 does not go with zero 3",  # the sweep, not the plan
        ),
        ([("dp: ranks", "tp: ranks"), ("[1, 2, 4]", "[3]")], [], "weak.yaml:4: 3 ranks: heads 4 do not"),
        (
            [("dp: ranks", "matrix: {tx: 2, ty: 2}"), ("kind: gpt", "kind: moe"), ("[1, 2, 4]", "[4]")],
            [],
            "weak.yaml:11: 4 ranks: matrix 2 × 2 axonn does not go with kind moe",
        ),
        (
            [],
            ["heads=8", "plan.tp=3", "plan.dp=rest", "sweep.ranks=[3]"],
            "weak.yaml: --set heads=8: 3 ranks",
        ),
    ],
)
def test_a_plan_that_cannot_be_is_refused_where_a_field_that_clashes_was_written(
    suite, changes, overrides, expected
):
    with pytest.raises(PlanError, match=re.escape(expected)):
        expand(suite(*changes, overrides=overrides), MACHINE)


def test_heads_that_are_named_divide_by_the_ranks_that_cut_them(suite):
    whole = suite(("heads: 4", "heads: 3"), overrides=["tp=4", "dp=rest", "sweep.ranks=[4]"])
    with pytest.raises(SuiteError, match="width 64 does not divide by heads 3; heads 4 would work"):
        expand(whole, MACHINE)


def test_ids_are_stable_and_know_nothing_of_names_or_order(cases, write):
    first, *_ = cases()
    assert first.id == "82084195ab"
    moved = write(
        ("plan: {dp: ranks, bucket: 4MiB}\n", ""),
        ("repeat: 2", "plan: {bucket: 4096KiB, dp: ranks}\nrepeat: 5"),
        ("name: weak", "name: other"),
        ("{kind: gpt, layers: 2, ", "{layers: 2, kind: gpt, "),
        ("  ranks: [1, 2, 4]\n  threads: [1]", "  threads: [1]\n  ranks: [4, 2, 1]"),
    )
    made = expand(load_suite(moved), {"cores": 4.0, "memory_gib": 1.0, "nodes": 1.0}).cases
    assert {case.id for case in made} == {case.id for case in cases()}


def test_a_path_is_relative_to_the_file_that_names_it(write, tmp_path):
    folder = tmp_path / "with [brackets]"
    folder.mkdir()
    (folder / "text.txt").write_text("words " * 1000)
    (folder / "base.yaml").write_text(write(("source: python-stdlib", "source: text.txt")).read_text())
    top = tmp_path / "top.yaml"
    top.write_text('name: top\nextends: "with [brackets]/base.yaml"\n')
    machine = {"cores": 4.0, "memory_gib": 1.0, "nodes": 1.0}
    for overrides in ([], ["data.source=" + str(folder / "text.txt")]):
        case, *_ = expand(load_suite(top, overrides), machine).cases
        assert case.data.source == str(folder / "text.txt")
    (folder / "base.yaml").write_text(write(("source: python-stdlib", "source: '*.txt'")).read_text())
    assert len(expand(load_suite(top), machine).cases) == 3


def test_a_model_with_experts_is_a_gpt_with_more_fields(cases):
    plain, *_ = cases()
    made, *_ = cases(("{kind: gpt, ", "{kind: moe, experts: 4, capacity_factor: 2.0, every: 1, "))
    expected = replace(plain.model, kind="moe", experts=4, capacity_factor=2.0, every=1)
    assert (made.model, made.data) == (expected, plain.data)


def test_the_models_that_have_fewer_fields_get_sizes_that_fit(write):
    machine = {"cores": 4.0, "memory_gib": 1.0, "nodes": 1.0}
    data = ("data: {kind: text, source: python-stdlib}\n", "")
    model = "{kind: gpt, layers: 2, width: 64, heads: 4, sequence: 32, vocabulary: 256}"
    block, *_ = expand(load_suite(write(data, (model, "{kind: block, width: 64}"))), machine).cases
    assert (block.model.layers, block.model.vocabulary, block.data.kind) == (1, 0, "synthetic")
    linear, *_ = expand(load_suite(write(data, (model, "{kind: linear}"))), machine).cases
    assert (linear.model.width, linear.model.dtype, linear.data.samples) == (5, "float64", 10_000)


def test_the_precision_of_a_suite_is_a_type_that_can_vary_or_a_group(cases, write):
    made = cases(("repeat: 2", "precision: float64"), (RANKS, "  ranks: [1, 2]"))
    assert {case.model.dtype for case in made} == {"float64"}
    swept = cases((SWEEP, "  precision: [float32, float64]"), ("repeat: 2", "base: precision == 'float64'"))
    assert [(case.label, case.base) for case in swept] == [("float32", False), ("float64", True)]
    assert swept[0].id == cases((SWEEP, "  ranks: [1]"))[0].id, "what needs no saying changes no id"
    wide = (SWEEP, "  cases: [{precision: bf16}, {precision: bf16, reduce: float32}, {precision: fp16}]")
    assert labels(cases(wide)) == ["bf16", "bf16 · reduce float32", "fp16"]
    grouped = load_suite(write(("repeat: 2", "precision: {type: float64}")), ["precision=float32"])
    assert {case.model.dtype for case in expand(grouped, MACHINE).cases} == {"float32"}


def test_a_scale_of_the_loss_is_a_word_a_number_or_an_expression(cases):
    made = cases(
        ("repeat: 2", "precision: {type: fp16, initial_scale: 16777216}"),
        (SWEEP, '  loss_scale: [auto, none, 1024, "=2 ** 4 * ranks"]'),
    )
    assert [case.loss_scale for case in made] == ["dynamic", "none", 1024.0, 16.0]
    assert labels(made) == ["loss_scale auto", "loss_scale none", "loss_scale 1024", "loss_scale 16"]
    assert {case.precision.initial_scale for case in made} == {2.0**24}


def test_what_openmp_is_told_can_vary_and_what_is_required_is_no_part_of_the_work(cases):
    launch = ("launch: {bind: core,", "launch: {omp: {places: cores}, bind: core,")
    made = cases(launch, (SWEEP, "  proc_bind: [null, close]\n  launch.omp.wait_policy: [active, passive]"))
    assert labels(made)[1:3] == ["proc_bind none · passive", "close · active"]
    assert [case.launch.omp.proc_bind for case in made] == [None, None, "close", "close"]
    assert {case.launch.omp.places for case in made} == {"cores"}
    assert len({case.id for case in made}) == 4
    bound = cases(launch, (SWEEP, "  proc_bind: [null, close]"), ("repeat: 2", "base: proc_bind == 'close'"))
    assert [case.base for case in bound] == [False, True]
    required = cases(("repeat: 2", "require: {blas: openblas, blas_threading: openmp}"))
    assert (required[0].require.blas, required[0].require.blas_threading) == ("openblas", "openmp")
    assert required[0].id == cases()[0].id


@pytest.mark.parametrize("name", ["weak", "strong"])
def test_a_suite_as_a_run_keeps_it_has_its_cases_on_other_ranks_too(name):
    suite = load_suite(Path(__file__).parents[2] / "suites" / f"{name}.yaml", ["budget=null"])
    assert {case.ranks for case in resized(suite.resolved, [2], 4)} == {4}
