"""The table of axes, against what the rest of the program calls them."""

from dataclasses import fields

import pytest

from pscale.config import Matrix, Plan, axes
from pscale.mesh import grid
from pscale.parallel.ranks import GROUPS


def test_every_axis_is_a_degree_of_a_plan():
    assert set(axes.PLAN_AXES) <= {field.name for field in fields(Plan)}
    assert set(axes.GRID_AXES) <= {field.name for field in fields(Matrix)}
    assert tuple(axis.name for axis in axes.AXES) == axes.DEGREES


def test_a_mesh_has_tensor_ranks_and_grids_as_neighbours():
    plan = Plan(dp=2, tp=3, pp=2, cp=5, ep=7, matrix=Matrix(tx=2, ty=2, tz=2))
    assert tuple(plan.sizes) == ("pp", "dp", "ep", "cp", "tp", "tz", "tx", "ty") == axes.ALL_AXES
    assert len({axis.stride for axis in axes.AXES}) == len(axes.AXES)


def test_axes_are_grouped_by_what_their_ranks_split_and_cut():
    assert axes.TOKEN_AXES == ("dp", "ep", "cp")
    assert axes.BATCH_AXES == ("dp", "ep")
    assert axes.SAME_TOKEN_AXES == ("tp", "tz", "tx", "ty")
    assert axes.PARAMETER_AXES == ("pp", "ep", "tp", "tz", "tx", "ty")
    assert axes.WITHIN_LAYERS == ("ep", "cp", "tp")


@pytest.mark.parametrize(
    ("shard", "expected"), [(0, {"dp": 8}), (8, {"dp": 8}), (2, {"replica": 4, "shard": 2})]
)
def test_an_axis_is_dealt_out_to_two(shard, expected):
    sizes = Plan(dp=8, zero=1, shard=shard).sizes
    assert {name: size for name, size in sizes.items() if size > 1} == expected
    assert grid.spanned(sizes, ("dp",)) == tuple(expected)


def test_no_more_groups_are_made_than_ranks_exchange_over():
    sizes = Plan(dp=4, cp=2, tp=2, ep=2, zero=3, shard=2).sizes
    names = {grid.axis_name(span) for span in grid.groups(sizes, GROUPS)}
    assert {"replica", "shard+ep+cp", "shard+cp+tp", "replica+shard+ep+cp+tp"} <= names
    assert len(names) == 15
