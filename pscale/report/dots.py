"""Lines drawn with the dots of braille characters, on any terminal that writes Unicode."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

Place = tuple[float, float]  # shares of width and height, from the lower left

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a character, by row and column
_BRAILLE = 0x2800


class Dots:
    """A sheet of braille characters, 2 × 4 dots each, with marks on top."""

    def __init__(self, width: int, height: int):
        self.width, self.height = width, height
        self._cells = [[0] * width for _ in range(height)]
        self._marks: dict[tuple[int, int], str] = {}
        self._styles: dict[tuple[int, int], str] = {}

    def line(self, start: Place, stop: Place, style: str) -> None:
        """Draw from one place to another; what lies outside is drawn on the edge."""
        (x0, y0), (x1, y1) = self._dot(*start), self._dot(*stop)
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(steps + 1):
            x, y = round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps)
            row, column = y // 4, x // 2
            self._cells[row][column] |= _DOTS[y % 4][x % 2]
            self._styles[row, column] = style

    def mark(self, at: Place, letter: str, style: str) -> None:
        """Put a letter in place of dots."""
        x, y = self._dot(*at)
        self._marks[y // 4, x // 2] = letter
        self._styles[y // 4, x // 2] = style

    def _dot(self, x: float, y: float) -> tuple[int, int]:
        across, up = 2 * self.width - 1, 4 * self.height - 1
        return round(min(1.0, max(0.0, x)) * across), round((1 - min(1.0, max(0.0, y))) * up)

    def rows(self) -> Iterator[Text]:
        """Yield the lines, the uppermost first."""
        for row, cells in enumerate(self._cells):
            line = Text()
            for column, dots in enumerate(cells):
                letter = self._marks.get((row, column)) or (chr(_BRAILLE + dots) if dots else " ")
                line.append(letter, self._styles.get((row, column), ""))
            yield line
