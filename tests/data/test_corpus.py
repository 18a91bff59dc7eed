import math
import os
from pathlib import Path

import numpy as np
import pytest

from pscale.data import corpus as corpus_module
from pscale.data.corpus import SEPARATOR, byte_counts, find_corpus, unigram_nats
from pscale.errors import UsageError

CONTENTS = {"b two.txt": "größer\n".encode(), "a.txt": bytes(range(250, 256)), "c\udcff.txt": b"last"}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    (folder / "empty.txt").touch()
    (folder / "folder.txt").mkdir()
    return folder


def test_a_glob_is_its_files_in_order_with_a_separator_between_them(folder, monkeypatch):
    monkeypatch.setattr(corpus_module, "_BLOCK_BYTES", 4)
    expected = bytes([SEPARATOR]).join(CONTENTS[name] for name in sorted(CONTENTS))
    corpus = find_corpus(str(folder / "*.txt"))
    assert corpus.size == len(expected)
    for start in range(len(expected)):
        for stop in range(start + 1, len(expected) + 1):
            out = np.full(stop - start, 7, np.uint8)
            corpus.read_into(start, out)
            assert out.tobytes() == expected[start:stop]
            assert b"".join(block.tobytes() for block in corpus.blocks(start, stop)) == expected[start:stop]


def test_a_file_is_itself_even_if_its_name_looks_like_a_glob(tmp_path):
    path = tmp_path / "data [1]*.bin"
    path.write_bytes(b"x" * 5)
    corpus = find_corpus(str(path))
    assert (corpus.files, corpus.size) == ((path,), 5)


def test_the_standard_library_is_found_without_tests_and_installed_packages():
    corpus = find_corpus("python-stdlib")
    names = [path.name for path in corpus.files]
    folders = {
        part for path in corpus.files for part in path.relative_to(Path(os.__file__).parent).parts[:-1]
    }
    assert "argparse.py" in names
    assert all(name.endswith(".py") for name in names)
    assert not folders & {"site-packages", "test", "tests", "idle_test", "__pycache__"}
    assert corpus.files == tuple(sorted(corpus.files, key=lambda path: path.parts))
    assert corpus.size > 5_000_000


def test_guessing_python_by_byte_frequency_costs_between_3_and_4_nats():
    corpus = find_corpus("python-stdlib")
    assert 3 < unigram_nats(byte_counts(corpus.blocks(0, corpus.size))) < 4


def test_the_unigram_loss_is_the_entropy_of_the_counts():
    uniform = np.arange(256, dtype=np.uint8)
    assert unigram_nats(byte_counts([uniform, uniform])) == pytest.approx(math.log(256), rel=1e-14)
    skewed = np.frombuffer(b"aaab", np.uint8)
    assert unigram_nats(byte_counts([skewed])) == pytest.approx(
        -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("b tow.txt", r"no file '.*b tow.txt'; did you mean '.*b two.txt'\?"),
        ("nowhere/x.txt", "no file '.*nowhere/x.txt'$"),
        ("*.csv", r"no file matches '.*\*.csv'"),
        ("folder.*", r"no file matches '.*folder.\*'"),
        ("folder.txt", r"folder.txt' is a folder; name files in it, for example '.*/\*\*/\*.txt'"),
        ("empty.txt", "empty.txt' is empty"),
        ("pipe", "pipe' is not a regular file"),
        ("long" * 100, "File name too long"),
        ("two\nlines", r"no file '.*two\\nlines'"),
    ],
)
def test_a_source_that_cannot_be_is_refused_by_name(folder, name, message):
    os.mkfifo(folder / "pipe")
    with pytest.raises(UsageError, match=message) as error:
        find_corpus(str(folder / name))
    assert str(error.value).startswith("data.source")
    assert "\n" not in str(error.value)


def test_a_misspelt_standard_library_is_recognised(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="did you mean 'python-stdlib'"):
        find_corpus("python-stdlb")


def test_the_home_of_an_unknown_user_is_no_file_and_no_traceback():
    with pytest.raises(UsageError, match="no file '~nosuch/x'"):
        find_corpus("~nosuch/x")


def test_a_file_without_permission_is_refused(folder, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, _mode: path.name != "a.txt")
    with pytest.raises(UsageError, match=r"no permission to read '.*a.txt'"):
        find_corpus(str(folder / "*.txt"))


def test_a_file_that_shrinks_or_vanishes_before_it_is_read_is_named(folder):
    corpus = find_corpus(str(folder / "*.txt"))
    (folder / "b two.txt").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"b two.txt' became shorter"):
        corpus.read_into(0, np.empty(corpus.size, np.uint8))
    (folder / "b two.txt").unlink()
    with pytest.raises(UsageError, match=r"cannot read '.*b two.txt': No such file"):
        corpus.read_into(0, np.empty(corpus.size, np.uint8))
