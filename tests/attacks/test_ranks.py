"""Ranks that lie, flood, hide or do not end: the launch gets its status and reason, and the run goes on."""

import json
import sys

import psutil
import pytest
from noop_runs import SUITE, WRITES_RESULT, make_launcher
from patience import run_program

from pscale.launch import local
from pscale.runs.journal import Journal
from pscale.runs.store import read_table

HONEST = WRITES_RESULT
CHOOSES = """for folder; do :; done
seed=$(sed 's/.*"seed": \\([0-9]*\\).*/\\1/' "$folder/case.json")
sh "$0.$seed" "$@"
"""
MARK = "PSCALE_ATTACK_SURVIVOR"


def result(text):
    """Return a script that writes a result."""
    return f"for folder; do :; done\ncat > \"$folder/result.json\" <<'END'\n{text}\nEND\n"


def told(columns, status="ok"):
    return result(json.dumps({"status": status, "reason": "", "columns": columns}))


ENDLESS = 'mkfifo "$folder/failure-0.json" "$folder/hang-x.jsonl"; exit 3'
LARGE = 'echo \'{"rank": 0, "ranks": 9007199254740992}\' > "$folder/hang-x.jsonl"; sleep 0.1'
LIES = {  # a script for the second launch, and what its status and reason are
    "nothing": ("exit 0", "failed", "left no results"),
    "no JSON": (result("{"), "failed", "left an invalid result.json"),
    "no object": (result("[]"), "failed", "expected a valid dictionary"),
    "no columns": (result('{"status": "ok", "reason": ""}'), "failed", "columns: is missing"),
    "another status": (told({}, status="great"), "failed", "status 'great'"),
    "another column": (told({"x" * 5000: 1}), "failed", "there is no column"),
    "another case": (told({"case": "../x"}), "failed", "there is no column"),
    "a text for a time": (told({"step_s": "fast"}), "failed", "step_s: "),
    "too large a number": (told({"tokens": 10**400}), "failed", "tokens: "),
    "nested results": (result("[" * 200_000), "failed", "left an invalid result.json"),
    "bytes": (HONEST + 'head -c 1000 /dev/urandom > "$folder/result.json"', "failed", "result.json"),
    "a pipe": (HONEST + 'cd "$folder"; rm result.json; mkfifo result.json', "failed", "left no results"),
    "a failure of nobody": (HONEST + 'echo {} > "$folder/failure-0.json"; exit 3', "failed", "exit code 3"),
    "a failure that never ends": (HONEST + ENDLESS, "failed", "exit code 3"),
    "a hang of a million ranks": (HONEST + LARGE, "ok", ""),
    "closed outputs": (HONEST + "exec >&- 2>&- <&-", "ok", ""),
    "another folder": (HONEST + "cd / && exit", "ok", ""),
    "no logs": (HONEST + 'rm -f "$folder"/std*.log', "ok", ""),
    "no folder": (HONEST + 'rm -rf "$folder"; exit 1', "failed", "the program took cases/"),
    "ends its launcher": ("kill -9 $PPID", "failed", "SIGKILL"),
}

FIGURE = "echo time: 1.5; echo '{\"t\": 2}' > out.json"
LIES_OF_PROGRAMS = {  # a script that is the second launch of a workload, and what its status and reason are
    "honest": (FIGURE, "ok", ""),
    "no figure": ("exit 0", "failed", "the output has no figure time"),
    "a text": ("echo time: 0x10", "failed", "is not a finite number"),
    "bytes": (f"{FIGURE}; echo; head -c 100000 /dev/urandom; echo; echo time: 3", "ok", ""),
    "a long line": (f"{FIGURE}; head -c 5000000 /dev/zero | tr '\\0' a", "ok", ""),
    "no JSON": (f"{FIGURE}; echo '[' > out.json", "failed", "is not JSON"),
    "nested JSON": (f"{FIGURE}; yes [ | head -c 2000000 > out.json", "failed", "is not JSON"),
    "no text": (f"{FIGURE}; head -c 1000 /dev/urandom > out.json", "failed", "is not JSON"),
    "a pipe": (f"{FIGURE}; rm out.json; mkfifo out.json", "failed", "the program wrote no out.json"),
    "a device": (f"{FIGURE}; ln -sf /dev/zero out.json", "failed", "the program wrote no out.json"),
    "a folder": (f"{FIGURE}; rm out.json; mkdir out.json", "failed", "the program wrote no out.json"),
    "a large file": (f"{FIGURE}; truncate -s 3G out.json", "failed", "out.json has more than"),
    "a way out": (f'{FIGURE}; ln -s "$0.outside" out', "ok", ""),
    "no logs": (f"{FIGURE}; rm ../std*.log", "ok", ""),
    "logs that never end": (f"{FIGURE}; rm ../std*.log; mkfifo ../stdout.log ../stderr.log", "ok", ""),
    "no folder": (f"{FIGURE}; rm -rf ../../*-0", "failed", ""),
    "a folder for a result": (f"{FIGURE}; mkdir ../result.json", "ok", ""),
    "files that stay": (f"{FIGURE}; mkdir -p a/b; touch a/b/c; chmod 0 a/b", "ok", ""),
}
WORKLOAD = """
name: noop
scaling: throughput
workload:
  command: "sh {{here}}/program.{{n}}"
  params: {{n: 0}}
  figures: {{time: {{regex: "^time: (.*)", unit: s}}, json: {{json: out.json, path: t, unit: s}}}}
sweep: {{n: {numbers}}}
repeat: 1
launch: {{launcher: ./mpiexec, scheduler: none}}
"""
STARTS = """for last; do :; done
exec sh "$last"
"""

