"""Disks that fail at any write of a run, once or from then on: what was whole stays, and the run resumes."""

import json
import shutil
import subprocess
import sys
from collections import Counter

import pytest
from forked_runs import Copies
from noop_runs import SUITE, make_launcher, make_suite
from synthetic import Point, write_run

from pscale.analysis.frames import load
from pscale.launch.journal import Journal
from pscale.results.store import read_table

# Counts what changes a folder; the n-th such act of an armed process fails, and with `full` all that follow.
# The n-th leaves half of what it should write then, as on a disk that fills.
DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[4096], last[4096];
static long fatal = -1, acts, firsts[4096], changes;
static int full;

void arm(const char *path, long n, int stays) { strcpy(folder, path); acts = 0; full = stays; fatal = n; }
long count(void) { return acts; }
long first(long index) { return index < changes ? firsts[index] : 0; }  /* of each file, in turn */

/* Ranks are armed by their environment, and say at their end how often they have changed the folder. */
__attribute__((constructor)) static void begin(void) {
    const char *armed = getenv("FATAL");
    if (armed) arm(getenv("FATAL_IN"), atol(armed), atol(getenv("FATAL_STAYS")));
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("FATAL_COUNT");
    fatal = -1;
    FILE *file = path ? fopen(path, "a") : 0;
    if (file) fprintf(file, "%ld\n", acts), fclose(file);
}

/* 0: goes well, 1: fails, 2: the first failure of a disk that is full from now on */
static int fate(const char *path) {
    if (fatal < 0 || strncmp(path, folder, strlen(folder))) return 0;
    long act = __sync_add_and_fetch(&acts, 1);
    if (strcmp(path, last) && changes < 4096) { strcpy(last, path); firsts[changes++] = act; }
    if (act == fatal) return full ? 2 : 1;
    return full && act > fatal;
}

static int fate_of(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fate(path);
}

static ssize_t no_space(void) { errno = ENOSPC; return -1; }

