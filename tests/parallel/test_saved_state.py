"""What a plan saves any other plan goes on from, as if the run had never stopped; damage is refused."""

from dataclasses import replace

import numpy as np
import pytest
from patience import share
from plans import LINEAR, TEXT, difference, each_rank, largest_difference, name, on_plan, serial, train

from pscale.config import Matrix, Plan, Save
from pscale.errors import PlanError, PscaleError, ResultsError
from pscale.parallel import saved_state, strategies
from pscale.runs.tensor_files import Elements, TensorFolder
from pscale.training.dry_run import loading
from pscale.training.prediction import saved_bytes
from pscale.worker.verify import _parts, assembled

HALF = 5
MOE = replace(TEXT, model=replace(TEXT.model, kind="moe", experts=4, every=1))
TIED = replace(TEXT, model=replace(TEXT.model, tied=True, dropout=0.2))


def saving(case, plan, folder):
    """Train the first half under a plan; return the folder of the state, and what each rank wrote."""

    def act(trainer, mesh):
        for step in range(HALF):
            trainer.step(step)
        return trainer.save(on_plan(case, plan), mesh, folder / "states", HALF - 1)

    saved = each_rank(case, plan, folder, act)
    return saved[0][0], [written for _, written in saved]


def resumed(case, plan, state, folder, *, broadcast=False):
    """Train the second half under a plan; return losses and weights."""
    left = replace(case.train, steps=case.train.steps - HALF, load=str(state))
    left = replace(left, load_by="broadcast" if broadcast else "read")
    here = on_plan(replace(case, train=left), plan)

    def act(trainer, mesh):
        figures = trainer.load(mesh, TensorFolder(state), broadcast=broadcast)
        calls, read_bytes = loading(here, mesh.world.rank, state)
        assert read_bytes == figures["load_read_bytes"]
        sent = sum(call.step_bytes for call in calls if call.verb == "broadcast")
        assert sent == figures["load_broadcast_bytes"]
        for step in range(left.steps):
            trainer.step(step)
        weights = _parts(trainer.replicas.weights())
        losses = trainer.losses.copy()
        mesh.world.all_reduce(losses)
        return losses[: left.steps], weights

    ranks = each_rank(replace(case, train=left), plan, folder, act)
    whole = assembled([part for _, weights in ranks for part in weights])
    return ranks[0][0], {("weights", *key): value for key, value in whole.items()}


def with_optimizer(case, optimizer, **fields):
    return replace(case, train=replace(case.train, optimizer=optimizer, **fields))


MANY = [
    (TEXT, Plan(dp=2), Plan(tp=2, sp=True)),
    (TEXT, Plan(dp=4, zero=3), Plan(pp=2, dp=2, zero=1)),
    (TEXT, Plan(tp=2, pp=2), Plan(dp=2, zero=2, offload="optimizer")),
    (TEXT, Plan(dp=2, zero=1, offload="both"), Plan(cp=2)),
    (TEXT, Plan(dp=4, zero=3, shard=2), Plan()),
    (MOE, Plan(ep=2, zero=3), Plan(ep=4)),
    (MOE, Plan(ep=2, tp=2), Plan(dp=2, zero=2)),
    (with_optimizer(TEXT, "adafactor"), Plan(tp=2, dp=2, zero=1), Plan(pp=2)),
    (with_optimizer(TEXT, "adafactor"), Plan(pp=2), Plan(tp=4)),
    (with_optimizer(MOE, "adafactor"), Plan(ep=2), Plan(ep=4, zero=3)),
    (with_optimizer(TEXT, "lamb"), Plan(dp=2, zero=3), Plan(tp=2)),
    (with_optimizer(TEXT, "muon", momentum=0.9), Plan(tp=2), Plan(dp=2, zero=3)),
    (with_optimizer(TEXT, "lion", lr=1e-3), Plan(dp=2), Plan(dp=4)),
    (with_optimizer(TEXT, "sgd", momentum=0.9, lr_schedule="cosine"), Plan(cp=2, zero=1), Plan(pp=2, tp=2)),
    (LINEAR, Plan(dp=2), Plan(dp=4)),
    (TIED, Plan(pp=2, dp=2, zero=1), Plan(tp=2)),
    (TIED, Plan(matrix=Matrix(tx=2, ty=2, algorithm="cannon")), Plan(pp=2, tp=2, embedding="column")),
]


