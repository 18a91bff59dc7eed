"""The roofline: what each class of kernels reaches, beside what cores and memory allow at its intensity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pscale.analysis import text
from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.report.blocks import Topic, TopicFigure
from pscale.report.figure_style import INK, QUIET, Colour, describe, mark, narrow, sized, wrapped
from pscale.report.table import Column, Table, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

_CLASSES = (
    *("product", "attention", "activation", "norm", "elementwise"),
    *("reduction", "loss", "optimizer", "embedding"),
)
_MARKERS = {"forward": "o", "backward": "s", "sync": "^", "update": "D"}
_OUTSIDE = "other"  # what is computed outside kernels: neither FLOPs nor bytes are counted
_LISTED = 0.001  # of the time: what takes less is for programs alone
_LABELLED = 8  # points that take most time
_LARGEST, _SMALLEST = 700.0, 18.0  # points²: all of the time, and no less than this
_AROUND = ((1, 0, "left"), (-1, 0, "right"), (0, 1, "center"), (0, -1, "center"))  # a point: its label
_FURTHER = (1.0, 2.5, 4.0)
_SAMPLES = 80  # places along the roof
_ROOM = 2.5  # left and right of all points


def _largest(findings: Findings) -> Sequence[Row]:
    """Return the kernels of the largest case, those that take most time first."""
    of_case = findings.by_case("roofline")
    points = [point for point in findings.rows("cases") if point.case in of_case]
    if not points:
        return ()
    case = max(points, key=lambda point: (point.ranks, point.cores)).case
    return sorted(of_case[case], key=lambda each: -each.time_share)


def tables(findings: Findings) -> Iterator[Table]:
    """Yield the kernels of the largest case."""
    found = _largest(findings)
    if not found:
        return
    columns = (
        *("phase", Column("kernels", get=_name), Column("of time", get="time_share", bar=True)),
        Column("FLOPs", text.rate, wide=True, get=lambda each: each.flops if each.bytes else None),
        Column("bytes", text.size_of, wide=True, get=lambda each: each.bytes or None),
        *(Column("FLOP/B", text.number_3, get="intensity"), Column("GFLOP/s", get="gflops")),
        *(Column("GB/s", text.number_3, get="gb_s"), Column("roof", get="roof_gflops")),
        Column("of roof", text.percent_0, get="roof_share"),
        Column("bound", get=lambda each: each.bound or None),
    )
    rows = [each for each in found if each.time_share >= _LISTED]
    caption = " ".join((*_sentences(found), _definitions(findings, found[0])))
    yield from listed("Roofline of the largest case (per rank)", rows, columns, caption=caption, filled=True)


def _definitions(findings: Findings, first: Row) -> str:
    said = (
        f"One profiled step of {text.clean(findings.labels[first.case])}: mean over ranks, median over "
        "launches. of time: share of compute time; other: outside kernels, FLOPs and bytes not counted"
    )
    if first.peak_gflops and first.stream_gb_s:
        said += (
            f"; roof: the smaller of the matrix-product peak ({text.number_3(first.peak_gflops)} GFLOP/s) "
            f"and FLOP/B × memory bandwidth ({text.number_3(first.stream_gb_s)} GB/s), both measured "
            "in the best launch while all ranks are busy"
        )
    return said


def _sentences(found: Sequence[Row]) -> Iterator[str]:
    """Yield what follows from the table: what takes most time, how near its roof it is, what is above."""
    times: dict[str, float] = {}
    for each in found:
        times[each.kernel] = times.get(each.kernel, 0.0) + each.time_share
    outside = times.pop(_OUTSIDE, 0.0)
    if not times:
        return
    most = max(times, key=times.__getitem__)
    if outside > times[most]:
        yield "Most compute time is outside kernels."
    parts = [each for each in found if each.kernel == most and each.time_share >= _LISTED]
    if not parts:  # each phase has less of it than is listed
        return
    yield f"The kernel class with the most time is {_name(parts[0])}: {', and '.join(map(_reached, parts))}."
    if all(each.roof_share is None for each in parts):
        yield "Its roof is unknown, because peak or memory bandwidth was not measured."
        return
    above = [each for each in found if (each.roof_share or 0.0) > 1 and each.time_share >= _LISTED]
    cached = [f"{_name(each)} in {each.phase}" for each in above if each.bound == "memory"]
    if cached:
        yield f"Above the memory roof, thanks to cached operands: {', '.join(cached)}."
    faster = [f"{_name(each)} in {each.phase}" for each in above if each.bound == "compute"]
    if faster:
        yield (
            f"Above the matrix-product peak: {', '.join(faster)}. Either other processes disturbed the "
            "peak measurement, or these kernels use instructions that BLAS does not."
        )


def _name(part: Row) -> str:
    return "matmul" if part.kernel == "product" else part.kernel


def _reached(part: Row) -> str:
    said = f"{text.percent(part.time_share)} in {part.phase}"
    if part.roof_share is None:
        return said
    return f"{said}, at {text.percent_0(part.roof_share)} of its roof ({part.bound} bound)"


def figure(findings: Findings) -> Figure | None:
    """Draw the kernels of the largest case under their roofs; None where these are not known."""
    from pscale.report import drawing

    found = [each for each in _largest(findings) if each.roof_gflops and each.gflops]
    if not found:
        return None
    figure = drawing.canvas(9.2, 6.6 if narrow() else 4.6, findings.heading)
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log")
    name = wrapped(findings.case(found[0].case).label, 60, most=1)
    describe(axes, f"{name}: a rank, while all are busy")
    axes.set_xlabel("arithmetic intensity, FLOP/byte")
    axes.set_ylabel("GFLOP/s")
    _roof(axes, found)
    colours = dict(zip(_CLASSES, drawing.distinct(len(_CLASSES)), strict=True))
    for each in found:
        drawn = axes.scatter(
            *_place(each),
            s=(2 * _radius(each)) ** 2,
            marker=_MARKERS.get(each.phase, "v"),
            color=colours.get(each.kernel, INK),
            edgecolors="white",
            linewidths=0.8,
            zorder=5,
        )
        said = f"{_name(each)} in {each.phase}: {text.number_3(each.gflops)} GFLOP/s, "
        said += f"{text.number_3(each.intensity)} FLOP/byte, {text.percent_0(each.time_share)} of the time"
        mark(drawn, said, each.case)
    _legend(figure, found, colours)
    _labels(axes, found[:_LABELLED], _taken(figure, axes, found))
    return figure


def _roof(axes: Axes, found: Sequence[Row]) -> None:
    """Draw the roof beyond all points, and write what it is made of."""
    from math import atan, degrees

    peak, stream = found[0].peak_gflops or 0.0, found[0].stream_gb_s or 0.0
    ridge = peak / stream
    places = [each.intensity or 0.0 for each in found]
    left, right = min(*places, ridge) / _ROOM, max(*places, ridge) * _ROOM
    axes.plot([left, ridge, right], [left * stream, peak, peak], color=INK, linewidth=sized(1.4), zorder=2)
    axes.set_xlim(left, right)
    lowest = min(left * stream, *(each.gflops or peak for each in found))
    highest = max(peak, *(each.gflops or 0.0 for each in found))
    axes.set_ylim(lowest / 1.6, highest * 2)
    style: dict[str, Any] = {"fontsize": sized(8.5), "color": INK}
    axes.text(ridge / 1.2, peak, f"peak {text.number_3(peak)} GFLOP/s", ha="right", va="center", **style)
    turned: dict[str, Any] = {
        "rotation": degrees(atan(stream)),
        "rotation_mode": "anchor",
        "transform_rotates_text": True,
    }
    at = ridge / 4  # below it most points are on the roof
    heights = [y / (x * stream) for x, y in map(_place, found) if at / 3 < x < at]
    below = any(1 < each < 2 for each in heights) and not any(0.5 < each <= 1 for each in heights)
    off, side = (1 / 1.1, "top") if below else (1.1, "bottom")
    words = f"memory {text.number_3(stream)} GB/s"
    axes.text(at / off**0.5, at * stream * off, words, ha="right", va=side, **turned, **style)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")


def _legend(figure: Figure, found: Sequence[Row], colours: Mapping[str, Colour]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    kernels = {each.kernel: _name(each) for each in found}
    handles: list[Any] = [Patch(color=colours.get(kernel, INK)) for kernel in kernels]
    phases = [phase for phase in _MARKERS if any(each.phase == phase for each in found)]
    mark: dict[str, Any] = {"color": QUIET, "linestyle": "none", "markersize": sized(6)}
    handles += [Line2D([], [], marker=_MARKERS[phase], **mark) for phase in phases]
    where: dict[str, Any] = {"loc": "outside right center"}
    if narrow():
        where = {"loc": "outside lower center", "ncols": 3}
    figure.legend(handles, [*kernels.values(), *phases], **where)


def _labels(axes: Axes, found: Sequence[Row], taken: list[Bbox]) -> None:
    """Write name and share of time beside points, where nothing is `taken`."""
    for each in found:
        away = _radius(each)
        for further, (right, up, side) in ((far, way) for far in _FURTHER for way in _AROUND):
            words = axes.annotate(
                f"{_name(each)} {text.percent_0(each.time_share)}",
                _place(each),
                xytext=(right * (away + sized(4) * further), up * (away + sized(6) * further)),
                textcoords="offset points",
                ha=side,
                va="center",
                fontsize=sized(8),
                zorder=6,
            )
            extent = words.get_window_extent().padded(sized(3), sized(2))
            inside = axes.bbox.x0 <= extent.x0 and extent.x1 <= axes.bbox.x1
            if inside and not any(extent.overlaps(other) for other in taken):
                taken.append(extent)
                break
            words.remove()


def _taken(figure: Figure, axes: Axes, found: Sequence[Row]) -> list[Bbox]:
    """Return where no label may be: on points, on the roof and on what is written beside it."""
    from matplotlib.transforms import Bbox

    figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]
    peak, stream = found[0].peak_gflops or 0.0, found[0].stream_gb_s or 0.0
    left, right = axes.get_xlim()
    along = (left * (right / left) ** (part / _SAMPLES) for part in range(_SAMPLES + 1))
    dots = [((x, min(peak, x * stream)), 1.0) for x in along]
    dots += [(_place(each), _radius(each)) for each in found]
    boxes = [words.get_window_extent() for words in axes.texts]
    for place, points in dots:
        across, up = axes.transData.transform(place)
        radius = points * figure.dpi / 72
        boxes.append(Bbox([[across - radius, up - radius], [across + radius, up + radius]]))
    return boxes


def _place(each: Row) -> tuple[float, float]:
    return each.intensity or 0.0, each.gflops or 0.0


def _radius(each: Row) -> float:
    """Return half the width of a point in points, by its share of the time."""
    return sized(float(max(_LARGEST * each.time_share, _SMALLEST) ** 0.5 / 2))


TOPIC = Topic(
    name="roofline",
    title="Roofline",
    lead=lambda findings: " ".join(
        (
            "The speed of each class of kernels, compared with what cores and memory allow at its arithmetic "
            "intensity (FLOPs per byte moved).",
            *_sentences(_largest(findings)),
        )
    ),
    tables=tables,
    figure=TopicFigure(
        name="roofline",
        title="GFLOP/s over arithmetic intensity",
        description="GFLOP/s over FLOP/byte, both logarithmic, of the largest case: a point for each class "
        "of kernels in a phase, sized by its share of the time, under the roof of the measured peak "
        "and the measured memory bandwidth.",
        draw=figure,
    ),
)