# A process inherits the peak of the one that starts it: a small one starts the driver.
WITH_PEAK = """
import pathlib, resource, subprocess, sys
code = subprocess.call([sys.executable, *sys.argv[1:]])
pathlib.Path("peak").write_text(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


@pytest.fixture
def run(tmp_path):
    """Run a launch for each script and two honest ones; return their rows and folders, in that order."""

    def go(*scripts, options=()):
        make_launcher(tmp_path / "mpiexec", CHOOSES)
        for seed, script in enumerate((*scripts, HONEST, HONEST)):
            (tmp_path / f"mpiexec.{seed}").write_text(script)
        seeds = [*range(len(scripts) + 2)]
        (tmp_path / "noop.yaml").write_text(SUITE.replace("[1, 2, 3]", str(seeds)))
        code, journal, rows = run_suite(tmp_path, ["-c", WITH_PEAK, "-m"], *options)
        rows = {case["train"]["seed"]: rows[case["id"]] for case in journal.document["cases"]}
        found = [(rows[seed], journal.folder / "cases" / f"{rows[seed]['case']}-0") for seed in seeds]
        assert [row["status"] for row, _ in found[-2:]] == ["ok", "ok"]
        assert code == int(any(row["status"] != "ok" for row, _ in found))
        return found[:-2]

    return go


def run_suite(folder, start=("-m",), *options):
    """Run the suite in a folder; return exit code, journal, and rows by case."""
    command = [sys.executable, *start, "pscale", "run", "noop.yaml", "--no-report", *options]
    done = run_program(command, code=None, cwd=folder)
    assert "Traceback" not in done.stderr, done.stderr
    (run,) = folder.glob("reports/noop/*")
    journal = Journal.open(run)
    assert journal.is_finished(), done.stderr
    rows = read_table(journal.data, "cases").to_pylist()
    return done.returncode, journal, {row["case"]: row for row in rows}


def wrong_endings(lies, rows):
    """Return the lies whose launch has another status or reason than it should."""
    return {
        lie: (row["status"], row["reason"])
        for (lie, (_, status, reason)), row in zip(lies.items(), rows, strict=True)
        if row["status"] != status or reason not in row["reason"] or len(row["reason"]) > 1500
    }


def test_a_lie_is_the_end_of_one_launch_alone(run):
    assert wrong_endings(LIES, [row for row, _ in run(*(script for script, *_ in LIES.values()))]) == {}


def test_a_program_that_lies_ends_its_own_launch_alone(tmp_path):
    make_launcher(tmp_path / "mpiexec", STARTS)
    lies = [*LIES_OF_PROGRAMS.values(), (FIGURE, "ok", "")]
    for number, (script, *_) in enumerate(lies):
        (tmp_path / f"program.{number}").write_text(script)
        (tmp_path / f"program.{number}.outside").mkdir()
        (tmp_path / f"program.{number}.outside" / "precious").touch()
    (tmp_path / "noop.yaml").write_text(WORKLOAD.format(numbers=[*range(len(lies))]))
    _, journal, rows = run_suite(tmp_path)
    found = {case["workload"]["params"]["n"]: rows[case["id"]] for case in journal.document["cases"]}
    assert wrong_endings(LIES_OF_PROGRAMS, [found[number] for number in range(len(LIES_OF_PROGRAMS))]) == {}
    assert len([*tmp_path.glob("*.outside/precious")]) == len(lies)


def test_a_flood_on_standard_error_fills_neither_memory_nor_disk(run, tmp_path):
    flood = "yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | head -c 1000000000 >&2; echo last words >&2; exit 1"
    ((row, folder),) = run(flood)
    assert "last words" in row["reason"]
    assert len(row["reason"]) < 1000
    assert sum(path.stat().st_size for path in folder.iterdir()) <= local.LARGEST_LOG_BYTES
    assert int((tmp_path / "peak").read_text()) < 500_000, "KiB"
    text = (folder / "stderr.log").read_bytes()
    assert b"bytes left out" in text
    assert text.endswith(b"last words\n")


def test_no_process_of_a_launch_outlives_it_though_it_hides_and_ignores_signals(run, tmp_path):
    stays = "trap '' TERM HUP INT; (sleep 1000 & sleep 1000)"
    hides = f'{HONEST}env -i {MARK}={tmp_path} setsid sh -c "{stays}" >/dev/null 2>&1 & sleep 0.2\n'
    ends = {"exit 0": "ok", "exit 3": "failed", stays: "timeout"}
    seeds = range(len(ends) + 2)  # those behind them are honest
    limits = {[*ends].index(stays): ", launch.time_limit: 2s"}  # the others take as long as they need
    cases = ", ".join(f"{{train.seed: {seed}{limits.get(seed, '')}}}" for seed in seeds)
    found = run(*(hides + end for end in ends), options=("--set", f"sweep={{cases: [{cases}]}}"))
    assert [row["status"] for row, _ in found] == [*ends.values()]
    assert survivors(tmp_path) == []


def survivors(tmp_path):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(tmp_path):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
