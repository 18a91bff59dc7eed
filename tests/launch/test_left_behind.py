"""Programs that put links and other files in the place of a launch's own: nothing elsewhere is touched."""

import filecmp
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from noop_runs import make_launcher
from patience import LIMIT_S

from pscale.errors import ResultsError
from pscale.launch.outcome import HangReports, describe_hang, judge
from pscale.runs.journal import Journal
from pscale.runs.launch_folder import LaunchFolder
from pscale.runs.store import read_table
from pscale.watch.notes import read

STARTS = 'for last; do :; done\nexec sh "$last"\n'
SECRET = "a line of the victim"
ACCOUNT = "root:x:0:0"
# Each ends with a copy of the victim, whose path is $V, as it is to stay.
BEGIN = 'echo time: 1.5; V="$0.victim"; w=$PWD; launch=${w%/work}\n'
END = '\ncp -a "$V" "$V.before"\n'
PRECIOUS = {"precious": SECRET, "out.json": '{"t": 7}', "a.dat": SECRET, "deep/precious": SECRET}

SOCKET = 'import socket; socket.socket(socket.AF_UNIX).bind("../stdout.log")'

WELL = {  # scripts of launches that end well; the figure is in their output
    "work is a link": 'cd ..; rm -r work; ln -s "$V" work',
    "work dangles": 'cd ..; rm -r work; ln -s "$V/none" work',
    "work was moved": 'cd ..; mv work "$V/kept"; ln -s "$V/kept" work; touch work/more',
    "work was made again": 'cd ..; rm -r work; cp -a "$V" work',
    "a file for work": 'cd ..; rm -r work; ln "$V/precious" work',
    "links in work": 'ln -s "$V" a; mkdir b; ln -s "$V" b/c; ln -s "$V/.." d; ln -s "$V/precious" e',
    "hard links in work": 'ln "$V/precious" a; mkdir b; ln "$V/precious" b/c',
    "a log is a link": 'ln -sf "$V/precious" ../stdout.log',
    "a log is a hard link": 'ln -f "$V/precious" ../stdout.log',
    "a log dangles": 'ln -sf "$V/none" ../stdout.log',
    "logs are one": "rm ../stderr.log; ln ../stdout.log ../stderr.log",
    "a large link": 'truncate -s 70M "$V/large"; ln -sf "$V/large" ../stdout.log',
    "a large log that was moved": 'yes | head -c 70000000; echo; echo time: 1.5; mv ../stdout.log "$V"',
    "a large log with a second name": (
        'yes | head -c 70000000; echo; echo time: 1.5; ln ../stdout.log "$V/log"'
    ),
    "links for a result": 'ln -s "$V/precious" ../result.json; ln -s "$V/a.dat" ../result.json.tmp',
    "links for reports": 'ln -s "$V/precious" ../failure-0.json; ln -s "$V/a.dat" ../hang-x.jsonl',
    "mounts": (
        'mkdir m; for f in work/m failure-0.json hang-x.jsonl; do [ -e "../$f" ] || : >"../$f"; if [ '
        '-d "../$f" ]; then from="$V"; else from="$V/precious"; fi; mount --bind "$from" "../$f" 2>&1; '
        "done; true"
    ),
    "links for tables": (
        'for each in cases figures; do ln -s "$V/precious" "../../../data/$each-${launch##*/}.parquet"; done'
    ),
    "links for other launches": (
        'for id in $(grep -o \'"id": "[^"]*\' ../../../run.json | cut -d\'"\' -f4); do [ -e '
        '"../../$id-0" ] || ln -s "$V" "../../$id-0"; done'
    ),
    "a socket for a log": f"rm ../stdout.log; {shlex.quote(sys.executable)} -c '{SOCKET}'",
    "a chain of links": (
        'ln -s "$V" 0; for n in $(seq 30); do ln -s "$((n - 1))" "$n"; done; cd ..; mv work/* .; rm -r '
        "work; ln -s 30 work; ln -sf 30/precious stdout.log"
    ),
    "a link far down": 'for n in $(seq 300); do mkdir d; ln -s "$V" l; ln "$V/precious" p; cd d; done',
    "names that look like options": 'cd ..; ln -s "$V" ./-rf; ln -s "$V" work/--help; ln -s "$V" "work/*"',
    "a folder that is a link now and then": (
        '(cd ..; while :; do mv work kept; ln -s "$V" work; rm work; mv kept work; done) 2>/dev/null & '
        "sleep 0.2"
    ),
    "a link that comes and goes": (
        '(while :; do ln -sf "$V/precious" ../stdout.log; rm ../stdout.log; mkfifo ../stdout.log; rm '
        "../stdout.log; done) 2>/dev/null & sleep 0.2"
    ),
}
FAILED = {  # a script, and what is in the reason of its failure
    "a log is quoted": ('ln -sf "$V/precious" ../stdout.log; (exit 3)', "exit code 3"),
    "an error log is quoted": ('ln -sf "$V/precious" ../stderr.log; (exit 3)', "exit code 3"),
    "a hard link is quoted": ('ln -f "$V/precious" ../stderr.log; (exit 3)', "exit code 3"),
    "the launch is a link": ('cd /; mv "$launch" "$V/launch"; ln -s "$V" "$launch"', "took"),
    "the launch is a folder": ('cd /; rm -r "$launch"; cp -a "$V" "$launch"', "took"),
    "an account is quoted": ("ln -sf /etc/passwd ../stderr.log; (exit 3)", "exit code 3"),
    "a device is quoted": ("rm ../std*.log; mknod ../stderr.log c 1 5 2>&1; (exit 3)", "exit code 3"),
}
OUTPUT = {name: (script, "ok", "") for name, script in WELL.items()} | {
    name: (script, "failed", reason) for name, (script, reason) in FAILED.items()
}
FILES = {  # the same with a figure in a file, and files that are to be kept
    "honest": ("echo '{\"t\": 2}' > out.json; touch a.dat", "ok", ""),
    "a link inside": ("echo '{\"t\": 2}' > x; ln -s x out.json; touch b; ln -s b a.dat", "ok", ""),
    "a link": ('ln -s "$V/out.json" out.json; touch a.dat', "failed", "out.json lies elsewhere"),
    "a hard link": ('ln "$V/out.json" out.json; touch a.dat', "failed", "out.json has a name elsewhere"),
    "a dangling link": ('ln -s "$V/none" out.json; touch a.dat', "failed", "wrote no out.json"),
    "a pipe": ("mkfifo out.json; touch a.dat", "failed", "out.json is no file"),
    "a file of the kernel": ("ln -s /proc/self/pagemap out.json; touch a.dat", "failed", "wrote no out.json"),
    "a linked folder": ('cd ..; rm -r work; ln -s "$V" work', "failed", "something else in that place"),
    "a kept link": ('echo \'{"t": 2}\' > out.json; ln -s "$V/a.dat" .', "failed", "left no file *.dat"),
}
RUNS = {  # these end the run
    "cases": 'cd /; mv "${launch%/*}" "$V/cases"; ln -s "$V/cases" "${launch%/*}"',
    "data": 'rm -r ../../../data; ln -s "$V" ../../../data',
    "journal.jsonl": 'ln -sf "$V/precious" ../../../journal.jsonl',
    "": 'cd /; mv "${launch%/*/*}" "$V/run"; ln -s "$V" "${launch%/*/*}"',
    "run.json": 'ln -sf "$V/precious" ../../../run.json',
}
SUITE = """
name: noop
scaling: throughput
workload: {{command: "sh {{here}}/program.{{n}}", params: {{n: 0}}, {fields}}}
sweep: {{n: {numbers}}}
repeat: 1
launch: {{launcher: ./mpiexec, scheduler: none}}
"""


