"""Matches of regular expressions in logs that may be read while they are written, part by part."""

from __future__ import annotations

import codecs
import errno
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType

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


@contextmanager
def alarm(limit_s: float) -> Iterator[None]:
    """Raise TimeoutError in a block after some time, also within a pattern that backtracks for ever.

    `re` looks for signals as it goes; they reach the main thread alone, and others have no limit.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(limit_s, 1e-6))  # 0 would be for ever
        yield
    finally:
        with suppress(TimeoutError):  # at the last moment
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)


class Pattern:
    """A pattern that is searched for in one log, part by part: its first match alone, its last, or all."""

    def __init__(self, regex: str, first: bool, last: bool):
        self.regex = regex
        self._compiled = re.compile(regex, re.MULTILINE)
        self._first, self._last = first, last
        self.count, self.texts = 0, list[tuple[str, str]]()  # of each match the number and the unit
        self.begin = 0  # in the window: behind the last match

    def search(self, window: str) -> None:
        """Look for matches in a window that begins where the last one was left."""
        if self._first and self.count:
            return
        for match in self._compiled.finditer(window, self.begin):
            self.begin = match.end() + (match.end() == match.start())
            self.count += 1
            number, unit, *_ = (*match.groups(""), "", "")
            if self._last:
                self.texts = [(number, unit)]
            elif self.count <= MOST:
                self.texts.append((number, unit))
            if self._first:
                return


class Log:
    """A log and what was found in it so far."""

    def __init__(self, descriptor: int, encoding: str, patterns: Mapping[str, Pattern]):
        self._descriptor, self.patterns = descriptor, patterns
        self._decoder = codecs.getincrementaldecoder(encoding)("pscale")
        self._rest = ""  # without a line's end
        self._window = ""
        self.searched = 0  # bytes
        self.foreign = False  # how it begins is of another encoding

    def windows(self, end: int | None) -> Iterator[str]:
        """Yield what all patterns are to be looked for in next, up to a byte, or to the end of the log."""
        is_last, end = end is None, os.fstat(self._descriptor).st_size if end is None else end
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

    def _add(self, text: str, *, final: bool) -> Iterator[str]:
        text = self._rest + text
        whole = max(text.rfind("\n"), text.rfind("\r", 0, len(text) - 1)) + 1  # "\n" may follow a last "\r"
        if final or len(text) - whole > CHUNK:
            whole = len(text)
        self._rest = text[whole:]
        if whole == 0 and not final:
            return
        self._window += _UNSEEN.sub("", _ENDS.sub("\n", text[:whole]))
        yield self._window
        cut = self._window.rfind("\n", 0, max(0, len(self._window) - OVERLAP))
        if cut <= 0 and len(self._window) > 2 * CHUNK:  # a single line
            cut = len(self._window) - OVERLAP
        if cut > 0:  # the line's end stays, so that what follows begins a line and not the text
            self._window = self._window[cut:]
            for pattern in self.patterns.values():
                pattern.begin = max(1, pattern.begin - cut)
