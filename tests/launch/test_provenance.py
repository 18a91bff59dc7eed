import json
import subprocess

from pscale.launch.provenance import provenance


def git(folder, *words):
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_the_commit_and_whether_files_were_changed_since_are_known(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance(tmp_path)["git"] is None
    git(tmp_path, "init")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "m")
    clean = provenance(tmp_path)["git"]
    assert (len(clean["commit"]), clean["dirty"]) == (40, False)
    (tmp_path / "a").write_text("2")
    assert provenance(tmp_path)["git"] == {**clean, "dirty": True}


def test_no_program_that_the_configuration_of_a_repository_names_is_started(tmp_path, monkeypatch):
    folder, program = tmp_path / "folder" / "below", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/started'\ncat\n")
    program.chmod(0o755)
    folder.mkdir(parents=True)
    git(folder.parent, "init")
    (folder / "a").write_text("1")
    (folder.parent / ".gitattributes").write_text("* filter=own diff=own")
    git(folder, "add", "-A", "..")
    git(folder, "commit", "-m", "m")
    for name in (
        *("core.fsmonitor", "core.pager", "pager.status", "diff.external", "diff.own.command"),
        *("filter.own.clean", "filter.own.smudge", "filter.own.process", "core.sshCommand", "gpg.program"),
        *("diff.own.textconv", "core.editor", "core.askPass", "credential.helper", "alias.status"),
    ):
        git(folder, "config", name, str(program))
    git(folder, "config", "core.hooksPath", str(tmp_path))
    (tmp_path / "post-index-change").symlink_to(program)
    (folder / "a").touch()  # so that it has to be read
    assert provenance(folder)["git"]["dirty"] is False
    (folder / "a").write_text("2")
    monkeypatch.chdir(folder)
    assert provenance()["git"]["dirty"] is True
    assert not (tmp_path / "started").exists()


def test_variables_that_change_mpi_openmp_or_blas_are_kept_and_others_are_not(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setenv("RAYON_NUM_THREADS", "3")
    monkeypatch.setenv("A_SECRET", "s")
    found = provenance()
    assert {"OMP_WAIT_POLICY": "active", "RAYON_NUM_THREADS": "3"}.items() <= found["environment"].items()
    assert "A_SECRET" not in json.dumps(found)
    assert found["packages"].keys() >= {"numpy", "pscale"}
