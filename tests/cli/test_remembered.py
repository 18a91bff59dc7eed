"""Predictions are made once, and are those of this very program."""

import pytest

from pscale.cli import remembered
from pscale.config import Case, Model, Plan, Train

CASE = Case(
    suite="s",
    label="l",
    ranks=4,
    model=Model(layers=4, vocabulary=50_000),
    train=Train(batch=8),
    plan=Plan(dp=2, pp=2, offload="optimizer"),
)
BOTH = remembered.of_first_rank, remembered.of_fullest_rank


def forget():
    for each in (remembered._file, remembered._known):
        each.cache_clear()


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache" / "pscale"
    forget()


def test_a_case_is_predicted_once_and_read_as_it_was(monkeypatch):
    found = [predict(CASE) for predict in BOTH]
    assert found[0] != found[1]
    forget()
    with monkeypatch.context() as patch:
        patch.setattr(remembered, "predict", None)
        assert [predict(CASE) for predict in BOTH] == found
        with pytest.raises(TypeError, match="not callable"):
            remembered.of_first_rank(Case(suite="s", label="l", ranks=1, model=Model(width=64)))


def test_another_program_and_a_line_that_was_cut_off_predict_anew(cache, monkeypatch):
    found = remembered.of_first_rank(CASE)
    (file,) = cache.iterdir()
    file.write_text(file.read_text()[:-20])
    forget()
    assert remembered.of_first_rank(CASE) == found
    monkeypatch.setattr(remembered, "__version__", "another")
    forget()
    assert remembered.of_first_rank(CASE) == found
    assert file not in cache.iterdir()
    assert len([*cache.iterdir()]) == 1


def test_a_cache_that_cannot_be_written_is_done_without(cache):
    cache.parent.write_text("a file")
    assert remembered.of_first_rank(CASE).total_bytes
