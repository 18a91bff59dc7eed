"""What refusals name would work."""

import itertools
import re
from dataclasses import replace

import pytest
from plans import TEXT, on_plan

from pscale.config import Matrix, Model, Plan
from pscale.errors import PlanError
from pscale.parallel import fitting
from pscale.parallel.strategies import check


def test_choices_are_the_nearest_ones_that_divide():
    assert fitting.alternatives(fitting.divisors(12, least=2)) == "2, 3, 4, 6 or 12"
    assert fitting.multiples(16, 6) == "12 or 18"
    assert fitting.multiples(4, 6) == "6"
    assert fitting.multiples(16, 6, times=2) == "24 or 36"


@pytest.mark.parametrize("parts", range(2, 8))
def test_heads_that_are_named_are_multiples_and_divide_the_width_that_goes_with_them(parts):
    for each, count in itertools.product(range(1, 7), range(1, 9)):
        model = Model(layers=1, heads=count, width=each * count)
        named, _, width = fitting.heads(model, parts).partition(" with width ")
        for number in map(int, re.findall(r"\d+", named)):
            assert number % parts == 0
            assert int(width or model.width) % number == 0


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
            named = re.search(r"; sequence ([\d or]+) would", str(error))
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
        PlanError, match=r"micro_batches 1 does not divide by pp 2; micro_batches [\d or]+ would"
    ) as said:
        check(case_of(1))
    for fit in re.findall(r"\d+", str(said.value).rpartition("micro_batches")[2]):
        check(case_of(int(fit)))


def test_a_square_that_is_named_has_the_ranks_of_the_case():
    plan = Plan(matrix=Matrix(tx=2, ty=4, algorithm="cannon"))
    with pytest.raises(PlanError, match="tx 2 is not ty 4; tx 2 and ty 2 would work, or algorithm summa"):
        check(on_plan(TEXT, plan))
