"""The page of data sheets has the kept figures, and they are what is predicted today."""

import json

import published
import pytest


def test_the_page_has_the_kept_figures():
    text, content = published.DOCUMENT.read_text(), json.loads(published.KEPT.read_text())
    assert published.in_document(text, content) == text, "write it again: python benchmarks/published.py"
    assert {row["model"] for row in content["trainings"]} == set(published.TRAININGS)
    assert {row["model"] for row in content["steps"]} <= set(published.STEPS)


@pytest.mark.slow
def test_the_kept_figures_are_predicted(monkeypatch):
    content = json.loads(published.KEPT.read_text())
    monkeypatch.setattr(published, "STEPS", {"22B": published.STEPS["22B"]})
    monkeypatch.setattr(published, "TRAININGS", {"LLaMA 7B": published.TRAININGS["LLaMA 7B"]})
    for name, predict, figure in (
        ("steps", published.steps, "predicted_s"),
        ("trainings", published.trainings, "predicted_h"),
    ):
        kept = {row["model"] + row.get("recomputation", ""): row for row in content[name]}
        for row in predict():
            same = kept[row["model"] + row.get("recomputation", "")]
            assert row[figure] == pytest.approx(same[figure], rel=1e-3)
