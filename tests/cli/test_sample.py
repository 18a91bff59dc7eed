"""What a saved model writes."""

from dataclasses import replace

import pytest
from plans import TEXT, each_rank, on_plan

from pscale.config import Plan

LINE = "a line of text\n"


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Return a folder with the state of a model that has learned one line, under two plans."""
    folder = tmp_path_factory.mktemp("learned")
    (folder / "line.txt").write_text(LINE * 300)
    data = replace(TEXT.data, source=str(folder / "line.txt"))
    case = replace(TEXT, data=data, train=replace(TEXT.train, steps=60, lr=1e-2))

    def act(plan, trainer, mesh):
        for step in range(60):
            trainer.step(step)
        return trainer.save(on_plan(case, plan), mesh, folder / plan.product, 59)

    for plan in (Plan(), Plan(dp=2, tp=2, zero=3)):
        each_rank(case, plan, folder, lambda trainer, mesh, plan=plan: act(plan, trainer, mesh))
    return folder


def test_a_model_that_has_learned_a_line_writes_it_also_beyond_its_sequence(pscale, learned):
    code, out, _ = pscale(
        "sample", learned / "dp 1", "--prompt", "a line", "--temperature", 0, "--tokens", 24
    )
    assert code == 0
    assert out == (LINE * 2) + "\n"
    other = pscale("sample", learned / "dp 2 × tp 2", "--prompt", "a line", "--temperature", 0)[1]
    assert other.startswith(LINE * 2)


def test_the_same_seed_draws_the_same_text_and_another_one_another(pscale, learned):
    texts = [pscale("sample", learned / "dp 1", "--temperature", 2, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert all(letter.isprintable() or letter in "\n\t" for letter in texts[2])


def test_a_folder_without_a_saved_model_is_refused(pscale, tmp_path):
    code, _, err = pscale("sample", tmp_path)
    assert code == 5
    assert "has no saved state" in err
