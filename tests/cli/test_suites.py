"""The shipped suites: by name in every command, listed, and copied to be edited."""

import json
from pathlib import Path

import pytest

from pscale.suite import shipped
from pscale.suite.load import load_suite
from pscale.suite.schema import editor_schema

SUITES = Path(__file__).parents[2] / "suites"


def test_names_stand_for_the_shipped_suites_in_any_folder(pscale):
    assert shipped.suites() == {path.stem: path for path in sorted(SUITES.glob("*.yaml"))}
    named = pscale("show", "quick", "--json")
    assert named[0] == 0
    assert named == pscale("show", SUITES / "quick.yaml", "--json")


def test_a_file_of_ones_own_comes_before_the_shipped_suite_of_its_name(pscale, tmp_path):
    (tmp_path / "quick.yaml").write_text("extends: weak\nname: own\nsweep: {ranks: [1]}\n")
    _, out, _ = pscale("show", "quick", "--json")
    assert json.loads(out)["suite"] == "own"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("wek", ["did you mean 'weak'", "pscale suites"]),
        ("weak.yaml", ["weak.yaml does not exist", "called 'weak'"]),
        ("elsewhere/strong.yaml", ["does not exist", "called 'strong'"]),
        ("own.yaml", ["own.yaml", "does not exist"]),
    ],
)
def test_a_name_that_is_none_is_answered_with_the_one_that_was_meant(pscale, said, words):
    code, _, err = pscale("show", said)
    assert code == 2
    assert all(word in err for word in words), err


def test_what_a_suite_extends_may_be_a_name_and_a_wrong_one_is_placed(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("extends: weak\nname: own\nmodel: {width: 512}\n")
    assert load_suite(own).resolved["model"]["width"] == 512
    own.write_text("name: own\nextends: wek\n")
    with pytest.raises(Exception, match=r"own.yaml:2: extends: there is no suite 'wek'"):
        load_suite(own)


def test_every_shipped_suite_is_listed_with_its_question_and_the_launches_it_takes_here(pscale):
    code, out, _ = pscale("suites", "--json")
    listed = {row["suite"]: row for row in json.loads(out)}
    assert code == 0
    assert listed.keys() == shipped.suites().keys()
    assert all(row["question"].endswith("?") and row["cases"] <= row["launches"] for row in listed.values())
    assert listed["quick"] == {
        "suite": "quick",
        "question": "Does everything work here?",
        "cases": 2,
        "launches": 2,
    }
    _, table, _ = pscale("suites")
    assert [line.split()[0] for line in table.splitlines() if line[:1].strip()][1:-1] == list(listed)


def test_a_copy_is_the_suite_under_the_name_of_its_file_beside_its_schema(pscale, tmp_path):
    code, out, _ = pscale("init", "weak", "wide.yaml")
    assert (code, "pscale run wide.yaml" in out) == (0, True)
    copy = (tmp_path / "wide.yaml").read_text()
    assert copy == (SUITES / "weak.yaml").read_text().replace("name: weak", "name: wide")
    assert json.loads((tmp_path / "suite.schema.json").read_text()) == editor_schema()
    pscale("init", "weak")
    assert (tmp_path / "weak.yaml").read_text() == (SUITES / "weak.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["weak", "mine.yaml"], "mine.yaml already exists"),
        (["weak", "nowhere/mine.yaml"], "cannot write nowhere/mine.yaml"),
        (["wek"], "did you mean 'weak'"),
    ],
)
def test_a_copy_overwrites_nothing_and_says_what_keeps_it_from_being_made(pscale, tmp_path, arguments, said):
    (tmp_path / "mine.yaml").write_text("name: mine")
    code, _, err = pscale("init", *arguments)
    assert (code, said in err) == (2, True), err
    assert (tmp_path / "mine.yaml").read_text() == "name: mine"
