"""Plots of an experiment as SVG, which notebooks show and browsers open."""

import html
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

from rung.client._error import ClientError

_WIDTH: Final = 640.0
_HEIGHT: Final = 320.0
_LEFT: Final = 64.0
_RIGHT: Final = 16.0
_TOP: Final = 32.0
_BOTTOM: Final = 44.0
_GREY: Final = "#9aa4b2"
_COLOR: Final = "#c2410c"
_TICKS: Final = 5
_DECADES: Final = 100.0
"""Values whose largest is this many times the smallest are drawn on a logarithmic axis."""

Points = Sequence[tuple[float, float]]


class Plot:
    """A picture, shown by notebooks as it is."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        """Return the picture for a notebook."""
        return self.svg

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the picture to an SVG file.

        Raises:
            ClientError: the name ends like that of another format.
        """
        if Path(file).suffix.lower() not in {".svg", ""}:
            raise ClientError(f"{file}: the picture is SVG; write {Path(file).stem}.svg")
        Path(file).write_text(self.svg, encoding="utf-8")


class _Axis(NamedTuple):
    """One direction of a picture: from values to places."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    def place(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        if not self.logarithmic:
            step = _step((self.high - self.low) / _TICKS)
            first = math.ceil(self.low / step - 1e-9)
            count = math.floor(self.high / step + 1e-9) - first
            return [(first + index) * step for index in range(count + 1)]
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        return [10.0**exponent for exponent in range(first, last + 1, (last - first) // 8 + 1)]


class _Frame(NamedTuple):
    """The axes of a picture, and what is drawn between them."""

    across: _Axis
    up: _Axis

    @classmethod
    def around(cls, points: Points) -> Self:
        ats, values = [at for at, _ in points], [value for _, value in points]
        low, high = min(values), max(values)
        logarithmic = low > 0 and high / low >= _DECADES
        left, right = _apart(min(ats), max(ats))
        if not logarithmic:
            low, high = _apart(low, high)
        return cls(
            _Axis(left, right, _LEFT, _WIDTH - _RIGHT, logarithmic=False),
            _Axis(low, high, _HEIGHT - _BOTTOM, _TOP, logarithmic),
        )

    def place(self, point: tuple[float, float]) -> tuple[float, float]:
        return self.across.place(point[0]), self.up.place(point[1])

    def line(self, name: str, points: Points, color: str, width: float) -> str:
        """Return a line through the points, or a dot for a single one."""
        if len(points) == 1:
            return self.dot(name, points[0], color, width + 2)
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self.place, points))
        return (
            f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="{width}">'
            f"<title>{html.escape(name)}</title></polyline>"
        )

    def dot(self, name: str, point: tuple[float, float], color: str, radius: float) -> str:
        x, y = self.place(point)
        return (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}">'
            f"<title>{html.escape(name)}: {point[1]:.5g}</title></circle>"
        )

    def picture(self, drawn: Sequence[str], *, title: str, below: str, beside: str) -> Plot:
        """Return what was drawn, with ticks and labels."""
        right, marks = _WIDTH - _RIGHT, []
        for value in self.up.ticks():
            y = self.up.place(value)
            line = f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>'
            marks += [line, _text(_LEFT - 6, y + 4, f"{value:.4g}", "end")]
        for value in self.across.ticks():
            x = self.across.place(value)
            marks.append(_text(x, _HEIGHT - _BOTTOM + 16, f"{value:.6g}", "middle"))
        marks += [
            _text(_LEFT, 18, title, "start"),
            _text(right, 18, beside, "end"),
            _text(right, _HEIGHT - 10, below, "end"),
        ]
        return _svg("".join([*marks, *drawn]))


def curves(
    lines: Mapping[str, Points], *, best: str | None, metric: str, steps: str, title: str
) -> Plot:
    """Return a line for each trial, the best one's in front.

    Args:
        lines: the points of each trial.
        best: the trial whose line is in colour.
        metric: what the values are.
        steps: what the places on the horizontal axis are.
        title: of the picture.
    """
    known = {name: _finite(points) for name, points in lines.items()}
    known = {name: points for name, points in known.items() if points}
    if not known:
        return _nothing(title, metric)
    frame = _Frame.around([point for points in known.values() for point in points])
    drawn = [frame.line(name, points, _GREY, 1.0) for name, points in known.items()]
    if best is not None and best in known:
        drawn.append(frame.line(best, known[best], _COLOR, 2.5))
    return frame.picture(drawn, title=title, below=steps, beside=metric)


def history(
    points: Sequence[tuple[str, float, float]], *, smaller_is_better: bool, metric: str, title: str
) -> Plot:
    """Return a dot for each trial's best value, and the best so far as a line.

    Args:
        points: name, index and value of each trial.
        smaller_is_better: whether a smaller value is better.
        metric: what the values are.
        title: of the picture.
    """
    known = sorted((at, value, name) for name, at, value in points if math.isfinite(value))
    if not known:
        return _nothing(title, metric)
    frame = _Frame.around([(at, value) for at, value, _ in known])
    better = min if smaller_is_better else max
    so_far: list[tuple[float, float]] = []
    for at, value, _ in known:
        before = so_far[-1][1] if so_far else value
        so_far += [(at, before), (at, better(before, value))]
    drawn = [frame.dot(name, (at, value), _GREY, 3.5) for at, value, name in known]
    drawn.append(frame.line("best so far", so_far, _COLOR, 2.0))
    return frame.picture(drawn, title=title, below="trial", beside=metric)


def _finite(points: Points) -> list[tuple[float, float]]:
    return sorted((at, value) for at, value in points if math.isfinite(value))


def _apart(low: float, high: float) -> tuple[float, float]:
    """Return ends of an axis that differ, also where all values are the same."""
    if low < high:
        return low, high
    around = abs(low) / 2 or 0.5
    return low - around, high + around


def _step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least so much."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999)


def _nothing(title: str, metric: str) -> Plot:
    return _svg(_text(_LEFT, _HEIGHT / 2, f"{title}: no {metric} was reported", "start"))


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _svg(content: str) -> Plot:
    return Plot(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}"'
        f' width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" font-family="sans-serif" font-size="12"'
        f' fill="#334155"><rect width="100%" height="100%" fill="#fff"/>{content}</svg>'
    )
