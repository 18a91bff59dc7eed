"""What a case needs beside memory, before it is started."""

from dataclasses import replace

import pytest

from pscale.cli import room
from pscale.config import Case, Launch, Model, Plan
from pscale.launch import machine


@pytest.mark.parametrize("free", [0, 1 << 40, None])
def test_a_case_whose_files_find_no_room_is_not_started(free, monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda _: free)
    here = replace(machine.inspect(), nodes=1)
    plan = Plan(dp=2, offload="optimizer", offload_folder="/scratch")
    case = Case(suite="s", label="l", ranks=2, model=Model(), plan=plan, launch=Launch(oversubscribe=True))
    found = room.Room(case, here).shortage
    assert found.endswith("that are free in /scratch: plan.offload_folder names another") == (free == 0)
    assert bool(found) == (free == 0)
    assert not room.Room(replace(case, plan=Plan(dp=2)), here).shortage