@pytest.fixture
def launched(tmp_path):
    """Run programs; return the end of the command, and rows by program. No victim has changed."""

    def go(scripts, fields):
        make_launcher(tmp_path / "mpiexec", STARTS)
        for number, script in enumerate(scripts):
            (tmp_path / f"program.{number}").write_text(f"{BEGIN}{{ {script}; }}; code=$?{END}exit $code\n")
            for name, text in PRECIOUS.items():
                path = tmp_path / f"program.{number}.victim" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        (tmp_path / "noop.yaml").write_text(SUITE.format(fields=fields, numbers=[*range(len(scripts))]))
        alone = ["unshare", "--mount"]  # what programs mount goes with them
        mounts = shutil.which(alone[0]) and not subprocess.run([*alone, "true"], check=False).returncode
        command = [sys.executable, "-m", "pscale", "run", "noop.yaml", "--no-report"]
        command = [*alone, *command] if mounts else command
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert SECRET not in done.stdout + done.stderr
        assert ACCOUNT not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        victims = [*tmp_path.glob("*.victim.before")]
        assert victims
        for before in victims:
            assert_same(before.with_suffix(""), before)
        return done, victims

    return go


def assert_same(folder, before):
    compared = filecmp.dircmp(folder, before)
    assert not compared.left_only + compared.right_only + compared.common_funny, folder
    _, wrong, errors = filecmp.cmpfiles(folder, before, compared.common_files, shallow=False)
    assert not wrong + errors, folder
    times = [[(each / name).stat().st_mtime_ns for name in compared.common] for each in (folder, before)]
    assert times[0] == times[1], folder
    for name in compared.common_dirs:
        assert_same(folder / name, before / name)


