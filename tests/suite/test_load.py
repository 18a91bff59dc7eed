import json
import time
from pathlib import Path

import pytest
from mistakes import mistakes
from patience import check_spent

from pscale.errors import SuiteError, UsageError
from pscale.suite.expand import expand
from pscale.suite.load import Auto, Override, find_site, load_suite


def message(load, *arguments, **options):
    with pytest.raises(SuiteError) as caught:
        load(*arguments, **options)
    return str(caught.value)


def test_a_suite_is_read_with_its_defaults(suite):
    loaded = suite()
    assert (loaded.name, loaded.title, loaded.scaling, loaded.repeat) == ("weak", "Weak scaling", "weak", 2)
    assert loaded.resolved["plan"]["dp"] == "=ranks"
    assert loaded.resolved["plan"]["bucket"] == 4 << 20
    assert loaded.resolved["plan"]["tp"] == 1
    assert loaded.resolved["launch"]["time_limit"] == 600.0
    assert loaded.resolved["train"]["optimizer"] == "adamw"
    assert loaded.given == loaded.file.read_text()
    assert json.loads(json.dumps(loaded.resolved)) == loaded.resolved


MISTAKES = r"""
# names
title: => titel:
    weak.yaml:2: titel: a suite has no such field; did you mean 'title'?
layers: => layer:
    weak.yaml:4: model.layer: … kind gpt has no such field; did you mean 'layers'?
  batch: =>   bacth:
    weak.yaml:7: train.bacth: … did you mean 'batch'?
where: => were:
    weak.yaml:18: expect[0].were: … did you mean 'where'?
title: => quux:
    weak.yaml:2: quux: … expected one of name, title,
name: weak\n
    weak.yaml:1: name: is missing … folder
scaling: weak\n
    weak.yaml:1: scaling: is missing; expected one of weak, strong, throughput
kind: gpt, layers => layers
    weak.yaml:4: model: 'kind' is missing; expected one of gpt, moe, block, linear
kind: gpt => kind: gtp
    weak.yaml:4: model.kind: unknown kind 'gtp'; did you mean 'gpt'?
kind: gpt => kind: moe, top_k: 3
    weak.yaml:4: model.top_k: expected at most 2, got 3
kind: gpt => kind: moe, capacity_factor: 0.0
    model.capacity_factor: expected more than 0
kind: gpt => kind: gpt, experts: 8
    weak.yaml:4: model.experts: … 'model' of kind gpt, unlike that of kind moe, has no such field
bucket: 4MiB => micro_batches: 2
    weak.yaml:11: plan.micro_batches: … 'plan' has no such field; did you mean 'train.micro_batches'?
bucket: 4MiB => algorithm: cannon
    did you mean 'plan.matrix.algorithm'?
launch: { => launch: {omp: {proc_bnd: close},
    launch.omp.proc_bnd: 'launch.omp' has no such field; did you mean 'proc_bind'?
repeat: 2 => require: {blas_threading: openm}
    require.blas_threading: 'openm' is not possible; did you mean 'openmp'?
kind: gpt => kind: block
    weak.yaml:4: model.layers: … of kind block, unlike that of kind gpt or moe, has
kind: text => kind: linear
    weak.yaml:5: data.source: … expected one of kind, samples
dp: ranks => checkpoint: every-1
    weak.yaml:11: plan.checkpoint: expected none, selective, full, or every-2, every-3 and so on (every-1 is
    full), got 'every-1'
dp: ranks => checkpoint: 2
    plan.checkpoint: expected a text, got 2
# types
steps: 10 => steps: "10"
    weak.yaml:10: train.steps: expected a whole number, got '10' … without quotes
steps: 10 => steps: 1e3
    weak.yaml:10: train.steps: expected a whole number, got 1000.0; 1000 is one
steps: 10 => steps: 2.5
    train.steps: expected a whole number, got 2.5; see round, ceil and floor
steps: 10 => steps: true
    train.steps: expected a whole number, got true
steps: 10 => steps:
    train.steps: expected a whole number, got null
steps: 10 => steps: 0x10
    train.steps: expected a whole number, got '0x10'
lr: 1.0e-3 => lr: fast
    weak.yaml:8: train.lr: expected a number, got 'fast'
clip: 1.0 => clip: off
    weak.yaml:9: train.clip: expected a number, got 'off'
  threads: [1] =>   threads: 1
    weak.yaml:14: sweep.threads: expected a list, such as [1, 2], got 1
bind: core => oversubscribe: yes
    weak.yaml:17: launch.oversubscribe: expected true or false, got 'yes'
bind: core => env: {A: 1}
    launch.env.A: expected a text, got 1; in quotes it is a text: "1"
bind: core => env: {"A B": x}
    launch.env.A B: expected the name of an environment variable, got 'A B'
bind: core => bind: cores
    weak.yaml:17: launch.bind: 'cores' is not possible; did you mean 'core'?
exclude: ["ranks * threads > cores"] => exclude: all
    weak.yaml:15: exclude: expected a list
title: Weak scaling => title: 3
    weak.yaml:2: title: expected a text, got 3
train:\n => train: 3\ntrian:\n
    weak.yaml:6: train: expected fields, as in {name: value}, got 3
# ranges and units
steps: 10 => steps: 0
    train.steps: expected at least 1, got 0
steps: 10 => steps: -10
    train.steps: expected at least 1, got -10
steps: 10 => steps: 99999999999
    train.steps: expected at most 1000000000, got 99999999999
lr: 1.0e-3 => lr: .nan
    train.lr: expected a finite number, got NaN
lr: 1.0e-3 => lr: 1e999
    train.lr: expected a finite number, got Infinity
lr: 1.0e-3 => lr: 0
    train.lr: expected more than 0, got 0
lr: 1.0e-3 => beta1: 1.0
    train.beta1: expected less than 1, got 1.0
bucket: 4MiB => bucket: 4mb
    weak.yaml:11: plan.bucket: expected a size such as 512KiB … got '4mb'
time_limit: 10m => time_limit: 10:00
    launch.time_limit: expected a time such as 10us, 90s … got '10:00'
dp: ranks => dp: all
    plan.dp: expected a whole number, an expression, ranks or rest, got 'all'
dp: ranks => tp: 0
    weak.yaml:11: plan.tp: expected at least 1, got 0
dp: ranks => zero: 4
    weak.yaml:11: plan.zero: 4 is not possible; expected 0, 1, 2 or 3
dp: ranks => schedule: 1fb1
    plan.schedule: '1fb1' is not possible; did you mean '1f1b'?
dp: ranks => dp: rest, cp: rest
    weak.yaml:11: plan: dp and cp cannot both be rest
repeat: 2 => repeat: true
    repeat: expected a whole number, got true
repeat: 2 => repeat: auto\nknown_to: 2
    known_to: expected less than 1, got 2
repeat: 2 => repeat: auto\nknown_to: 3 percent
    known_to: expected a share such as 3% or 0.03, got '3 percent'
repeat: 2 => precision: 0.1
    weak.yaml:16: precision: expected a type of numbers … `known_to`
repeat: 2 => precision: {loss_scale: 1e9}
    weak.yaml:16: precision.loss_scale: expected at most 16777216, got 1000000000
repeat: 2 => precision: bf61
    weak.yaml:16: precision.type: 'bf61' is not possible
heads: 4 => heads: 4, dtype: float64
    weak.yaml:4: model.dtype … `precision: float64`
repeat: 2 => repeat: 0
    weak.yaml:16: repeat: expected at least 1, got 0
repeat: 2 => repeat: often
    repeat: expected a whole number or auto, got 'often'
repeat: 2 => precision: {loss_scale: big}
    precision.loss_scale: expected a number, an expression, auto, none or dynamic, got 'big'
bind: core => gpus: all
    launch.gpus: expected a whole number, an expression or none
# a kind where there are none
dp: ranks => kind: tensor
    weak.yaml:11: plan.kind: 'plan' has no such field
bind: core => kind: [1]
    weak.yaml:17: launch.kind: 'launch' has no such field
kind: gpt => kind: [1]
    weak.yaml:4: model.kind: unknown kind
name: weak => name: ../weak
    weak.yaml:1: name: expected letters … got '../weak'
# the sweep and what is expected
ranks: [1, 2, 4] => ranks: []
    weak.yaml:13: sweep.ranks: expected at least one value
ranks: [1, 2, 4] => ranks: [1, 2, 2]
    weak.yaml:13: sweep.ranks: lists 2 twice
ranks: [1, 2, 4] => ranks: [1, [2]]
    weak.yaml:13: sweep.ranks[1]: expected a single value
ranks: [1, 2, 4] => zip: {ranks: [1], width: [64, 128]}
    sweep.zip: … ranks has 1, width has 2
ranks: [1, 2, 4] => zip: {ranks: []}
    weak.yaml:13: sweep.zip: expected at least one value
ranks: [1, 2, 4] => cases: []
    weak.yaml:13: sweep.cases: expected at least one value
ranks: [1, 2, 4] => cases: [{}]
    weak.yaml:13: sweep.cases[0]: expected at least one field
metric: efficiency => metric: efficency
    expect[0].metric: … did you mean 'efficiency'?
, at_least: 0.85
    weak.yaml:18: expect[0]: expected at_least or at_most
at_least: 0.85 => at_least: 0.85, lower: 0.8
    expect[0]: expected at_least and at_most, or value with lower and upper, not both
at_least: 0.85 => upper: 1
    weak.yaml:18: expect[0]: lower and upper lie around a value
at_least: 0.85 => value: 0.9, lower: 0.95
    weak.yaml:18: expect[0]: nothing lies between 0.95 and 0.9
at_least: 0.85 => at_least: 85, unit: s
    weak.yaml:18: expect[0]: efficiency is not measured in 's'; expected one of 1, %
at_least: 0.85 => at_least: 1, case: a
    weak.yaml:18: expect[0]: expected where or case, not both
"""