@pytest.mark.parametrize("broadcast", [False, True], ids=["read", "broadcast"])
@pytest.mark.parametrize(("case", "saver", "loader"), MANY[:2] + MANY[-1:], ids=name)
def test_any_plan_goes_on_from_what_any_other_has_saved(case, saver, loader, broadcast, tmp_path):
    assert_goes_on(case, saver, loader, tmp_path, broadcast=broadcast)


def assert_goes_on(case, saver, loader, folder, *, broadcast=False):
    unbroken = serial(case, folder)
    state, written = saving(case, saver, folder)
    assert written == [saved_bytes(on_plan(case, saver), rank) for rank in range(saver.ranks)]
    losses, weights = resumed(case, loader, state, folder, broadcast=broadcast)
    expected = {key: value for key, value in unbroken.tensors.items() if key[0] == "weights"}
    assert difference(losses, unbroken.losses[HALF : case.train.steps]) <= 1e-12
    assert largest_difference(weights, expected) <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("case", "saver", "loader"), share(MANY), ids=name)
def test_states_go_both_ways_between_products_of_plans(case, saver, loader, tmp_path):
    assert_goes_on(case, saver, loader, tmp_path)
    assert_goes_on(case, loader, saver, tmp_path, broadcast=not saver.offloads_state)


@pytest.mark.parametrize(("saved", "loaded"), [("bf16", "bf16"), ("float32", "float64"), ("fp16", "float32")])
def test_every_number_type_goes_on_from_what_any_type_has_saved(saved, loaded, tmp_path):
    """Weights of 16 bits are saved as the copies in float32 that they are rounded from."""
    cases = [replace(TEXT, model=replace(TEXT.model, dtype=dtype)) for dtype in (saved, loaded)]
    state, _ = saving(cases[0], Plan(dp=2), tmp_path)
    there = TensorFolder(state)

    def held(trainer, mesh):
        trainer.load(mesh, there)
        same = []
        for (name_of_tensor, elements, memory), *_ in trainer.replicas.state():
            expected = np.empty(elements.size, there.whole(name_of_tensor).dtype)
            there.fill(name_of_tensor, elements, expected)
            same.append(np.array_equal(memory, expected))
        tensors = sum(len(unit.layer.params) for unit in trainer.stage.units)
        return same, tensors, trainer.replicas.updates, trainer.loss_scaling.state

    ((same, tensors, updates, scale),) = each_rank(cases[1], Plan(), tmp_path, held)
    assert all(same)
    assert len(same) == 3 * tensors  # weights, and two moments of each
    assert updates == there.facts["updates"]
    assert (scale is None) == (loaded != "fp16")


@pytest.mark.parametrize("plan", [Plan(), Plan(dp=2, zero=2), Plan(tp=2)], ids=name)
def test_a_run_in_16_bits_goes_on_with_the_very_same_numbers(plan, tmp_path):
    case = replace(TEXT, model=replace(TEXT.model, dtype="fp16"))

    def whole_run(trainer, _):
        for step in range(case.train.steps):
            trainer.step(step)
        return trainer.losses[HALF : case.train.steps].copy()

    unbroken = each_rank(case, plan, tmp_path, whole_run)
    state, _ = saving(case, plan, tmp_path)
    losses, _ = resumed(case, plan, state, tmp_path)
    assert np.array_equal(losses, np.sum(unbroken, axis=0))