def rows(tmp_path):
    journal = Journal.open(next(tmp_path.glob("reports/noop/*")))
    numbers = {case["id"]: case["workload"]["params"]["n"] for case in journal.document["cases"]}
    return {numbers[row["case"]]: row for row in read_table(journal.data, "cases").to_pylist()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("programs", "fields"),
    [
        (OUTPUT, 'figures: {time: {regex: "^time: (.*)", unit: s}}'),
        (FILES, 'figures: {t: {json: out.json, path: t, unit: s}}, files: {out: ["*.dat"]}'),
    ],
    ids=["output", "files"],
)
def test_what_a_program_puts_in_the_place_of_its_files_leads_nowhere(
    launched, tmp_path, pscale, programs, fields
):
    _, victims = launched([script for script, *_ in programs.values()], fields)
    assert len(victims) == len(programs)
    found = rows(tmp_path)
    (run,) = tmp_path.glob("reports/noop/*")
    for name in ("html", "md", "json", "csv", "latex"):
        code, out, err = pscale("report", run, "--full", "-f", name)
        assert (code, SECRET in out, ACCOUNT in out, "Traceback" in err) == (0, False, False, False), name
    made = [path for path in run.rglob("*") if "cases" not in path.parts and path.is_file()]
    contents = {path.relative_to(run): path.read_bytes() for path in made}
    assert Path("report.html") in contents
    told = [
        name
        for name, content in contents.items()
        if SECRET.encode() in content or ACCOUNT.encode() in content
    ]
    assert told == []
    wrong = {
        name: (found[number]["status"], found[number]["reason"])
        for number, (name, (_, status, reason)) in enumerate(programs.items())
        if (found[number]["status"], reason in found[number]["reason"]) != (status, True)
        or SECRET in found[number]["reason"]
    }
    assert wrong == {}


@pytest.mark.parametrize("name", RUNS)
def test_a_program_that_takes_the_place_of_its_run_ends_it_and_nothing_is_written_there(launched, name):
    done, _ = launched([RUNS[name]], 'figures: {time: {regex: "^time: (.*)", unit: s}}')
    assert done.returncode == 4
    assert "a program replaced it; nothing more is written" in done.stderr
    assert name in done.stderr


def test_a_folder_that_is_another_now_is_left_as_it_is(launched, tmp_path):
    launched([WELL["work was made again"]], 'figures: {time: {regex: "^time: (.*)", unit: s}}')
    (work,) = tmp_path.glob("reports/noop/*/cases/*/work")
    assert_same(work, tmp_path / "program.0.victim")


FAILURE = {"rank": 0, "status": "failed", "traceback": "", "message": SECRET, "unix_s": 1.0}
HANG = {
    "rank": 0,
    "ranks": 1,
    "verb": SECRET,
    "axis": SECRET,
    "group": [0],
    "step": 1,
    "phase": "x",
    "still_s": 9.0,
    "stack": [],
}


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_what_ranks_leave_counts_only_where_it_is_theirs_alone(tmp_path, link):
    launch = tmp_path / "launch"
    launch.mkdir()
    for name, content in (("failure-0.json", FAILURE), ("hang-x.jsonl", HANG), ("result.json", {})):
        (tmp_path / name).write_text(json.dumps(content))
        link(launch / name, tmp_path / name)
    folder = LaunchFolder(launch)
    assert judge(folder, 0).status == "failed"
    assert SECRET not in judge(folder, 1).reason
    assert not describe_hang(folder)
    assert not HangReports(folder).are_complete()
    link(launch / "facts.0", tmp_path / "hang-x.jsonl")
    with pytest.raises(ResultsError, match=r"facts\.0: ") as refusal:
        read(launch)
    assert SECRET not in str(refusal.value)


def test_a_record_is_read_through_no_link(tmp_path):
    (tmp_path / "notes").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(ResultsError, match="there is no such folder"):
        read(tmp_path / "notes")
