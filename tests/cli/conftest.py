"""The command line as a person meets it, called in this process."""

import sys

import pytest

from pscale.cli import main


@pytest.fixture
def pscale(monkeypatch, capsys, tmp_path):
    """Run the command line in an empty folder; return its exit code, standard output and standard error."""

    def call(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["pscale", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call