UNEVEN = replace(TEXT, model=replace(TEXT.model, vocabulary=257))  # of which one rank has a column more
COMPRESSED = [
    (TEXT, Plan(dp=2, tp=2, sp=True, compression="sign")),
    (TEXT, Plan(dp=2, pp=2, tp=2, compression="powersgd")),
    (TIED, Plan(dp=2, pp=2, compression="topk")),
    (TIED, Plan(cp=2, compression="powersgd")),
    (UNEVEN, Plan(dp=2, tp=2, compression="powersgd")),
    (MOE, Plan(ep=2, dp=2, compression="int8")),
]


@pytest.mark.parametrize("broadcast", [False, True], ids=["read", "broadcast"])
@pytest.mark.parametrize(("case", "plan"), COMPRESSED, ids=name)
def test_a_run_with_compression_goes_on_with_the_very_same_numbers(case, plan, broadcast, tmp_path):
    unbroken = train(case, plan, tmp_path)
    state, written = saving(case, plan, tmp_path)
    assert written == [saved_bytes(on_plan(case, plan), rank) for rank in range(plan.ranks)]
    losses, weights = resumed(case, plan, state, tmp_path, broadcast=broadcast)
    assert np.array_equal(losses, unbroken.losses[HALF : case.train.steps])
    assert all(np.array_equal(value, unbroken.tensors[key]) for key, value in weights.items())


def test_a_table_that_both_ends_have_saved_is_read_once_by_each(tmp_path):
    case = on_plan(TIED, Plan())
    state, [written] = saving(case, Plan(), tmp_path)
    assert loading(case, 0, state)[1] == written


def held_back_in(state):
    there = TensorFolder(state)
    found = {}
    for tensor in there.names:
        if tensor.endswith("held_back"):
            found[tensor] = there.whole(tensor)
            there.fill(tensor, Elements(((0, found[tensor].size, 1),), 0, found[tensor].size), found[tensor])
    return found


@pytest.mark.parametrize("loader", [Plan(dp=2, tp=2), Plan(dp=2, pp=2)], ids=name)
def test_what_is_held_back_goes_on_under_plans_whose_sums_are_of_as_many_ranks(loader, tmp_path):
    state, _ = saving(TIED, Plan(dp=2, compression="int8"), tmp_path)
    loader = replace(loader, compression="int8")
    here = loading_case(on_plan(TIED, loader), state)
    assert strategies.check(here) is None

    def again(trainer, mesh):
        trainer.load(mesh, TensorFolder(state))
        return trainer.save(here, mesh, tmp_path / "again", HALF - 1)[0]

    expected, found = held_back_in(state), held_back_in(each_rank(here, loader, tmp_path, again)[0])
    assert all(values.any() for key, values in expected.items() if "bias" not in key)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(found[key], values) for key, values in expected.items())


def test_what_is_held_back_is_refused_where_it_has_no_meaning(tmp_path):
    state, _ = saving(TEXT, Plan(dp=2, tp=2, compression="powersgd"), tmp_path)

    def words(plan):
        return refusal(loading_case(on_plan(TEXT, plan), state))

    assert "plan.compression powersgd there, none here" in words(Plan(dp=2, tp=2))
    assert "plan.dp 2 there, 4 here; what it holds back of gradients has no meaning here" in words(
        Plan(dp=4, tp=2, compression="powersgd")
    )
    assert "plan.tp 2 there, 1 here" in words(Plan(dp=2, compression="powersgd"))
    wider = Plan(dp=2, tp=2, compression="powersgd", compression_rank=3)
    assert "plan.compression_rank 2 there, 3 here" in words(wider)
    plain, _ = saving(TEXT, Plan(dp=2), tmp_path / "plain")
    losses, _ = resumed(TEXT, Plan(dp=2, compression="int8"), plain, tmp_path)
    assert np.isfinite(losses).all()