@pytest.mark.parametrize(("old", "new", "expected"), mistakes(MISTAKES))
def test_a_mistake_is_named_with_line_field_and_what_would_be_right(suite, old, new, expected):
    text = message(suite, (old, new))
    assert [part for part in expected if part not in text] == []


@pytest.mark.parametrize("digits", [70, 5_000, 40_000, 900_000])
@pytest.mark.parametrize(
    ("field", "unit"),
    [
        ("launch.time_limit", "m"),
        ("launch.time_limit", "x"),
        ("plan.bucket", "MiB"),
        ("plan.bucket", ""),
        ("plan.tp", "ranks"),
        ("model.width", ""),
        ("plan.checkpoint", "every"),
        ("launch.partition", "'"),
        ("launch.nothing", ""),
    ],
)
def test_a_long_text_is_refused_before_a_pattern_sees_it(suite, field, unit, digits):
    begun = time.process_time()
    text = message(suite, overrides=[f"{field}='{'9' * digits}{unit.replace(chr(39), chr(39) * 2)}'"])
    assert "expected" in text or "at most 10000 are allowed" in text or "no such field" in text
    check_spent(begun, 2.0)  # patterns and messages are linear


@pytest.mark.parametrize(
    "text", ["=" + "9" * 5_000, "=" + "-" * 499 + "1", "=" + "a." * 240 + "a", "=(" * 99]
)
def test_an_expression_that_is_long_or_deep_is_refused(cases, text):
    with pytest.raises(
        SuiteError, match=r"characters|operations|unknown name|not arithmetic|cannot be computed"
    ):
        cases(("width: 64", f'width: "{text}"'))


