"""Draws curves over time as SVG, one panel above the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from scripts.bench.pictures.drawing import number, text_at

WIDTH, LEFT, RIGHT, HEIGHT, TOP, GAP, BOTTOM = 900, 60, 210, 150, 54, 44, 34
PALETTE = ("#1f6fb2", "#c2571a", "#2e8b57", "#8e44ad", "#8a8f98", "#b8860b", "#c0392b")
POINTS_MAX = 300  # points of a curve: one every two pixels
TICKS_X, TICKS_Y = 8, 4
LINE = 16

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """A name, and measured values with their times."""

    name: str
    points: Sequence[Point]

    @property
    def last(self) -> float:
        """The last value."""
        return self.points[-1][1]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves on one scale."""

    title: str
    curves: Sequence[Curve]


def svg(title: str, unit: str, panels: Sequence[Panel]) -> str:
    """Draw panels that share the time axis; `unit` is the unit of that axis."""
    most_x = max(x for panel in panels for curve in panel.curves for x, _ in curve.points)
    height = TOP + len(panels) * (HEIGHT + GAP) + BOTTOM
    drawn = [text_at(10, 22, title, size=15, weight="bold"), text_at(10, 40, unit, colour="#555")]
    for place, panel in enumerate(panels):
        drawn += _panel(panel, TOP + place * (HEIGHT + GAP) + LINE, most_x)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
    )
    return "\n".join((opening, f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>', *drawn, "</svg>")) + "\n"


def _panel(panel: Panel, top: float, most_x: float) -> list[str]:
    most_y = max((y for curve in panel.curves for _, y in curve.points), default=0.0) or 1.0
    step_x, step_y = _step(most_x, TICKS_X), _step(most_y, TICKS_Y)
    bottom, right = top + HEIGHT, WIDTH - RIGHT

    def x_of(value: float) -> float:
        return LEFT + value / most_x * (right - LEFT)

    def y_of(value: float) -> float:
        return bottom - value / (most_y * 1.05) * HEIGHT

    drawn = [text_at(10, top - 6, panel.title, weight="bold")]
    for tick in _ticks(most_x, step_x):
        drawn.append(f'<line x1="{x_of(tick):.1f}" y1="{top}" x2="{x_of(tick):.1f}" y2="{bottom}" stroke="#eee"/>')
        drawn.append(text_at(x_of(tick), bottom + LINE, number(tick), anchor="middle", colour="#555"))
    for tick in _ticks(most_y, step_y):
        drawn.append(f'<line x1="{LEFT}" y1="{y_of(tick):.1f}" x2="{right}" y2="{y_of(tick):.1f}" stroke="#ddd"/>')
        drawn.append(text_at(LEFT - 6, y_of(tick) + 4, number(tick), anchor="end", colour="#555"))
    for place, curve in enumerate(panel.curves):
        colour = PALETTE[place % len(PALETTE)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in thinned(curve.points))
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        label = f"{curve.name}: {number(curve.last)}"
        drawn.append(text_at(right + 10, top + 12 + place * LINE, label, colour=colour))
    return drawn


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most POINTS_MAX points and the last; of the points between two, the greatest value is kept."""
    stride = max(1, -(-len(points) // POINTS_MAX))
    cuts = [*range(0, len(points), stride), len(points)]
    return [max(points[first:end], key=lambda point: point[1]) for first, end in pairwise(cuts)]


def _step(most: float, ticks: int) -> float:
    """Return the smallest round step for at most `ticks` steps."""
    power = 1e-6
    while True:
        for digit in (1, 2, 5):
            if most / (power * digit) <= ticks:
                return power * digit
        power *= 10


def _ticks(most: float, step: float) -> list[float]:
    return [count * step for count in range(int(most / step) + 1)]
