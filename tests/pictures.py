"""What a figure says and where, as far as tests look."""

import re

import matplotlib.pyplot as plt
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox


def words(path):
    """Return the texts in an SVG file, which matplotlib keeps as comments beside their outlines."""
    return [found.strip() for found in re.findall(r"<!--(.*?)-->", path.read_text(), re.DOTALL)]


def boxes(figure):
    """Return text and extent of every label that is drawn; ticks beyond an axis' limits are not."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    beyond = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        for label in (tick.label1, tick.label2)
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    texts = [text for text in figure.findobj(plt.Text) if text.get_visible() and text.get_text().strip()]
    found = [text for text in texts if text not in beyond]
    return [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in found]


def fitting(figure):
    """Return the labels of a figure, none of which overlaps another or leaves the picture."""
    found = boxes(figure)
    for place, (name, box) in enumerate(found):
        assert Bbox.intersection(box, figure.bbox).bounds == pytest.approx(box.bounds), name
        clashes = [other for other, rival in found[:place] if box.padded(-1).overlaps(rival.padded(-1))]
        assert not clashes, (name, clashes)
    return [name for name, _ in found]