@pytest.fixture
def state(tmp_path):
    return saving(TEXT, Plan(dp=2), tmp_path)[0]


def loading_case(case, folder):
    return replace(case, train=replace(case.train, load=str(folder)))


def refusal(case):
    with pytest.raises(PlanError) as error:
        strategies.check(case)
    return str(error.value)


def test_the_state_of_another_training_is_refused_with_what_differs(state):
    assert strategies.check(loading_case(TEXT, state)) is None
    wider = replace(TEXT, model=replace(TEXT.model, width=64, bias=False))
    assert "model.width 32 there, 64 here; model.bias true there, false here" in refusal(
        loading_case(wider, state)
    )
    assert "train.optimizer adamw there, lion here" in refusal(
        loading_case(with_optimizer(TEXT, "lion"), state)
    )
    other = replace(TEXT, train=replace(TEXT.train, seed=2, batch=8))
    assert "train.batch 16 there, 8 here; train.seed 1 there, 2 here" in refusal(loading_case(other, state))


def test_every_flipped_byte_is_noticed_and_so_is_every_missing_one(state):
    random = np.random.default_rng(0)
    for file in sorted(state.iterdir()):
        content = file.read_bytes()
        places = random.integers(0, len(content), 40)
        for place in map(int, (*places, 0, 8, len(content) - 1)):
            damaged = bytearray(content)
            damaged[place] ^= 1 << int(random.integers(0, 8))
            file.write_bytes(damaged)
            with pytest.raises(ResultsError, match=rf"{file.name}.* (was changed|cannot be read|has)"):
                read_all(state)
        file.write_bytes(content[:-1])
        with pytest.raises(ResultsError, match=f"{file.name} (has {len(content) - 1} bytes|cannot be read)"):
            read_all(state)
        file.unlink()
        with pytest.raises(ResultsError, match=f"{file.name} cannot be read"):
            read_all(state)
        file.write_bytes(content)
    read_all(state)


def read_all(folder):
    there = TensorFolder(folder)
    there.check()
    for tensor in there.names:
        whole = there.whole(tensor)
        there.fill(tensor, Elements(((0, whole.size, 1),), 0, whole.size), whole)


def test_what_cannot_be_saved_or_loaded_is_refused_with_what_works(tmp_path):
    saves = replace(TEXT, train=replace(TEXT.train, save=Save(every=1)))
    offloaded = replace(saves, train=replace(saves.train, load_by="broadcast"))
    assert "load_by read would work" in refusal(on_plan(offloaded, Plan(offload="optimizer")))
    assert "has no saved state" in refusal(loading_case(TEXT, tmp_path))


def test_a_folder_keeps_the_newest_state_of_each_training(tmp_path):
    def save_often(case):
        def act(trainer, mesh):
            folders = [trainer.save(case, mesh, tmp_path, step)[0] for step in (0, 1, 1)]
            return folders[-1]

        return each_rank(case, Plan(), tmp_path, act)[0]

    one = save_often(TEXT)
    assert saved_state.find(tmp_path) == one
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [one.name]
    other = save_often(replace(TEXT, train=replace(TEXT.train, seed=2)))
    with pytest.raises(ResultsError, match="several trainings, name one of them"):
        saved_state.find(tmp_path)
    assert {one, other} == {path for path in tmp_path.iterdir() if path.is_dir()}


def test_a_rank_that_cannot_write_leaves_the_older_state(tmp_path, monkeypatch):
    def act(trainer, mesh):
        trainer.save(TEXT, mesh, tmp_path / "states", 0)
        monkeypatch.setattr("pscale.parallel.saved_state.write_index", full_disk)
        trainer.save(TEXT, mesh, tmp_path / "states", 1)

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    with pytest.raises(PscaleError, match=r"cannot save to .*No space left on device"):
        each_rank(TEXT, Plan(), tmp_path, act)
    assert saved_state.saved_facts(tmp_path / "states")["step"] == 1
