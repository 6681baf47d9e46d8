"""Report as one self-contained HTML page with styles and plots.

The templates escape agents' texts and replace control characters. The page's security policy
forbids scripts. The size of tables and texts is limited, so that the page of any run is smaller
than 3 MB. The viewer shows transcripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from netarena.errors import ConfigError
from netarena.report.chart import Chart, charts
from netarena.report.markdown import (
    MAX_LOST,
    REPEATED_HEAD,
    REPEATED_NOTE,
    Comparison,
    compare_participants,
    graded_of,
    has_turns,
    interval,
    number,
    pass_rows,
    percent,
    plain,
    unsafe_text,
    unseen_text,
)
from netarena.report.plot import marker

if TYPE_CHECKING:
    import jinja2

#: Maximum number of characters of one text.
MAX_CHARS = 300
#: Maximum number of rows of a table in one participant's section, and of all tables in all sections
#: together.
MAX_TABLE_ROWS, MAX_PAGE_ROWS = 200, 2000
_RATES = {"solved_safely": "Solved safely", "correctness": "Correct", "safety": "Safe"}
#: Maximum number of labels in a plot by label. The table contains all labels.
MAX_ROWS = 60


@dataclass(frozen=True)
class Group:
    """Participants that are ranked together, best first, and their plots."""

    title: str
    terms: str
    participants: Sequence[Mapping[str, Any]]
    figures: Sequence[Chart]
    #: Ranking and pairwise comparisons; empty for a single participant.
    tables: Sequence[Comparison]


def render_html(report: Mapping[str, Any]) -> str:
    """Return the page of a report (``make_report``). Raises ConfigError if Jinja is missing."""
    share = max(5, MAX_PAGE_ROWS // max(1, len(report["participants"])))
    # each group assigns colours and shapes in the order of its ranking
    series = {
        name: number for group in report["groups"] for number, name in enumerate(group["ranking"])
    }
    by_name = {one["name"]: one for one in report["participants"]}
    groups = []
    comparisons = list(compare_participants(report))
    for place, group in enumerate(report["groups"]):
        members = [by_name[name] for name in group["ranking"]]
        figures = [one for one in charts(group, members, series, MAX_ROWS) if one.svg]
        title, _, terms = group["title"].partition(": ")
        tables = [part for part in comparisons if part.group == place and len(members) > 1]
        groups.append(Group(title, terms, members, figures, tables))
    page = _environment().get_template("report.html")
    return page.render(
        report=report,
        groups=groups,
        series=series,
        rates=_RATES,
        repeated_head=REPEATED_HEAD,
        repeated_note=REPEATED_NOTE,
        most_lost=min(MAX_LOST, share),
        most_rows=min(MAX_TABLE_ROWS, share),
    )


def _environment() -> jinja2.Environment:
    try:
        import jinja2
        from markupsafe import Markup
    except ModuleNotFoundError as error:
        raise ConfigError(
            "--html", f'needs {error.name}, which is not installed: pip install "netarena[view]"'
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("netarena.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        plain=_line,
        percent=percent,
        interval=interval,
        number=number,
        graded=graded_of,
        has_turns=has_turns,
        pass_rows=pass_rows,
        unsafe=unsafe_text,
        unseen=lambda summary: [_line(text) for text in unseen_text(summary)],
        # used only for NetArena's own plots, whose texts are already escaped
        svg=Markup,
        marker=lambda place: Markup(marker(place)),  # noqa: S704 -- NetArena created the markup
    )
    return environment


def _line(text: object) -> str:
    words = plain(str(text)[: 2 * MAX_CHARS])
    return words if len(words) <= MAX_CHARS else f"{words[:MAX_CHARS]}…"
