"""What is written is on disk, name and all, before anything is done that relies on it."""

import os
from pathlib import Path

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
