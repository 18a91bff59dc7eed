"""What is written is on disk, name and all, before anything is done that relies on it."""

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pscale.runs import atomic_files


def test_content_and_names_are_synced_before_anyone_relies_on_them(tmp_path, monkeypatch):
    acts = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor):
        acts.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def noted_replace(source, target):
        acts.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    atomic_files.write(tmp_path / "order", "one")
    assert acts == [f".order.{os.getpid()}.tmp", "replace", tmp_path.name]
    acts.clear()
    atomic_files.append(tmp_path / "journal", b"one")
    atomic_files.append(tmp_path / "journal", b"two")
    assert acts == ["journal", tmp_path.name, "journal"]
    assert (tmp_path / "journal").read_text() == "one\ntwo\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal", "order"]


def test_of_a_file_that_never_ends_no_more_is_read_than_its_size_says(tmp_path):
    endless = Path("/proc/self/pagemap")  # one number for each page that there could be
    assert atomic_files.read(endless) == b""
    assert atomic_files.sha256(endless) == hashlib.sha256().hexdigest()
    assert atomic_files.copy(endless, tmp_path).read_bytes() == b""


def test_a_copy_has_the_content_and_the_permissions_of_its_file(tmp_path):
    (tmp_path / "to").mkdir()
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "a").chmod(0o750)
    copy = atomic_files.copy(tmp_path / "a", tmp_path / "to")
    assert copy.read_bytes() == (tmp_path / "a").read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o750
    assert atomic_files.sha256(copy) == hashlib.sha256(b"x" * 3_000_000).hexdigest()


def test_a_file_that_has_no_room_is_not_copied(tmp_path, monkeypatch):
    (tmp_path / "to").mkdir()
    (tmp_path / "a").write_bytes(b"x" * 8193)
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_bavail=2, f_frsize=4096))
    with pytest.raises(OSError, match=r"a has 8,193 bytes, and 8,192 are free"):
        atomic_files.copy(tmp_path / "a", tmp_path / "to")
    assert not any((tmp_path / "to").iterdir())


def test_what_is_put_in_the_place_of_a_half_written_file_is_left_alone(tmp_path):
    (tmp_path / "victim").write_text("precious")
    half = tmp_path / f".a.{os.getpid()}.tmp"
    half.symlink_to(tmp_path / "victim")
    atomic_files.write(tmp_path / "a", "new")
    assert [(tmp_path / name).read_text() for name in ("a", "victim")] == ["new", "precious"]
    assert not half.is_symlink()
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        atomic_files.append(tmp_path / "log", b"more")
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_user_without_a_home_has_no_folder_and_no_traceback(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("os.getuid", lambda: 54321)
    assert atomic_files.user_folder("XDG_CACHE_HOME", ".cache") == Path("/nonexistent/.cache")
    monkeypatch.setenv("HOME", "/home/a")
    assert atomic_files.user_folder("XDG_CACHE_HOME", ".cache") == Path("/home/a/.cache")


WRITER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from pscale.runs import atomic_files
for _ in range(300):
    atomic_files.write(Path(sys.argv[1]), sys.argv[2] * 100_000, synced=False)
"""


def test_a_file_that_several_processes_write_is_always_that_of_one_of_them(tmp_path):
    path = tmp_path / "a"
    atomic_files.write(path, "a" * 100_000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, letter]) for letter in "abc"]
    while any(writer.poll() is None for writer in writers):
        content = path.read_text()
        assert content == content[0] * 100_000
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        atomic_files.write(tmp_path / "a", "new")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_json_for_other_programs_holds_what_json_can_and_nothing_that_a_terminal_obeys():
    text = atomic_files.to_json({"x": [math.nan, (-math.inf, 1.5)], "\x9b\u202e": None})
    assert json.loads(text, parse_constant=pytest.fail) == {"x": [None, [None, 1.5]], "\x9b\u202e": None}
    assert text.isascii()


def test_commands_print_no_json_of_their_own():
    commands = Path(atomic_files.__file__).parents[1].glob("cli/*.py")
    printing = {path.name for path in commands if "print(json.dumps" in path.read_text()}
    assert printing == {"report.py"}, "which pscale itself reads"
