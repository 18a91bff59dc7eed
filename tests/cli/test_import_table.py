"""`pscale import`: tables of others as runs, however they write numbers; what is unknown stays unknown."""

import json

import pytest

GERMAN = "P;N;Zeit [ms];G\n1;400;8.050,5;1,5\n2;400;4200;3,0\n2;400;4400;3,2\n2;800;;6,0\n"
TABLES = {
    "comma": ("ranks,n,t (s)\n1,400,8.0505\n2,400,4.2\n2,400,4.4\n2,800,nan\n", "ranks", "t (s)", "n"),
    "decimal comma": (GERMAN, "P", "Zeit [ms]", "N"),
    "tabs": (GERMAN.replace(";", "\t"), "P", "Zeit [ms]", "N"),
    "spaces": (
        "# p n time_ms\n1 400 8050.5\n2 400 4.2e3\n# a remark\n2 400 4400\n2 800 -\n",
        "p",
        "time_ms",
        "n",
    ),
    "bars": ("P | N | T\n1 | 400 | 8.0505\n2 | 400 | 4.2\n2 | 400 | 4.4\n2 | 800 | *\n", "P", "T", "N"),
}


@pytest.fixture
def imported(pscale, tmp_path):
    """Return a function that imports a table and returns the JSON of its report."""

    def run(text, *options, code=0):
        (tmp_path / "table.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        found, _, err = pscale("import", "table.csv", *options, "--no-report")
        assert found == code, err
        if code not in (0, 1):
            return err
        return json.loads(pscale("report", "-f", "json")[1])

    return run


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_read_whatever_separates_its_columns_and_decimals(imported, name):
    text, ranks, time, size = TABLES[name]
    report = imported(text, "--ranks", ranks, "--time", time, "--param", f"n={size}", code=1)
    cases = {case["label"]: case for case in report["cases"]}
    assert cases.keys() == {"1 rank · n 400", "2 ranks · n 400", "2 ranks · n 800"}
    assert cases["1 rank · n 400"]["step_s"] == pytest.approx(8.0505)
    assert cases["2 ranks · n 400"]["step_s"] == pytest.approx((4.2 * 4.4) ** 0.5)
    assert cases["2 ranks · n 400"]["launches"] == 2
    assert cases["2 ranks · n 800"]["status"] == "failed", "a line without a time"
    assert report["failures"][0]["reason"].startswith("line ")


@pytest.mark.parametrize("time", ["0", "-1", "inf", "1e400", "nan"])
def test_a_line_whose_time_is_no_time_is_a_launch_that_failed(imported, time):
    report = imported(f"p,t\n1,10\n2,{time}\n", "--ranks", "p", "--time", "t", code=1)
    assert [case["status"] for case in report["cases"]] == ["ok", "failed"]


def test_a_table_has_no_calls_and_running_it_again_is_not_advised(imported, pscale):
    imported("p,t\n1,2\n2,1\n", "--ranks", "p", "--time", "t")
    for command in (
        ("trace",),
        ("export", "--format", "goal"),
        ("report", "--what-if", "{all: {latency: 5us}}"),
    ):
        assert "imported from a table, which has no calls" in " ".join(pscale(*command)[2].split())


def test_what_a_table_does_not_tell_stays_unknown_and_is_said(imported):
    report = imported("p,t\n1,2\n2,1\n", "--ranks", "p", "--time", "t")
    assert any("machine, MPI library, binding" in note for note in report["notes"])
    assert [case["wall_s"] for case in report["cases"]] == [None, None]
    assert report["lost_time"] == []
    assert "workload.watch" not in json.dumps(report), "nothing can be run again"


def test_the_evidence_of_a_table_names_its_program(imported, pscale):
    imported("p,t\n1,2\n1,2\n2,1\n2,1\n", "--ranks", "p", "--time", "t", "--name", "ising")
    sheet = pscale("report", "reports/ising", "--evidence", "--format", "md")[1]
    assert (
        "We measured strong scaling of 'ising' from 1 to 2 ranks, with 2 launches of each size. The" in sheet
    )


def test_metrics_and_the_work_of_weak_scaling_are_taken_from_columns(imported):
    text = "p,n,t,GF [GFLOP/s]\n1,64,1.0,2\n3,93,1.1,5\n"
    options = ("--ranks", "p", "--time", "t", "--param", "n", "--weak", "--work", "n**3")
    report = imported(text, *options, "--metric", "gflops=GF [GFLOP/s]")
    assert {merit["unit"] for merit in report["merits"] if merit["figure"] == "gflops"} == {"GFLOP/s"}
    works = {case["label"]: case["work"] for case in report["cases"]}
    assert sorted(works.values()) == [64**3, 93**3]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("p,t\n1,2\n", ("--ranks", "P", "--time", "T [s]"), "--time: the column 'T [s]' is not in table.csv"),
        ("p,t\n1,2\n", ("--ranks", "q", "--time", "t"), "expected one of p, t"),
        ("p,t\nmany,2\n", ("--ranks", "p", "--time", "t"), "table.csv:2: 'many' is not a number of ranks"),
        ("p,t\n1,2\n", ("--ranks", "p", "--time", "t", "--unit", "MB"), "'MB' is not a unit of time"),
        ("p,t\n1,2\n", ("--ranks", "p", "--time", "t", "--param", "n n=t"), "expected name=COLUMN"),
        ("p,t\n", ("--ranks", "p", "--time", "t"), "a line for each launch"),
    ],
)
def test_a_table_that_cannot_be_read_is_answered_with_what_is_wrong(imported, text, options, said):
    assert said in " ".join(imported(text, *options, code=2).split())