def test_all_mistakes_of_a_file_are_named_at_once_in_its_order(suite):
    text = message(suite, ("title:", "titel:"), ("steps: 10", "steps: 0"), ("repeat: 2", "repeat: x"))
    lines = text.splitlines()
    assert [line.rpartition("/")[2].split(": ")[0] for line in lines] == [
        "weak.yaml:2",
        "weak.yaml:10",
        "weak.yaml:16",
    ]


@pytest.fixture
def extending(write, tmp_path):
    """Return what writes a suite that extends the valid one with some of its text replaced."""

    def top(text, *changes):
        write(*changes)
        path = tmp_path / "top.yaml"
        path.write_text(f"extends: weak.yaml\n{text}")
        return path

    return top


def test_a_suite_extends_another_group_by_group_and_another_kind_of_model_starts_afresh(extending, tmp_path):
    middle = extending("name: middle\nmodel: {width: 128}\nsweep: {ranks: [1]}\n")
    middle.rename(tmp_path / "middle.yaml")
    path = extending("name: top\ntrain: {lr: 0.5}\nmodel: {heads: 8}\n")
    path.write_text(path.read_text().replace("weak.yaml", "./middle.yaml"))
    loaded = load_suite(path)
    assert loaded.name == "top"
    assert {"width": 128, "heads": 8, "layers": 2}.items() <= loaded.resolved["model"].items()
    assert {"lr": 0.5, "steps": 10}.items() <= loaded.resolved["train"].items()
    assert "threads" not in loaded.resolved["sweep"], "a sweep is replaced, not added to"
    block = extending("name: block\nmodel: {kind: block, width: 32}\ndata: {kind: synthetic}\n")
    model = load_suite(block).resolved["model"]
    assert {"kind": "block", "width": 32, "heads": 4, "sequence": 256}.items() <= model.items()
    assert "layers" not in model


