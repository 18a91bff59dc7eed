"""An OTF2 archive is what its format promises: all that begins ends, in order, and messages match."""

from collections import Counter, defaultdict
from pathlib import Path

import otf2
import pytest

from pscale.analysis.frames import load
from pscale.analysis.timeline import traced
from pscale.cli.options import Export
from pscale.cli.trace import export

RUN = Path(__file__).parents[1] / "reports" / "gallery" / "pipeline"
CASES = [launch.case for launch in traced(load(RUN))]


@pytest.mark.parametrize("case", CASES)
def test_everything_that_begins_ends_and_messages_match(case, tmp_path, capsys):
    export(Export(path=RUN, as_format="otf2", case=case, output=tmp_path))
    anchor = capsys.readouterr().out.splitlines()[0]
    times, regions, started = defaultdict(list), defaultdict(list), defaultdict(dict)
    begun, sent, received = Counter(), defaultdict(list), defaultdict(list)
    with otf2.reader.open(anchor) as trace:
        for location, event in trace.events:
            rank = int(location.name.removeprefix("rank "))
            times[rank].append(event.time)
            match event:
                case otf2.events.Enter():
                    regions[rank].append(event.region.name)
                case otf2.events.Leave():
                    assert regions[rank].pop() == event.region.name
                case otf2.events.MpiIsend():
                    assert started[rank].setdefault(event.request_id, "send") == "send"
                    sent[rank, event.receiver].append(event.msg_length)
                case otf2.events.MpiIsendComplete():
                    assert started[rank].pop(event.request_id) == "send"
                case otf2.events.MpiIrecvRequest():
                    assert started[rank].setdefault(event.request_id, "receive") == "receive"
                case otf2.events.MpiIrecv():
                    assert started[rank].pop(event.request_id) == "receive"
                    received[event.sender, rank].append(event.msg_length)
                case otf2.events.NonBlockingCollectiveRequest():
                    assert started[rank].setdefault(event.request_id, "collective") == "collective"
                case otf2.events.NonBlockingCollectiveComplete():
                    assert started[rank].pop(event.request_id) == "collective"
                case otf2.events.MpiCollectiveBegin():
                    begun[rank] += 1
                case otf2.events.MpiCollectiveEnd():
                    begun[rank] -= 1
            assert 0 <= begun[rank] <= 1
    assert all(each == sorted(each) for each in times.values())
    assert not any(map(len, regions.values()))
    assert not any(map(len, started.values()))
    assert not any(begun.values())
    assert len(sent) > 1
    assert sent == received
