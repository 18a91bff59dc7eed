"""Every command where an output is full, closed or read by nobody, or no file can be written: a message."""

import shutil

import pytest
from forked_runs import Copies
from noop_runs import make_suite

RUN = "reports/pipeline/run"
FROM = ("--from", RUN, "--any-machine")
COMMANDS = (
    *(("--version",), ("--help",), ("trace", "--help"), ("schema",), ("nonsense",), ("suites",)),
    *(("doctor", "--json"), ("init", "weak"), ("show", "quick"), ("show", "noop.yaml", "--json")),
    *(("show", "pipeline", "--figure", "new/x.svg"), ("run", "noop.yaml", "--dry-run")),
    *(("run", "noop.yaml", "--no-report", "--record"), ("status", RUN)),
    *(("list",), ("cancel", RUN), ("report", RUN, "--no-figures"), ("report", RUN, "--figure-format", "png")),
    *(("report", RUN, "-f", name) for name in ("html", "json", "csv")),
    *(("compare", RUN, RUN, "-f", "json"), ("check", RUN, "--junit", "new.xml")),
    *(("check", RUN, "--update"), ("check", RUN, "--json"), ("trace", RUN), ("trace", RUN, "-o", "-")),
    *(("trace", RUN, "-o", "new/x.json.gz"), ("trace", RUN, "--figure", "new/x.svg")),
    *(("export", RUN, "-f", name) for name in ("chakra", "goal", "otf2", "extrap")),
    *(("predict", "weak", *FROM, "--ranks", "2"), ("predict", "weak", *FROM, "--ranks", "2", "--json")),
    *(("advise", "weak", *FROM, "--ranks", "2", "--measure", "0"), ("history", "add", RUN), ("history",)),
    *(("history", "-f", name) for name in ("html", "json")),
)
CODES = {"nonsense": 2, "compare": 2, "check": 1}  # of a refusal, and of a run that lacks launches; else 0
OUTPUTS = {
    "stdout is full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
    "stderr is full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "stdout is closed": "os.close(1); sys.stdout = sys.__stdout__ = None",
    "stderr is closed": "os.close(2); sys.stderr = sys.__stderr__ = None",
    "nobody reads stdout": "ends = os.pipe(); os.dup2(ends[1], 1); os.close(ends[0]); os.close(ends[1])",
}
DISK = """
import resource, signal
for number in 1, 2:
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""


@pytest.fixture(scope="module")
def copies():
    made = Copies()
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(with_events, copies, tmp_path_factory):
    """A folder with a run, its history and a suite."""
    folder = tmp_path_factory.mktemp("whole")
    shutil.copytree(with_events, folder / RUN)
    make_suite(folder)
    assert copies.start(folder, f"pscale('history', 'add', {RUN!r})").wait() == 0
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_whose_words_or_files_are_lost_says_so(whole, copies, tmp_path, attack, command):
    def ended(before):
        shutil.rmtree(folder := tmp_path / "folder", ignore_errors=True)
        copy = copies.start(shutil.copytree(whole, folder), f"{before}\npscale(*{command})")
        assert copy.wait() in {0, 1, 2, 4, 5, 6}, f"{before}: {copy.said}"
        assert "Traceback" not in copy.said
        return copy

    usual = 0 if "--update" in command else CODES.get(command[0], 0)
    ended(DISK)
    for place in attack.draw.sample([*OUTPUTS], min(len(OUTPUTS), attack.times(1))):
        copy = ended(OUTPUTS[place])
        if "reads" in place:
            assert copy.code == usual
        elif place.startswith("stdout") and usual == 0 and "--record" not in command:
            assert (copy.code, "pscale: cannot write to stdout: " in copy.said) == (1, True), place
        else:
            assert copy.code in {usual, 1}
