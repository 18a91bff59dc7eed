import pytest

from pscale.errors import SuiteError, UsageError
from pscale.suite.expand import expand
from pscale.suite.load import find_site, load_suite

SITES = """
other:
  hosts: ["x*"]
mine:
  hosts: ["login[0-9]*", "head"]
  poll: 2m
  nodes: 100
  cores_per_node: 48
  launch:
    partition: batch
    modules: [gcc, mpi]
    env: {A: "1", B: "1"}
"""
SUITE = """
name: s
scaling: weak
launch: {partition: fast, env: {B: "2"}}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "s.yaml").write_text(SUITE)
    (tmp_path / "suite" / "sites.yaml").write_text(SITES)
    return tmp_path / "suite"


def test_a_profile_is_chosen_by_the_name_of_the_host_or_by_its_own(folder):
    assert find_site(None, folder, "login3").name == "mine"
    assert find_site(None, folder, "laptop").name == ""
    found = find_site("mine", folder, "laptop")
    assert (found.poll_s, found.nodes, found.cores_per_node) == (120, 100, 48)
    with pytest.raises(UsageError, match=r"--site nope: no such profile in .*sites.yaml.*known: other, mine"):
        find_site("nope", folder, "laptop")


def test_a_profile_beside_the_suite_comes_before_that_of_the_user(folder, tmp_path):
    own = tmp_path / "config" / "pscale" / "sites.yaml"
    own.parent.mkdir(parents=True)
    own.write_text('mine: {hosts: ["*"], poll: 5s}\nhome: {hosts: ["*"], poll: 5s}\n')
    assert find_site(None, folder, "head").poll_s == 120
    assert find_site(None, folder, "laptop").name == "mine"
    assert find_site("home", folder, "laptop").poll_s == 5


def test_a_suite_and_the_command_line_say_the_last_word(folder):
    site = find_site("mine", folder, "")
    launch = load_suite(folder / "s.yaml", ['launch.env.A="0"'], site).resolved["launch"]
    assert launch["partition"] == "fast"
    assert launch["modules"] == ["gcc", "mpi"]
    assert launch["env"] == {"A": "0", "B": "2"}
    assert (
        load_suite(folder / "s.yaml", [], find_site(None, folder, "laptop")).resolved["launch"]["modules"]
        == []
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mine: {pole: 3s}", r"sites.yaml:1: mine.pole: "),
        ("mine:\n  launch:\n    partition: a b", r"sites.yaml:3: mine.launch.partition: expected one word"),
        ("mine: {poll: soon}", "mine.poll: expected a time"),
        ("mine: 3", "sites.yaml:1: mine: "),
        ("- mine", "expected fields"),
    ],
)
def test_a_mistake_in_a_profile_is_reported_with_its_line(folder, text, said):
    (folder / "sites.yaml").write_text(text)
    with pytest.raises(SuiteError, match=said):
        find_site("mine", folder, "")


def test_a_mistake_that_a_profile_brings_into_a_suite_has_the_line_of_the_profile(folder):
    (folder / "sites.yaml").write_text("mine:\n  launch:\n    ranks_per_node: '=nonsense'\n")

    suite = load_suite(folder / "s.yaml", [], find_site("mine", folder, ""))
    with pytest.raises(SuiteError, match=r"sites.yaml:3: launch.ranks_per_node"):
        expand(suite, {"cores": 1.0, "memory_gib": 1.0, "nodes": 1.0})