ssize_t write(int file, const void *bytes, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    int saved = errno, fails = fatal < 0 ? 0 : fate_of(file);
    errno = saved;
    if (fails == 2 && size > 1) return real(file, bytes, size / 2);
    return fails ? no_space() : real(file, bytes, size);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
        va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
        return flags & O_CREAT && fate(path) ? (int)no_space() : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

int mkdir(const char *path, mode_t mode) {
    int (*real)(const char *, mode_t) = dlsym(RTLD_NEXT, "mkdir");
    return fate(path) ? (int)no_space() : real(path, mode);
}
"""
# What a copy does: it changes the disk, or its ranks do, and says at its end how often.
ATTACK = """
import itertools
disk = ctypes.CDLL(None)
disk.count.restype = disk.first.restype = ctypes.c_long
inside = os.path.join(folder, "reports")
if {ranks}:
    os.environ |= {{"FATAL": "{fatal}", "FATAL_IN": inside, "FATAL_STAYS": "{full:d}"}}
    os.environ["FATAL_COUNT"] = os.path.join(folder, "counts")
else:
    disk.arm(inside.encode(), ctypes.c_long({fatal}), {full})
try:
    {code}
finally:
    sys.stdout.flush(), sys.stderr.flush()
    with open("acts", "w") as file:
        numbers = itertools.count()
        firsts = iter(lambda: disk.first(ctypes.c_long(next(numbers))), 0)
        json.dump([disk.count(), [*firsts]], file)
"""
RUN = "pscale('run', 'noop.yaml', '--no-report', *{options})"
REPORT = """publish_process.is_worthwhile = lambda: False  # it draws here
    sys.exit(publish_process.main(Path({options}[0])))"""


class Disk:
    """Runs a suite in folders whose disk fails."""

    def __init__(self, folder):
        self.folder, library = folder, folder / "disk.so"
        (folder / "disk.c").write_text(DISK)
        build = ["cc", "-shared", "-fPIC", "-O1", "-o", library, folder / "disk.c", "-ldl"]
        subprocess.run(build, check=True)
        self._copies = Copies(LD_PRELOAD=str(library))
        self.close = self._copies.close

    def run(self, folder, *options, who="driver", fatal=1 << 40, full=False):
        """Run the suite in `folder`; return exit code, what was said, and what changed the disk.

        That is the number of acts, and those that are the first of a file. The disk fails `who` writes.
        """
        code = (REPORT if who == "reporter" else RUN).format(options=[*map(str, options)])
        copy = self._copies.start(
            folder, ATTACK.format(ranks=who == "ranks", fatal=fatal, full=full, code=code)
        )
        return copy.wait(), copy.said, json.loads((folder / "acts").read_text())

    def fresh(self):
        """Return an empty folder with the suite."""
        folder = self.folder / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make_suite(folder)
        return folder


@pytest.fixture
def disk(tmp_path):
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    disk = Disk(tmp_path)
    yield disk
    disk.close()


WORKER = """for folder; do :; done
exec "{python}" -P -m pscale.worker "$folder"
"""


@pytest.mark.parametrize("full", [False, True], ids=["one write fails", "the disk is full"])
def test_whichever_write_of_a_rank_fails_the_launch_has_a_reason_and_the_run_goes_on(disk, attack, full):
    def fresh():
        folder = disk.fresh()
        make_launcher(folder / "mpiexec", WORKER.format(python=sys.executable))
        (folder / "noop.yaml").write_text(SUITE.replace("[1, 2, 3]", "[1]"))
        return folder

    folder = fresh()
    code, said, _ = disk.run(folder, who="ranks")
    assert code == 0, said
    acts = max(map(int, (folder / "counts").read_text().split()))
    assert acts > 10
    for fatal in sorted(attack.draw.sample(range(1, acts + 1), min(acts, attack.times(3)))):
        folder = fresh()
        code, said, _ = disk.run(folder, who="ranks", fatal=fatal, full=full)
        told = f"write {fatal} of {acts}: exit code {code}\n{said}"
        assert code in {0, 1}, told
        assert "Traceback" not in said, told
        journal = opened(folder)
        assert journal.is_finished(), told
        (row,) = read_table(journal.data, "cases").to_pylist()
        assert (row["status"] == "ok") == (code == 0), told
        assert row["status"] == "ok" or row["reason"], told
        assert load(journal.folder).cases["status"].tolist() == [row["status"]], told


@pytest.mark.parametrize("full", [False, True], ids=["one write fails", "the disk is full"])
def test_whichever_write_of_a_report_fails_no_launch_is_lost_and_files_are_whole(disk, attack, full):
    def fresh():
        folder = disk.fresh()
        run = write_run(folder / "reports" / "noop" / "run", [Point(ranks=1), Point(ranks=2)], steps=4)
        return folder, run

    folder, run = fresh()
    code, said, (acts, _) = disk.run(folder, run, who="reporter")
    assert (code, acts > 10) == (0, True), said
    for fatal in sorted(attack.draw.sample(range(1, acts + 1), min(acts, attack.times(4)))):
        folder, run = fresh()
        code, said, _ = disk.run(folder, run, who="reporter", fatal=fatal, full=full)
        told = f"write {fatal} of {acts}: exit code {code}\n{said}"
        assert "Traceback" not in said, told
        assert code in {0, 4, 5}, told
        assert code == 0 or "No space left on device" in said, told
        assert len(load(run).cases) == 6, told
        pages = [page for page in (run / "report.html", *run.glob("figures/*.svg")) if page.exists()]
        assert {page.read_text().rstrip()[-6:] for page in pages} <= {"</svg>", "/html>"}, told
        code, said, _ = disk.run(folder, run, who="reporter")
        assert code == 0, f"{told}\nthen exit code {code}\n{said}"


def opened(folder):
    """Return the journal of the only run that there is; None before there is one."""
    found = [Journal.open(path.parent) for path in folder.glob("reports/noop/*/run.json")]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("full", [False, True], ids=["one write fails", "the disk is full"])
def test_whichever_write_of_a_run_fails_what_was_whole_stays_and_the_run_resumes(disk, attack, full):
    code, said, (acts, firsts) = disk.run(disk.fresh())
    assert (code, len(firsts) > 20) == (0, True), said
    some = attack.draw.choices(firsts, k=attack.times(10)) + attack.draw.choices(
        range(1, acts + 1), k=attack.times(5)
    )
    for fatal in sorted(some):
        folder = disk.fresh()
        code, said, _ = disk.run(folder, fatal=fatal, full=full)
        told = f"write {fatal} of {acts}: exit code {code}\n{said}"
        assert "Traceback" not in said, told
        assert code in {0, 4}, told
        assert code == 0 or "No space left on device" in said, told
        journal = opened(folder)
        whole = journal.finished() if journal else set()
        if journal:
            with_rows = read_table(journal.data, "cases").to_pylist()
            assert whole <= {(row["case"], row["repeat"]) for row in with_rows}, told
        if code == 0:
            assert journal.is_finished(), told
            continue
        code, said, _ = disk.run(folder, *(["--run", str(journal.folder)] if journal else []))
        assert code == 0, f"{told}\nthen exit code {code}\n{said}"
        journal = opened(folder)
        assert journal.is_finished(), told
        ended = Counter((e["case"], e["repeat"]) for e in journal.records() if e["event"] == "ended")
        rows = read_table(journal.data, "cases").to_pylist()
        assert Counter((row["case"], row["repeat"]) for row in rows) == ended, told
        assert set(ended.values()) == {1}, told
        again = [
            e for e in journal.records() if e["event"] == "launched" and (e["case"], e["repeat"]) in whole
        ]
        assert len(again) == len(whole), told
