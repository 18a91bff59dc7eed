"""What a case needs beside memory, before it is started."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pscale.cli import costs
from pscale.config import Case, Launch, Model, Plan
from pscale.launch import machine


@pytest.mark.parametrize("free", [0, 1 << 40, None])
def test_a_case_whose_files_find_no_room_is_not_started(free, monkeypatch):
    monkeypatch.setattr(costs, "free_bytes", lambda _: free)
    here = replace(machine.inspect(), nodes=1)
    plan = Plan(dp=2, offload="optimizer", offload_folder="/scratch")
    case = Case(suite="s", label="l", ranks=2, model=Model(), plan=plan, launch=Launch(oversubscribe=True))
    found = costs.memory_fits([case], here)[case.id].shortage
    assert found.endswith("free in /scratch: choose another plan.offload_folder") == (free == 0)
    assert bool(found) == (free == 0)
    other = replace(case, plan=Plan(dp=2))
    assert not costs.memory_fits([other], here)[other.id].shortage


def test_what_only_the_machine_that_starts_ranks_can_lack_refuses_nothing_elsewhere():
    def fit(name, refusal="", shortage="", blas="auto"):
        case = SimpleNamespace(id=name, launch=Launch(blas=blas))
        return SimpleNamespace(case=case, is_known=True, refusal=refusal, shortage=shortage)

    made = [
        fit("large", refusal="needs 9 GiB"),
        fit("full", shortage="offloads 9 GiB"),
        fit("slow", blas="/no/such/libblas.so"),
        fit("fine"),
    ]
    fits = {each.case.id: each for each in made}
    assert costs.refusals(fits, starts_here=False) == {"large": "needs 9 GiB"}
    found = costs.refusals(fits, starts_here=True)
    assert "/no/such/libblas.so" in found.pop("slow")
    assert found == {"large": "needs 9 GiB", "full": "offloads 9 GiB"}