def test_a_mistake_in_an_extended_file_is_named_there_and_a_name_is_not_inherited(extending, tmp_path):
    path = extending("repeat: 0\n", ("steps: 10", "steps: 0"))
    text = message(load_suite, path)
    assert f"{tmp_path / 'weak.yaml'}:10: train.steps" in text
    assert f"{path}:2: repeat" in text
    assert "name: is missing" in text


def test_a_chain_that_goes_in_a_circle_or_nowhere_is_refused(write, tmp_path):
    path = write(("title: Weak scaling", "extends: other.yaml"))
    assert "weak.yaml:2: extends: there is no file" in message(load_suite, path)
    (tmp_path / "other.yaml").write_text("name: other\nextends: weak.yaml\n")
    text = message(load_suite, path)
    assert "other.yaml:2: extends: goes in a circle: weak.yaml -> other.yaml -> weak.yaml" in text


def test_overrides_replace_single_fields(suite):
    overrides = ["model.width=128", "batch=8", "train.clip=null", "sweep.ranks=[1, 2]", "launch.env.A=cores"]
    found = suite(overrides=overrides).resolved
    assert {"width": 128, "heads": 4}.items() <= found["model"].items()
    assert {"batch": 8, "clip": None}.items() <= found["train"].items()
    assert {"ranks": [1, 2], "threads": [1]}.items() <= found["sweep"].items()
    assert found["launch"]["env"] == {"A": "cores"}


@pytest.mark.parametrize("override", ["width=512", "model.width=512", "model={width: 512}"])
def test_an_override_of_a_group_that_the_file_leaves_out_is_of_its_default_kind(tmp_path, override):
    path = tmp_path / "bare.yaml"
    path.write_text("name: bare\nscaling: weak\ndata: null\n")
    loaded = load_suite(path, [override, "split=sample"])
    assert (loaded.resolved["model"]["kind"], loaded.resolved["model"]["width"]) == ("gpt", 512)
    assert (loaded.resolved["data"]["kind"], loaded.resolved["data"]["split"]) == ("text", "sample")
    linear = load_suite(path, ["model.kind=linear", "samples=20"]).resolved
    assert linear["data"] == {"kind": "linear", "samples": 20}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("sweep={}", {}),
        ("sweep={steps: [1, 2]}", {"steps": [1, 2]}),
        ("sweep.ranks=[2]", {"model.width": [64], "zip": {"threads": [1], "train.lr": [0.1]}, "ranks": [2]}),
        ("sweep.width=[32]", {"model.width": [32], "zip": {"threads": [1], "train.lr": [0.1]}}),
        ("sweep.zip={steps: [3]}", {"model.width": [64], "zip": {"steps": [3]}}),
        ("sweep.zip.lr=[0.2]", {"model.width": [64], "zip": {"threads": [1], "train.lr": [0.2]}}),
    ],
)
def test_an_override_replaces_the_sweep_or_one_field_of_it(suite, override, expected):
    sweep = "  model.width: [64]\n  zip: {threads: [1], train.lr: [0.1]}"
    loaded = suite(("  ranks: [1, 2, 4]\n  threads: [1]", sweep), overrides=[override])
    assert loaded.values["sweep"] == expected


