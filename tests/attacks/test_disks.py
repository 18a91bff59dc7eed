"""Disks on which each write of a run fails in turn, or that fill: what was whole stays, the run resumes."""

import json
import shutil
import subprocess
import sys
from collections import Counter

import pytest
from forked_runs import Copies
from noop_runs import SUITE, make_launcher, make_suite
from patience import share
from synthetic import Point, write_run

from pscale.analysis.frames import load
from pscale.runs.journal import Journal
from pscale.runs.run_events import Ended, Launched
from pscale.runs.store import read_table

# Counts what changes a folder: one such act of an armed process fails, or all once there is no more room.
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

enum { MOST = 4096 };
static char folder[4096];
static long acts, sizes[MOST], fatal, room;

void arm(const char *path, long act, long bytes) {
    strcpy(folder, path), fatal = act, room = bytes, acts = 0;
}
long count(void) { return acts; }
long size(long act) { return sizes[act]; }  /* bytes of a write, 0 of other acts */

/* Ranks are armed by their environment, and say at their end what they have done. */
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DISK");
    if (path) arm(path, atol(getenv("FATAL")), atol(getenv("ROOM")));
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("DISK");
    char name[4096];
    *folder = 0;
    if (!path || !acts) return;
    snprintf(name, sizeof name, "%s.acts", path);
    FILE *file = fopen(name, "w");
    for (long act = 0; act < acts; act++) fprintf(file, "%ld\n", sizes[act]);
    fclose(file);
}

/* Of so many bytes return how many are written; -1 is an act that fails. */
static long granted(const char *path, long bytes) {
    if (!*folder || strncmp(path, folder, strlen(folder))) return bytes;
    long act = __sync_add_and_fetch(&acts, 1);
    if (act > MOST) abort();
    sizes[act - 1] = bytes;
    if (act == fatal || room <= 0) return errno = ENOSPC, -1;
    if (bytes > room) bytes = room;
    __sync_sub_and_fetch(&room, bytes);
    return bytes;
}

/* What lies at `name` in what is open as `file`, or that itself. */
static long granted_to(int file, const char *name, long bytes) {
    char link[64], path[8192];
    if (!*folder) return bytes;
    if (*name == '/') return granted(name, bytes);
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, 4095);
    if (length < 0) return bytes;
    snprintf(path + length, sizeof path - length, *name ? "/%s" : "%s", name);
    return granted(path, bytes);
}

#define REAL(name, ...) int (*real)(__VA_ARGS__) = dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void *bytes, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    long most = granted_to(file, "", size);
    return most < 0 ? most : real(file, bytes, most);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name, const char *, int, ...); \
        va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
        return flags & O_CREAT && granted(path, 0) ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPEN_AT(name) \
    int name(int at, const char *path, int flags, ...) { \
        REAL(name, int, const char *, int, ...); \
        va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
        return flags & O_CREAT && granted_to(at, path, 0) ? -1 : real(at, path, flags, mode); \
    }
OPEN_AT(openat)
OPEN_AT(openat64)

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir, const char *, mode_t);
    return granted(path, 0) ? -1 : real(path, mode);
}

int rename(const char *from, const char *to) {
    REAL(rename, const char *, const char *);
    return granted(to, 0) ? -1 : real(from, to);
}

int fsync(int file) {
    REAL(fsync, int);
    return granted_to(file, "", 0) ? -1 : real(file);
}
"""
AMPLE = 1 << 40  # bytes
# What a copy does: it changes the disk, and says at its end what it has done.
ATTACK = """
disk = ctypes.CDLL(None)
disk.count.restype = disk.size.restype = ctypes.c_long
disk.arm(os.path.join(folder, "reports").encode(), ctypes.c_long({fatal}), ctypes.c_long({room}))
try:
    {code}
finally:
    sys.stdout.flush(), sys.stderr.flush()
    with open("acts", "w") as file:
        json.dump([disk.size(ctypes.c_long(act)) for act in range(disk.count())], file)
