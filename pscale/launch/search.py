"""Matches of regular expressions in logs, found in a process of its own: a pattern may backtrack for ever.

`python -I -S search.py` loads nothing of pscale, to start quickly. It reads requests from its standard input,
a line of JSON each: first what is searched for, then `[log, end]`: search this log up to this byte. An empty
one ends the search. Before it looks for a pattern it writes the number of it; when it has started, and when
a request is done, `null`; in the end what it found. Who asks can so end it, and say what it was busy with.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

CHUNK = 1 << 20  # bytes that are searched at once
OVERLAP = 1 << 16  # characters that are searched again with what follows: a match may have several lines
MOST = 1_000_000  # matches of a pattern
_ENDS = re.compile(r"\r\n?")
_UNSEEN = re.compile(  # what moves a terminal's cursor or colours its text, and what pads
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-Z\\^-~]|\0"
)
_FOREIGN = re.compile("[\udc00-\udcff\0]")  # what other encodings look like


def visible(text: str) -> str:
    """Return text with its control characters, and bytes that were no text, as escapes."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(letter: str) -> str:
    number = ord(letter)
    if 0xDC00 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    return "\\0" if not number else letter.encode("unicode_escape").decode()


def _as_surrogates(error: UnicodeError) -> tuple[str, int]:
    """Keep bytes that are no text, a character each."""
    assert isinstance(error, UnicodeDecodeError)
    return "".join(chr(0xDC00 + byte) for byte in error.object[error.start : error.end]), error.end


codecs.register_error("pscale", _as_surrogates)


def text_of(content: bytes, encoding: str) -> str:
    """Return bytes as text; `visible` shows those that are none."""
    return content.decode(encoding, "pscale")


class Pattern:
    """A pattern that is searched for in one log, part by part."""

    def __init__(self, regex: str, first: bool, last: bool):
        self._regex = re.compile(regex, re.MULTILINE)
        self._first, self._last = first, last
        self.count, self.matches = 0, list[tuple[str | None, str | None]]()
        self.begin = 0  # in the window: behind the last match

    def search(self, window: str) -> None:
        """Look for matches in a window that begins where the last one was left."""
        if self._first and self.matches:
            return
        for match in self._regex.finditer(window, self.begin):
            self.begin = match.end() + (match.end() == match.start())
            self.count += 1
            number, unit, *_ = (*match.groups(), None, None)
            groups = number, unit
            if self._last:
                self.matches = [groups]
            elif self.count <= MOST:
                self.matches.append(groups)
            if self._first:
                return


class Log:
    """A log and what was found in it so far."""

    def __init__(self, descriptor: int, encoding: str, patterns: list[Pattern]):
        self._descriptor, self.patterns = descriptor, patterns
        self._decoder = codecs.getincrementaldecoder(encoding)("pscale")
        self._rest = ""  # without a line's end
        self._window = ""
        self.searched = 0  # bytes
        self.foreign = False  # how it begins is of another encoding

    def search(self, end: int, *, is_last: bool) -> Iterator[int]:
        """Search up to the byte `end`; yield the number of each pattern before it is looked for."""
        while self.searched < end or is_last:
            self._skip_hole(end)
            content = os.pread(self._descriptor, min(CHUNK, end - self.searched), self.searched)
            self.searched += len(content)
            final = is_last and (not content or self.searched >= end)
            text = self._decoder.decode(content, final)
            if self.searched <= CHUNK:
                self.foreign = bool(_FOREIGN.search(text))
            yield from self._add(text, final=final)
            if final or not content:
                return

    def _skip_hole(self, end: int) -> None:
        """Leave out what was never written: a file may say that it has 1 TB, and hold nothing."""
        try:
            self.searched = min(end, os.lseek(self._descriptor, self.searched, os.SEEK_DATA))
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing was written behind it
                self.searched = end

    def _add(self, text: str, *, final: bool) -> Iterator[int]:
        text = self._rest + text
        whole = max(text.rfind("\n"), text.rfind("\r", 0, len(text) - 1)) + 1  # "\n" may follow a last "\r"
        if final or len(text) - whole > CHUNK:
            whole = len(text)
        self._rest = text[whole:]
        if whole == 0 and not final:
            return
        self._window += _UNSEEN.sub("", _ENDS.sub("\n", text[:whole]))
        for number, pattern in enumerate(self.patterns):
            yield number
            pattern.search(self._window)
        cut = self._window.rfind("\n", 0, max(0, len(self._window) - OVERLAP))
        if cut <= 0 and len(self._window) > 2 * CHUNK:  # a single line
            cut = len(self._window) - OVERLAP
        if cut > 0:  # the line's end stays, so that what follows begins a line and not the text
            self._window = self._window[cut:]
            for pattern in self.patterns:
                pattern.begin = max(1, pattern.begin - cut)


def _say(what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def main() -> None:
    """Answer the requests on standard input."""
    asked = json.loads(sys.stdin.readline())
    logs = [
        Log(descriptor, asked["encoding"], [Pattern(*each) for each in asked["patterns"]])
        for descriptor in asked["logs"]
    ]
    _say(None)
    for line in sys.stdin:
        log, end, is_last = json.loads(line)
        for number in logs[log].search(end, is_last=is_last):
            _say(number)
        if is_last and log == len(logs) - 1:
            break
        _say(None)
    _say(
        {
            "searched": sum(log.searched for log in logs),
            "foreign": any(log.foreign for log in logs),
            "found": [[[each.count, each.matches] for each in log.patterns] for log in logs],
        }
    )


if __name__ == "__main__":
    main()