def test_an_override_of_a_group_keeps_the_rest_and_where_it_was_written(suite):
    overrides = ["train={steps: 3}"]
    assert suite(overrides=overrides).resolved["train"]["batch"] == 4
    assert suite(overrides=overrides).resolved["train"]["steps"] == 3
    assert "weak.yaml:8: train.lr: expected" in message(suite, ("lr: 1.0e-3", "lr: 0"), overrides=overrides)
    assert "--set train={steps: 0}: train.steps:" in message(suite, overrides=["train={steps: 0}"])


WRONG = """
foo=3
    --set foo=3: a suite has no such field; expected one of title, … `pscale schema` has all
wdith=3
    --set wdith=3: a suite has no such field; did you mean 'width'?
repat=3
    did you mean 'repeat'?
kind=block
    did you mean 'model.kind' or 'data.kind'?
wdith={a: 3}
    did you mean 'width'?
modle.width=3
    --set modle.width=3: modle: … did you mean 'model'?
model.widht=3
    --set model.widht=3: model.widht: … did you mean 'width'?
precision=bfloat16
    did you mean 'bf16'?
precision=float16
    did you mean 'fp16'?
precision=half
    did you mean 'fp16'?
precision=fp64
    did you mean 'float64'?
width=wide
    --set width=wide: model.width: expected a whole number, got 'wide'
width
    --set width: expected field=value
model..width=3
    expected field=value
ranks=2
    --set ranks=2: the suite sweeps this field … `--set sweep.ranks=[2]` … --only "ranks == 2"
width=[1
    --set width=[1: … not YAML
width=!!python/name:os.system x
    is not allowed
name=other
    'name' cannot be overridden
"""


@pytest.mark.parametrize(("override", "_", "expected"), mistakes(WRONG))
def test_an_override_that_cannot_be_is_named(suite, override, _, expected):
    text = message(suite, overrides=[override])
    assert [part for part in expected if part not in text] == []


def test_an_option_that_stands_for_an_override_is_named_as_it_was_typed(suite):
    text = message(suite, overrides=[Override("budget=3x", "--budget 3x")])
    assert "--budget 3x: budget: expected a time such as" in text


def test_paths_with_spaces_and_shell_characters_are_plain_paths(write):
    path = write(name="a b; $(touch x) 'q'.yaml")
    assert load_suite(path).file == Path(path)


def test_launches_until_precise_begin_with_five_unless_fewer_are_allowed(suite):
    usual = suite(("repeat: 2", "repeat: auto"))
    assert (usual.repeat, usual.auto) == (6, Auto(precision=0.02, most=30))
    few = suite(("repeat: 2", "repeat: auto\nknown_to: 0.1\nmax_repeats: 3"))
    assert (few.repeat, few.auto) == (3, Auto(precision=0.1, most=3, least=3))
    timed = suite(("repeat: 2", "repeat: auto\nknown_to: 3%\nbudget: 2m"))
    assert (timed.repeat, timed.auto) == (1, Auto(precision=0.03, most=30, budget_s=120))
    assert suite().auto is None


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
    found = find_site("mine", folder, "laptop").profile
    assert (found.poll_s, found.nodes, found.cores_per_node) == (120, 100, 48)
    with pytest.raises(UsageError, match=r"--site nope: no such profile in .*sites.yaml.*known: other, mine"):
        find_site("nope", folder, "laptop")


def test_a_profile_beside_the_suite_comes_before_that_of_the_user(folder, tmp_path):
    own = tmp_path / "config" / "pscale" / "sites.yaml"
    own.parent.mkdir(parents=True)
    own.write_text('mine: {hosts: ["*"], poll: 5s}\nhome: {hosts: ["*"], poll: 5s}\n')
    assert find_site(None, folder, "head").profile.poll_s == 120
    assert find_site(None, folder, "laptop").name == "mine"
    assert find_site("home", folder, "laptop").profile.poll_s == 5


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