"""
RUN = "pscale('run', 'noop.yaml', '--no-report', *{options})"
REPORT = """report.is_worthwhile = lambda: False  # it draws here
    from pscale.runs import store
    store.LEAST, store.JOINED_TABLES = 2, ["cases"]  # else of 16 launches, and all
    sys.exit(report.main(Path({options}[0])))"""
KINDS = pytest.mark.parametrize("kind", ["each act fails once", "it is full from a byte of each write"])


class Disk:
    """Runs a suite in folders whose disk fails."""

    def __init__(self, folder):
        self.folder, self.library = folder, folder / "disk.so"
        (folder / "disk.c").write_text(DISK)
        build = ["cc", "-shared", "-fPIC", "-O1", "-o", self.library, folder / "disk.c", "-ldl"]
        subprocess.run(build, check=True)
        self._copies = Copies(LD_PRELOAD=str(self.library))
        self.close = self._copies.close

    def run(self, folder, *options, does=RUN, fatal=0, room=AMPLE):
        """Run the suite in `folder`; return exit code, what was said, and the bytes of each act."""
        code = does.format(options=[*map(str, options)])
        copy = self._copies.start(folder, ATTACK.format(fatal=fatal, room=room, code=code))
        return copy.wait(), copy.said, json.loads((folder / "acts").read_text())

    def fresh(self, launches=2):
        """Return an empty folder with the suite."""
        folder = self.folder / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make_suite(folder)
        (folder / "noop.yaml").write_text(SUITE.replace("[1, 2, 3]", str([*range(launches)])))
        return folder


@pytest.fixture
def disk(tmp_path):
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    disk = Disk(tmp_path)
    yield disk
    disk.close()


def failures(acts, kind, attack):
    """Return the ways in which a disk fails that has to do these acts: which of them, or when it is full."""
    if kind == "each act fails once":
        return share([{"fatal": number} for number in range(1, len(acts) + 1)])
    writes = [(sum(acts[:number]), size) for number, size in enumerate(acts) if size]
    return share([{"room": start + attack.draw.randrange(size)} for start, size in writes])


# The seed of a launch says what fails in it.
WORKER = """for folder; do :; done
seed=$(sed 's/.*"seed": \\([0-9]*\\).*/\\1/' "$folder/case.json")
. "$0.$seed"
export DISK FATAL ROOM
exec "{python}" -P -m pscale.worker "$folder"
"""


@KINDS
def test_whichever_write_of_a_rank_fails_the_launch_has_a_reason_and_the_run_goes_on(disk, attack, kind):
    def ran(*failing):
        folder = disk.fresh(len(failing))
        make_launcher(folder / "mpiexec", WORKER.format(python=sys.executable))
        for seed, how in enumerate(failing):
            whole = {"fatal": 0, "room": AMPLE} | how
            text = "DISK={}/reports FATAL={fatal} ROOM={room}".format(folder, **whole)
            (folder / f"mpiexec.{seed}").write_text(text)
        code, said, _ = disk.run(folder)
        assert "Traceback" not in said, said
        return folder, code, said

    folder, code, said = ran({})
    assert code == 0, said
    acts = [*map(int, (folder / "reports.acts").read_text().split())]
    assert len(acts) > 10
    failing = failures(acts, kind, attack)
    folder, code, said = ran(*failing, {})
    assert code == 1, said
    journal = opened(folder)
    assert journal.is_finished()
    seeds = {case["id"]: case["train"]["seed"] for case in journal.document["cases"]}
    rows = {seeds[row["case"]]: row for row in read_table(journal.data, "cases").to_pylist()}
    assert [*sorted(rows)] == [*range(len(failing) + 1)]
    assert rows[len(failing)]["status"] == "ok"
    for seed, how in enumerate(failing):
        assert rows[seed]["status"] in {"ok", "failed"}, how
        assert (rows[seed]["status"] == "ok") == (not rows[seed]["reason"]), how
    assert len(load(journal.folder).cases) == len(rows)


@KINDS
def test_whichever_write_of_a_report_fails_no_launch_is_lost_and_files_are_whole(disk, attack, kind):
    def fresh():
        folder = disk.fresh()
        run = write_run(folder / "reports" / "noop" / "run", [Point(ranks=1)], steps=4, joined=False)
        return folder, run

    folder, run = fresh()
    code, said, acts = disk.run(folder, run, does=REPORT)
    assert (code, len(acts) > 10) == (0, True), said
    for how in failures(acts, kind, attack):
        folder, run = fresh()
        code, said, _ = disk.run(folder, run, does=REPORT, **how)
        told = f"{how} of {acts}: exit code {code}\n{said}"
        assert "Traceback" not in said, told
        assert code in {0, 4, 5}, told
        assert code == 0 or "No space left on device" in said, told
        assert len(load(run).cases) == 3, told
        pages = [page for page in (run / "report.html", *run.glob("figures/*.svg")) if page.exists()]
        assert {page.read_text().rstrip()[-6:] for page in pages} <= {"</svg>", "/html>"}, told
        if code == 0:
            continue
        code, said, _ = disk.run(folder, run, does=REPORT)
        assert code == 0, f"{told}\nthen exit code {code}\n{said}"
        assert len(load(run).cases) == 3, told


def opened(folder):
    """Return the journal of the only run that there is; None before there is one."""
    found = [Journal.open(path.parent) for path in folder.glob("reports/noop/*/run.json")]
    assert len(found) <= 1
    return found[0] if found else None


@KINDS
def test_whichever_write_of_a_run_fails_what_was_whole_stays_and_the_run_resumes(disk, attack, kind):
    code, said, acts = disk.run(disk.fresh())
    assert (code, len(acts) > 50) == (0, True), said
    for how in failures(acts, kind, attack):
        folder = disk.fresh()
        code, said, _ = disk.run(folder, **how)
        told = f"{how} of {acts}: exit code {code}\n{said}"
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
        ended = Counter(event.key for event in journal.events() if isinstance(event, Ended))
        rows = read_table(journal.data, "cases").to_pylist()
        assert Counter((row["case"], row["repeat"]) for row in rows) == ended, told
        assert set(ended.values()) == {1}, told
        again = [each for each in journal.events() if isinstance(each, Launched) and each.key in whole]
        assert len(again) == len(whole), told
