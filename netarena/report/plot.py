"""Small SVG plots, made without a library, for a width of 400 pixels and any colour scheme.

Colours are classes (``s0`` to ``s7``) of the page's style sheet. Each colour also has its own
shape, so plots are readable without colours. All texts are escaped, and each plot has a title for
screen readers. Rates are shares in [0, 1].
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from netarena.report.markdown import plain, shorten

#: Width of every plot in SVG user units. The page scales plots to the available width.
WIDTH = 400
SERIES = 8
#: Maximum number of characters per line of a name, and maximum number of lines. The middle of
#: longer names is omitted.
_NAME_CHARS, _NAME_LINES = 42, 3
#: Height of one line of a name.
_LINE = 14
#: Markers of the series, centred at (0, 0).
_SHAPES = (
    '<circle r="4"/>',
    '<rect x="-3.6" y="-3.6" width="7.2" height="7.2"/>',
    '<path d="M0 -4.8 L4.6 3.6 L-4.6 3.6 Z"/>',
    '<path d="M0 -5 L5 0 L0 5 L-5 0 Z"/>',
    '<path d="M-4 -4 L4 4 M-4 4 L4 -4" class="line"/>',
    '<path d="M0 -5 V5 M-5 0 H5" class="line"/>',
    '<path d="M0 4.8 L4.6 -3.6 L-4.6 -3.6 Z"/>',
    '<circle r="4" class="ring"/>',
)


@dataclass(frozen=True)
class Dot:
    """A rate of one series with its interval. If the rate is None, the dot is not drawn."""

    series: int
    rate: float | None
    interval: tuple[float, float]


def marker(series: int) -> str:
    """Return the SVG of a series' marker for a legend."""
    return (
        f'<svg class="mark s{series % SERIES}" viewBox="-6 -6 12 12" width="12" height="12" '
        f'aria-hidden="true">{_SHAPES[series % SERIES]}</svg>'
    )


def dot_plot(
    title: str,
    rows: Sequence[tuple[str, Sequence[Dot]]],
    axis: tuple[float, str] = (100.0, "%"),
) -> str:
    """Return a plot with rows of dots. Names are above the rows, and whiskers show intervals.

    ``axis`` contains the largest number on the horizontal axis, and the unit. The value of a dot is
    a fraction of the largest number.
    """
    left, right, top = 8, WIDTH - 14, 8
    parts, y = [], top
    for name, dots in rows:
        height = 11 * max(1, len(dots))
        text, height_of_name = _name(name, left, y)
        parts.append(text)
        y += height_of_name
        parts.append(
            f'<rect x="{left}" y="{y}" width="{right - left}" height="{height}" class="band"/>'
        )
        for place, dot in enumerate(dots):
            parts.append(_dot(dot, left, right, y + 5.5 + 11 * place))
        y += height + 8
    ticks = _axis(left, right, (top, y), axis)
    return _svg(title, y + 16, ticks + "".join(parts))


def plane(
    title: str,
    points: Sequence[tuple[int, Dot, Dot]],
    names: tuple[str, str],
    axis: tuple[float, str] = (100.0, "%"),
) -> str:
    """Return a scatter plot. Each point has a series, a horizontal value and a vertical value.

    The vertical axis is a rate from 0 to 100 %. ``axis`` contains the largest number on the
    horizontal axis, and the unit. Horizontal values are fractions of the largest number.
    """
    left, right, top, bottom = 40, WIDTH - 14, 10, 300

    def x_of(rate: float) -> float:
        return left + rate * (right - left)

    def y_of(rate: float) -> float:
        return bottom - rate * (bottom - top)

    parts = []
    for step in range(5):
        share = step / 4
        parts.append(
            f'<path d="M{x_of(share):.1f} {top}V{bottom}M{left} {y_of(share):.1f}H{right}" '
            f'class="grid"/><text x="{x_of(share):.1f}" y="{bottom + 14}" class="tick mid">'
            f'{axis[0] * share:.3g}</text><text x="{left - 5}" y="{y_of(share) + 4:.1f}" '
            f'class="tick end">{100 * share:.0f}</text>'
        )
    across, up = map(escape, names)
    parts.append(
        f'<text x="{(left + right) / 2}" y="{bottom + 30}" class="tick mid">'
        f"{across}, {escape(axis[1])}</text>"
        f'<text transform="translate(11 {(top + bottom) / 2}) rotate(-90)" class="tick mid">'
        f"{up}, %</text>"
    )
    for series, one, other in points:
        if one.rate is None or other.rate is None:
            continue
        x, y = x_of(one.rate), y_of(other.rate)
        (x_low, x_high), (y_low, y_high) = one.interval, other.interval
        parts.append(
            f'<g class="s{series % SERIES}"><path class="whisker" d="M{x_of(x_low):.1f} {y:.1f}'
            f'H{x_of(x_high):.1f}M{x:.1f} {y_of(y_low):.1f}V{y_of(y_high):.1f}"/>'
            f'<g transform="translate({x:.1f} {y:.1f})">{_SHAPES[series % SERIES]}</g></g>'
        )
    return _svg(title, bottom + 38, "".join(parts))


