"""What is written is on disk, name and all, before anything is done that relies on it."""

import hashlib
import os
from pathlib import Path

import pytest

from pscale import atomic_files


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
    assert acts == ["order.tmp", "replace", tmp_path.name]
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


def test_what_is_put_in_the_place_of_a_half_written_file_is_left_alone(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "a.tmp").symlink_to(tmp_path / "victim")
    atomic_files.write(tmp_path / "a", "new")
    assert [(tmp_path / name).read_text() for name in ("a", "victim")] == ["new", "precious"]
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
