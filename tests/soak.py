"""Run suites that combine any options, drawn afresh, for some time: `python tests/soak.py 30m [SEED]`.

Failures are kept in build/soak as the smallest suite that fails, with what it does and the seed of its draw.
"""

import os
import secrets
import sys
import tempfile
import time
import traceback
from collections import Counter
from functools import partial
from pathlib import Path

from compositions import MOST_RANKS, check_draw
from conftest import ON_FEW_CORES
from warm_ranks import WarmRanks

from pscale.config.metrics import duration_s

KEPT = Path("build/soak")


def main(time_s, seed):
    """Run drawn suites for so long, the first with `seed`; return whether any fails."""
    os.environ.update(ON_FEW_CORES)
    counts, ranks, failures, deadline = Counter(), WarmRanks(MOST_RANKS), 0, time.monotonic() + time_s
    first = seed
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < deadline:
            try:
                check_draw(seed, ranks, Path(folder), counts, tell=partial(print, flush=True))
            except Exception as error:  # whatever it is, the next draw may show another
                failures += 1
                KEPT.mkdir(parents=True, exist_ok=True)
                smallest, *_ = getattr(error, "__notes__", [""])
                why = "".join(f"# {line}\n" for line in str(error).splitlines())
                (KEPT / f"{seed}.yaml").write_text(smallest + why)
                traceback.print_exc()
            seed += 1
            if not (seed - first) % 25:
                print(f"{seed - first} draws from seed {first}: {failures} fail; {dict(counts)}", flush=True)
    ranks.close()
    print(f"{seed - first} draws from seed {first}: {failures} fail; {dict(counts)}")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main(duration_s(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else secrets.randbits(32)))
