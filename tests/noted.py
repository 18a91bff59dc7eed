"""What the journal of a run notes of a launch, in one word."""

from pscale.launch.runner import ended
from pscale.runs.run_events import Ended, Launched


def note_start(journal, key, order=0):
    journal.note(Launched(case=key[0], repeat=key[1], order=order))


def note_end(journal, key, status="ok", reason="", wall_s=1.0):
    journal.note(Ended(case=key[0], repeat=key[1], status=status, reason=reason, wall_s=wall_s))


def settling(row):
    """Return what settles a launch, of a function that writes its row and may return another outcome."""
    return lambda launch, outcome: ended(launch.key, row(launch, outcome) or outcome)