def bars(title: str, rows: Sequence[tuple[int, str, float | None]], unit: str) -> str:
    """Return a bar chart with one bar per series. Each bar is labelled with its value."""
    most = max((value for _, _, value in rows if value is not None), default=0.0) or 1.0
    parts, y = [], 6
    for series, name, value in rows:
        width = 0.0 if value is None else 250 * value / most
        told = "unknown" if value is None else f"{_short(value)} {unit}".strip()
        text, height = _name(name, 8, y)
        y += height
        parts.append(
            f'{text}<rect x="8" y="{y - 1}" width="{width:.1f}" height="11" '
            f'class="bar s{series % SERIES}"/>'
            f'<text x="{14 + width:.1f}" y="{y + 9}" class="tick">{escape(told)}</text>'
        )
        y += 18
    return _svg(title, y + 4, "".join(parts))


def lines(
    title: str,
    numbers: Sequence[float],
    series: Sequence[tuple[str, Sequence[float]]],
    names: tuple[str, str],
) -> str:
    """Return a plot of rates over a logarithmic axis.

    Each series is a line that is labelled at its start.
    """
    left, right, top, bottom = 40, WIDTH - 14, 24, 230
    low, high = math.log(min(numbers)), math.log(max(numbers))

    def x_of(number: float) -> float:
        span = high - low
        return (
            left + (math.log(number) - low) / span * (right - left) if span else (left + right) / 2
        )

    def y_of(rate: float) -> float:
        return bottom - rate * (bottom - top)

    parts = []
    for step in range(5):
        y = y_of(step / 4)
        parts.append(
            f'<path d="M{left} {y:.1f}H{right}" class="grid"/>'
            f'<text x="{left - 5}" y="{y + 4:.1f}" class="tick end">{25 * step}</text>'
        )
    last = -math.inf
    for number in numbers:
        if x_of(number) - last > 34:
            last = x_of(number)
            parts.append(
                f'<text x="{last:.1f}" y="{bottom + 14}" class="tick mid">{number:g}</text>'
            )
    for place, (name, rates) in enumerate(series):
        points = [f"{x_of(n):.1f} {y_of(rate):.1f}" for n, rate in zip(numbers, rates, strict=True)]
        dashes = "" if place == 0 else f' stroke-dasharray="{6 // place} {3 * place}"'
        marks = "".join(
            f'<g transform="translate({point})">{_SHAPES[place % SERIES]}</g>' for point in points
        )
        parts.append(
            f'<g class="s{place % SERIES}"><path class="curve"{dashes} d="M{"L".join(points)}"/>'
            f"{marks}</g>"
            f'<g class="s{place % SERIES}" transform="translate({left + 8 + 175 * place} 10)">'
            f'{_SHAPES[place % SERIES]}</g><text x="{left + 18 + 175 * place}" y="14" class="tick">'
            f"{escape(name)}</text>"
        )
    across, up = map(escape, names)
    parts.append(
        f'<text x="{(left + right) / 2}" y="{bottom + 30}" class="tick mid">{across}</text>'
        f'<text transform="translate(11 {(top + bottom) / 2}) rotate(-90)" class="tick mid">'
        f"{up}</text>"
    )
    return _svg(title, bottom + 38, "".join(parts))


def _dot(dot: Dot, left: float, right: float, y: float) -> str:
    if dot.rate is None:
        return ""
    low, high = (left + bound * (right - left) for bound in dot.interval)
    x = left + dot.rate * (right - left)
    return (
        f'<g class="s{dot.series % SERIES}"><path class="whisker" d="M{low:.1f} {y}H{high:.1f}"/>'
        f'<g transform="translate({x:.1f} {y})">{_SHAPES[dot.series % SERIES]}</g></g>'
    )


def _axis(left: float, right: float, height: tuple[float, float], axis: tuple[float, str]) -> str:
    (top, bottom), (most, unit) = height, axis
    parts = []
    for step in range(5):
        x = left + step / 4 * (right - left)
        side = "start" if step == 0 else "end" if step == 4 else "mid"
        parts.append(
            f'<path d="M{x:.1f} {top + 14}V{bottom}" class="grid"/>'
            f'<text x="{x:.1f}" y="{bottom + 12}" class="tick {side}">'
            f"{escape(f'{most * step / 4:.3g} {unit}'.strip())}</text>"
        )
    return "".join(parts)


def _svg(title: str, height: float, content: str) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
        f"<title>{escape(title)}</title>{content}</svg>"
    )


def _name(name: str, x: float, y: float) -> tuple[str, int]:
    """Return the SVG of a name as lines of text below ``y``, and the total height of the lines."""
    short = shorten(plain(name), _NAME_CHARS * _NAME_LINES)
    rows = textwrap.wrap(short, _NAME_CHARS) or [""]
    text = "".join(
        f'<text x="{x}" y="{y + 10 + _LINE * place}" class="name">{escape(row)}</text>'
        for place, row in enumerate(rows)
    )
    return text, 2 + _LINE * len(rows)


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
