"""Files of a report's figures and tables: charts as SVG and CSV, tables as LaTeX and CSV."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import chain, count
from pathlib import Path
from typing import Any

from netarena.report.chart import Chart, charts
from netarena.report.comparison import Cell, Table, tables
from netarena.report.markdown import plain, shorten
from netarena.report.plot import WIDTH, marker
from netarena.report.table import csv_line
from netarena.run.result import replace_file

#: Height of a legend line in SVG units, and the maximum number of characters of a name in the
#: legend.
_LINE, _CHARS = 18, 56
_HEIGHT = re.compile(r'viewBox="0 0 \d+ (\d+)"')
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def write_figures(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the figures and tables of a report (``make_report``); return the files in order.

    If there are several groups, each group gets a subfolder named after its application. Raises
    OSError.
    """
    by_name = {one["name"]: one for one in report["participants"]}
    written: list[Path] = []
    for place, group in zip(_folders(report["groups"], folder), report["groups"], strict=True):
        place.mkdir(parents=True, exist_ok=True)
        members = [by_name[name] for name in group["ranking"]]
        colours = {name: number for number, name in enumerate(group["ranking"])}
        for chart in charts(group, members, colours):
            if chart.svg:
                names = list(group["ranking"]) if chart.legend else []
                written.append(_write(place / f"{chart.name}.svg", [alone(chart, names)]))
            written.append(_write(place / f"{chart.name}.csv", _csv(chart)))
        for table in tables(group, members):
            if table.rows:
                written.append(_write(place / f"{table.name}.csv", _csv(table)))
                written.append(_write(place / f"{table.name}.tex", latex(table)))
    return written


def _folders(groups: Sequence[Mapping[str, Any]], folder: Path) -> Iterator[Path]:
    if len(groups) == 1:
        yield folder
        return
    used: set[str] = set()
    for group in groups:
        name = re.sub(r"[^a-z0-9]+", "-", str(group["terms"]["application"]).lower()) or "group"
        numbered = chain([name], (f"{name}-{number}" for number in count(2)))
        used.add(free := next(one for one in numbered if one not in used))
        yield folder / free


def _write(path: Path, parts: Iterator[str] | list[str]) -> Path:
    replace_file(path, parts)
    return path


def alone(chart: Chart, names: Sequence[str]) -> str:
    """Return a chart as a self-contained SVG file.

    The file contains styles, a title, and a legend of ``names``.
    """
    found = _HEIGHT.search(chart.svg)
    height = int(found[1]) if found else 300
    lines = [
        f'<g transform="translate(10 {height + 30 + _LINE * row})">'
        f"{_at(marker(row), -6, -10)}"
        f'<text x="12" y="0" class="name">{escape(shorten(plain(name), _CHARS))}</text></g>'
        for row, name in enumerate(names)
    ]
    whole = height + 26 + _LINE * len(names)
    plot = _at(chart.svg, 0, 20).replace("<svg ", f'<svg width="{WIDTH}" height="{height}" ', 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{2 * whole}" '
        f'viewBox="0 0 {WIDTH} {whole}" font-family="sans-serif"><style>{_style()}</style>'
        f'<rect width="{WIDTH}" height="{whole}" fill="#ffffff"/>'
        f'<text x="8" y="14" class="name">{escape(chart.title)}</text>'
        f"{plot}{''.join(lines)}</svg>\n"
    )


def _at(svg: str, x: int, y: int) -> str:
    return svg.replace("<svg ", f'<svg x="{x}" y="{y}" ', 1)


def _style() -> str:
    """Return the rules for plots from the page's style sheet, with the colours of the light scheme.

    CSS variables are replaced with their values, because many SVG programs do not support
    variables.
    """
    text = (files("netarena.report") / "templates" / "report.css").read_text(encoding="utf-8")
    light = text[: text.index("@media")]
    colours = dict(re.findall(r"(--\w+): (#[0-9a-f]{6})", light))
    rules = re.findall(r"(?:^|(?<=\}))\s*((?:svg[ .]|\.s\d)[^{}]*\{[^{}]*\})", text, re.MULTILINE)
    joined = " ".join(" ".join(rule.split()) for rule in rules)
    return re.sub(r"var\((--\w+)\)", lambda name: colours[name[1]], joined)


def _csv(content: Chart | Table) -> Iterator[str]:
    yield csv_line(content.head)
    for row in content.rows:
        yield csv_line(row)


def latex(table: Table) -> Iterator[str]:
    """Yield the lines of a table in LaTeX, which needs no LaTeX package.

    Columns that contain text are left-aligned; columns of numbers are right-aligned.
    """
    columns = zip(*table.rows, strict=True)
    sides = "".join("l" if any(isinstance(c, str) for c in column) else "r" for column in columns)
    yield f"% {_tex(table.title)}\n\\begin{{tabular}}{{{sides}}}\n\\hline\n"
    yield f"{_tex_row(table.head)}\\hline\n"
    yield from map(_tex_row, table.rows)
    yield "\\hline\n\\end{tabular}\n"


def _tex_row(row: Sequence[Cell]) -> str:
    r"""Return a row of a LaTeX table.

    Rows that begin with ``[`` or ``*`` get the prefix ``{}``. Otherwise LaTeX would treat this
    character as an argument of the ``\\`` at the end of the previous row.
    """
    line = " & ".join(map(_tex, row)) + " \\\\\n"
    return "{}" * line.startswith(("[", "*")) + line


def _tex(cell: Cell) -> str:
    if cell is None:
        return "--"
    if isinstance(cell, float):
        return f"{cell:.3g}" if abs(cell) < 1 else f"{cell:.1f}"
    return "".join(_SPECIAL.get(sign, sign) for sign in plain(cell))
