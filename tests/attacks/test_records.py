"""Records of programs that are torn, lie or are of other sizes: tables, or a message with the file."""

import os

import numpy as np
import pytest
from mutations import mutated_bytes
from recordings import STEPS, record_of

from pscale.errors import ResultsError
from pscale.watch.hang import Progress
from pscale.watch.notes import NOTE, read
from pscale.watch.tables import record_tables

WORDS = ("-1", "0", "1", "2", "3", "4", "9" * 18, "9" * 30, "9" * 5000, "0*1000000000000", "1000000*9", "x")
NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 2**14, 2**20, 2**31 - 1, 2**40, 2**62, 2**63 - 1)


@pytest.fixture
def record(tmp_path):
    """A folder with a good record of three ranks on two nodes."""
    return record_of(tmp_path)


def settled(folder):
    """Return whether a record gives tables; else it is refused with the name of what is wrong."""
    Progress(folder, 0.0).is_stuck()
    try:
        found = record_tables(read(folder))
        record_tables(read(folder), at_once=0, window=20)
        record_tables(read(folder), at_once=0, window=20, most=90)
    except ResultsError as error:
        said = str(error)
    else:
        assert found.columns["steps"] >= 1
        return True
    assert str(folder) in said or "mark fewer" in said
    assert len(said) < 500
    return False


def test_a_good_record_gives_tables(record):
    assert settled(record)
    assert record_tables(read(record)).columns["steps"] == STEPS
    assert record_tables(read(record)).columns["nodes"] == 2


def facts(raw, draw):
    """Return facts that differ in a word, a line or as bytes."""
    if draw.random() < 0.3:
        return mutated_bytes(raw, draw)
    lines = raw.decode().split("\n")
    for _ in range(draw.randint(1, 2)):
        place = draw.randrange(len(lines) - 1)
        words = lines[place].split(" ")
        match draw.randrange(5):
            case 0:
                del lines[place]
            case 1:
                lines.insert(place, draw.choice(lines))
            case 2:
                words.append(draw.choice(WORDS))
                lines[place] = " ".join(words)
            case _:
                words[draw.randrange(len(words))] = draw.choice(WORDS)
                lines[place] = " ".join(words)
    return "\n".join(lines).encode()


def lies(raw, draw):
    """Return notes of which some have other numbers, or that differ as bytes or in their size."""
    match draw.randrange(4):
        case 0:
            return mutated_bytes(raw, draw)
        case 1:
            return raw[: draw.randrange(len(raw) + 1)] + bytes(draw.choice([0, 1, 4096]))
    made = np.frombuffer(raw, NOTE).copy()
    for _ in range(draw.randint(1, 6)):
        name = draw.choice(NOTE.names)
        kinds = np.iinfo(NOTE[name])
        made[name][draw.randrange(len(made))] = min(max(draw.choice(NUMBERS), kinds.min), kinds.max)
    return made.tobytes()


def test_whatever_a_record_holds_it_is_tables_or_a_message_that_names_the_file(record, attack):
    good, refused, count = (
        {path: path.read_bytes() for path in sorted(record.iterdir())},
        0,
        attack.times(150),
    )
    for _ in range(count):
        path = attack.draw.choice([*good])
        raw = (facts if "facts" in path.name else lies)(good[path], attack.draw)
        path.write_bytes(raw)
        try:
            refused += not settled(record)
        except BaseException as error:
            error.add_note(f"with {path.name}:\n{raw[:300]!r}")
            raise
        path.write_bytes(good[path])
    assert count / 10 < refused < count


@pytest.mark.parametrize("name", ["facts.1", "notes.1"])
def test_a_pipe_in_the_place_of_a_record_is_no_trap(record, name):
    (record / name).unlink()
    os.mkfifo(record / name)
    assert not settled(record)
