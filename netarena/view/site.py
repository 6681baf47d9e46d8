"""Pages of the viewer, identical for the live server and for static files.

Paths and links are relative to the site. All texts pass through ``visible`` and are escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from netarena.analysis.stats import VERDICTS
from netarena.errors import ConfigError
from netarena.model import Ask, JsonValue, Move, Outcome, Step
from netarena.report.markdown import interval, number, percent, shorten, unsafe_text
from netarena.report.story import Story, Turn, asked_text, move_text, parting_step
from netarena.task.picture import Chart, Difference, Matrix, Picture, Topology, Turned, turned
from netarena.view import drawing, summary
from netarena.view.index import Entry, Library, Run
from netarena.view.selection import (
    APART,
    COLUMNS,
    FACETS,
    PAGE_ROWS,
    SAFETIES,
    SHOWS,
    SORTS,
    Selection,
    cost_of,
    discordant,
    tally,
    tokens_of,
)
from netarena.view.text import fold, visible

_HERE = Path(__file__).parent
#: Files that are served unchanged.
ASSETS = {"view.css": "text/css", "view.js": "text/javascript", "icon.svg": "image/svg+xml"}
LIST, RUNS = "index.html", "runs.html"
#: Paths of the data for filters without a server, and of the state that a live page polls.
ENTRIES, STATE = "entries.json", "state.json"
#: Path of the texts for searches without a server. The browser loads this file at the first search.
WORDS = "words.json"
#: Maximum total number of characters of the texts in ``WORDS``.
_MOST_WORDS = 32_000_000
#: Content Security Policy: pages load only the site's own content.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'"
)
_MOST_PROBLEMS = 20
_EPISODE = re.compile(r"(episode|same)/([^/]+)/([^/]+)\.html")
_RUN = re.compile(r"run/([^/]+)\.html")
_OUTCOMES = {
    "solved": ("✓", "solved"),
    "unsolved": ("✕", "not solved"),
    "agent_failed": ("✕", "agent failed"),
    "invalid": ("–", "invalid"),
}


class Page(NamedTuple):
    """The response for a URL path."""

    kind: str
    content: bytes
    #: Whether the requested page exists; False for the error page.
    found: bool = True
    #: Paths of the complete texts that the page shortens and links to.
    texts: tuple[str, ...] = ()


class _Known(NamedTuple):
    """The filters and columns of lists of episodes, computed from all episodes."""

    #: Filter -> its values, each with its label.
    choices: dict[str, list[tuple[str, str]]]
    columns: set[str]


class Site:
    """Renders the pages of a library of runs. ``live`` is true if a server serves the pages."""

    def __init__(self, library: Library, *, live: bool) -> None:
        self.library = library
        self._live = live
        #: The last selection and its result, in which episode pages look up the next and the
        #: previous episode.
        self._chosen: tuple[int, Selection, list[Entry], dict[str, int]] | None = None
        #: A generation of the library, and the filters and columns computed for this generation.
        self._known: tuple[int, _Known] | None = None
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "template"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_seen,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "percent": percent,
            "interval": lambda bounds: f"{interval(bounds)} %",
            "number": number,
            "short": shorten,
            "query": urlencode,
            "seconds": _seconds,
            "size": _size,
            "fold": fold,
            "clip": _clip,
            "tokens": tokens_of,
            "cost": cost_of,
            "outcome": lambda outline: _OUTCOMES[outline.outcome],
        }
        self._templates.globals |= {
            "policy": POLICY,
            "live": live,
            #: Whether the page is a self-contained file.
            "alone": False,
            "layout": "base.html",
            "drawing": drawing,
            "asked_text": asked_text,
        }

    def page(self, path: str, parameters: Mapping[str, str]) -> Page:
        """Return the page at a path, or an error page if the path does not exist."""
        if path in {"", LIST}:
            return self._list(Selection.read(parameters))
        if path in ASSETS:
            return Page(ASSETS[path], (_HERE / "asset" / path).read_bytes())
        if path == RUNS:
            runs = [(run, summary.rates_of(run)) for run in self.library.runs]
            return self._html("runs.html", "", runs=runs)
        if (match := _RUN.fullmatch(path)) and (run := self.library.run(match[1])):
            return self._run(run)
        if path == STATE:
            return _json(self._state())
        if path == ENTRIES:
            return _json(self._entries())
        if path == WORDS:
            return _json(self._words())
        problem = "This page does not exist."
        try:
            if match := _EPISODE.fullmatch(path):
                kind, slug, name = match.groups()
                page = self._reading(kind, slug, name, Selection.read(parameters))
                if page is not None:
                    return page
            if match := _PART.fullmatch(path):
                slug, name, number, part = match.groups()
                if (entry := self._find(slug, name)) and (text := _text(entry, number, part)):
                    return Page("text/plain", text)
        except ConfigError as error:
            problem = str(error)
        root = "../" * path.count("/")
        return self._html("missing.html", root, found=False, problem=problem)

    def _reading(self, kind: str, slug: str, name: str, selection: Selection) -> Page | None:
        """Return the page of an episode, or of several episodes side by side, or None."""
        better, apart, worse = slug.partition(APART)
        entry = self._find(worse if apart else slug, name)
        if entry is None:
            return None
        if kind == "episode":
            return self._episode(entry, selection)
        if not apart:
            return self._same(entry, self._same_ask(entry), selection)
        run = self.library.run(better)
        other = run.answer(entry.outline.ask) if run else None
        return self._same(entry, [other, entry], selection, pair=slug) if other else None

    def bundle(self, entry: Entry) -> bytes:
        """Return an episode's page as a single file that loads nothing and runs no script."""
        style = (_HERE / "asset" / "view.css").read_text()
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        return self._episode(
            entry,
            Selection(),
            alone=True,
            layout="alone.html",
            style=Markup(style),  # noqa: S704 -- NetArena's own file
            style_hash=f"sha256-{digest}",
        ).content

    def paths(self) -> Iterator[str]:
        """Yield the paths of all pages and files, starting with the list page.

        The paths in ``Page.texts`` are not included.
        """
        yield from (LIST, ENTRIES, WORDS, *ASSETS)
        yield from (RUNS, *(f"run/{run.slug}.html" for run in self.library.runs))
        for entry in self.library.entries:
            yield entry.path
            others = self._same_ask(entry)
            if len(others) > 1 and others[0] is entry:
                yield _same_path(entry)
        for path, pairs in discordant(self.library.entries).items():
            name = path.rpartition("/")[2]
            yield from (f"same/{pair}/{name}" for pair in pairs)

    @property
    def _several(self) -> bool:
        return len(self.library.runs) > 1

    def _find(self, slug: str, name: str) -> Entry | None:
        run = self.library.run(slug)
        return run.find(name) if run else None

    def _same_ask(self, entry: Entry) -> list[Entry]:
        """Return the episodes of all runs for the same query and repetition as ``entry``."""
        answers = [run.answer(entry.outline.ask) for run in self.library.runs]
        return [answer for answer in answers if answer is not None]

    def _choose(self, selection: Selection) -> tuple[list[Entry], dict[str, int]]:
        """Return the entries of a selection, and a map from each entry's path to its position."""
        key = self.library.generation, replace(selection, page=1)
        kept = self._chosen  # read the attribute once, because another thread may replace it
        if kept is None or kept[:2] != key:
            chosen = selection.choose(self.library.entries)
            places = {entry.path: place for place, entry in enumerate(chosen)}
            kept = self._chosen = (*key, chosen, places)
        return kept[2:]

    def _list(self, selection: Selection) -> Page:
        # Read the generation before the entries. If the entries are newer, the only effect is one
        # additional poll by the page.
        generation = self.library.generation
        entries = self.library.entries
        chosen, _ = self._choose(selection)
        pages = max(1, math.ceil(len(chosen) / PAGE_ROWS))
        page = min(selection.page, pages)
        start = (page - 1) * PAGE_ROWS
        read, size = self.library.progress
        return self._html(
            "list.html",
            "",
            selection=selection,
            search=selection.search(page=page),
            rows=chosen[start : start + PAGE_ROWS],
            target=partial(_pair_path, selection.pair) if selection.pair else _own_target,
            page=page,
            pages=pages,
            tally=tally(chosen),
            runs=self.library.runs,
            total=len(entries),
            choices=self._known_of(entries, generation).choices,
            columns=self._known_of(entries, generation).columns,
            sorts=tuple(SORTS),
            progress=None if read == size else 100 * read // max(1, size),
            generation=generation,
            problems=[
                f"{run.title}: {problem}" for run in self.library.runs for problem in run.problems
            ][:_MOST_PROBLEMS],
        )

    def _known_of(self, entries: Sequence[Entry], generation: int) -> _Known:
        kept = self._known  # read the attribute once, because another thread may replace it
        if kept is None or kept[0] != generation:
            columns = {name for name, test in COLUMNS.items() if any(map(test, entries))}
            kept = self._known = generation, _Known(_choices(entries) | _pairs(entries), columns)
        return kept[1]

    def _state(self) -> dict[str, JsonValue]:
        read, size = self.library.progress
        return {"generation": self.library.generation, "read": read, "size": size}

    def _entries(self) -> dict[str, Any]:
        """Return the data with which ``asset/view.js`` filters and sorts a list.

        The data of an entry consist of its filter values, its position in each order, and its table
        row.
        """
        entries = self.library.entries
        row = self._templates.get_template("row.html")
        columns = self._known_of(entries, self.library.generation).columns
        pairs = discordant(entries)
        orders = {}
        for name, key in SORTS.items():
            values = [key(entry) for entry in entries]
            ranks = {value: rank for rank, value in enumerate(sorted(set(values)))}
            orders[name] = [ranks[value] for value in values]
        found = dict.fromkeys(entry.outline.same for entry in entries)
        clusters = {content: number for number, content in enumerate(found)}
        orders["graded"] = list(range(len(entries)))
        return {
            "rows": PAGE_ROWS,
            "orders": orders,
            "entries": [
                {
                    "path": entry.path,
                    # a number instead of the digest, because readers could guess hidden queries
                    # from the digest
                    "same": clusters[entry.outline.same],
                    "show": [name for name, (_, test) in SHOWS.items() if test(entry)],
                    "safe": [name for name, (_, test) in SAFETIES.items() if test(entry)],
                    **{name: field(entry) for name, (_, field) in FACETS.items()},
                    "pairs": pairs.get(entry.path, []),
                    "name": entry.name,
                    "counts": entry.outline.outcome is not Outcome.INVALID,
                    "right": [judge(entry.outline) for judge in VERDICTS.values()],
                    "row": " ".join(
                        row.render(
                            entry=entry,
                            search="",
                            several=self._several,
                            target=_own_target,
                            columns=columns,
                        ).split()
                    ),
                }
                for entry in entries
            ],
        }

    def _run(self, run: Run) -> Page:
        known = self._known_of(self.library.entries, self.library.generation)
        return self._html(
            "run.html",
            "../",
            run=run,
            facts=list(summary.facts(run)),
            rates=summary.rates_of(run),
            outcomes=summary.outcomes_of(run),
            unsafe=unsafe_text(summary.unsafe_of(run)),
            others=summary.oppose(run, self.library.runs),
            breakdowns=list(summary.breakdowns(run)),
            columns=known.columns,
            config=summary.config_text(run),
        )

    def _words(self) -> dict[str, Any]:
        """Return ``texts`` (the searchable texts of all entries) and ``chars``.

        ``chars`` is the length to which each text is cut, or None if all texts are complete.
        """
        entries = self.library.entries
        texts = [entry.run.words(entry) for entry in entries]
        whole = sum(map(len, texts)) <= _MOST_WORDS
        chars = None if whole else _MOST_WORDS // len(texts)
        return {"chars": chars, "texts": [text[:chars] for text in texts]}

    def _episode(self, entry: Entry, selection: Selection, **values: Any) -> Page:
        story = entry.run.tell(entry)
        texts = _Texts(entry)
        chosen, places = self._choose(selection)
        if entry.path not in places:
            chosen, places = self._choose(Selection())
        here = places.get(entry.path, 0)
        others = self._same_ask(entry)
        return self._html(
            "episode.html",
            "../../",
            texts,
            entry=entry,
            story=story,
            scenes=_scenes(story),
            search=selection.search(page=selection.page),
            before=next((one for one in reversed(chosen[:here]) if one.lost), None),
            after=next((one for one in chosen[here + 1 :] if one.lost), None),
            same=_same_path(others[0]) if len(others) > 1 else "",
            repeats=[
                other
                for repeat in range(1, entry.run.repeats + 1)
                if (other := entry.run.answer(Ask(entry.outline.query_id, repeat)))
            ],
            **values,
        )

    def _same(
        self, entry: Entry, others: Sequence[Entry], selection: Selection, *, pair: str = ""
    ) -> Page:
        """Return the page that shows the episodes ``others`` side by side.

        With a ``pair`` of runs, the links of the page lead to the other queries that only the first
        run solved.
        """
        chosen: list[Entry] = []
        here = 0
        if pair:
            chosen, places = self._choose(
                selection if selection.pair == pair else Selection(pair=pair)
            )
            here = places.get(entry.path, 0)
        stories = [other.run.tell(other) for other in others]
        texts = [_Texts(other) for other in others]
        steps = [story.episode.steps for story in stories]
        parts = [parting_step(steps[0], own) for own in steps[1:]]
        parts_at = min((number for number in parts if number is not None), default=None)
        # number of the first run whose episode has the step ``parts_at``
        far = (lane for lane, own in enumerate(steps, start=1) if len(own) >= (parts_at or 0))
        parts_lane = next(far, 1)
        lanes = [
            # each run is compared with the first run, and the first run with the second run
            (other, story, _scenes(story), text, steps[0 if place else min(1, len(steps) - 1)])
            for place, (other, story, text) in enumerate(zip(others, stories, texts, strict=True))
        ]
        page = self._html(
            "same.html",
            "../../",
            lanes=lanes,
            story=stories[0],
            entry=entry,
            search=selection.search(page=selection.page),
            parts_at=parts_at,
            parts_lane=parts_lane,
            same_path=_pair_path(pair, entry) if pair else _same_path(others[0]),
            before=_pair_path(pair, chosen[here - 1]) if here else "",
            after=_pair_path(pair, chosen[here + 1]) if here + 1 < len(chosen) else "",
        )
        return page._replace(texts=tuple(path for text in texts for path in text.paths))

    def _html(
        self,
        name: str,
        root: str,
        texts: _Texts | None = None,
        *,
        found: bool = True,
        **values: Any,
    ) -> Page:
        template = self._templates.get_template(name)
        content = template.render(root=root, texts=texts, several=self._several, **values)
        return Page("text/html", _encode(content), found, tuple(texts.paths) if texts else ())


class _Texts:
    """Collects the paths of those texts of an episode that a page shows only in part."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self.paths: list[str] = []

    def path(self, number: int, part: str) -> str:
        """Return and record the path of the complete text ``part`` of step ``number``."""
        path = f"text/{self._entry.run.slug}/{self._entry.name}/{number}-{part}.txt"
        self.paths.append(path)
        return path


class Scene(NamedTuple):
    """A turn with the pictures before and after it, in the form that a template draws."""

    turn: Turn
    #: Each matrix before the turn and after the turn, with its changed cells.
    matrices: list[tuple[Matrix | None, Matrix, list[Turned]]]
    #: Each topology after the turn, and whether it differs from the topology before the turn.
    topologies: list[tuple[Topology, bool]]
    #: Charts that differ from those before the turn.
    charts: list[Chart]
    differences: list[Difference]
    state: str
    #: The command as one line.
    short: str
    #: Description of the faults before the turn.
    reason_before: str
    #: Whether the agent's declaration in this episode was right.
    claim_right: bool

    @property
    def news(self) -> bool:
        """Return whether a matrix or a topology has changed."""
        changed = [bool(turned) for _, _, turned in self.matrices]
        return any([*changed, *(new for _, new in self.topologies)])


def _scenes(story: Story) -> list[Scene]:
    scenes = []
    last: dict[str, Picture] = {picture.title: picture for picture in story.pictures}
    reason = ""
    for turn in story.turns:
        state, short = _state_text(turn.step), _short(turn.step.move)
        right = bool(story.episode.claim_right)
        scene = Scene(turn, [], [], [], [], state, short, reason, right)
        if turn.step.judgement is not None:
            reason = turn.step.judgement.reason
        for picture in turn.pictures:
            old = last.get(picture.title)
            if isinstance(picture, Matrix):
                before = old if isinstance(old, Matrix) else None
                scene.matrices.append((before, picture, list(turned(before, picture))))
            elif isinstance(picture, Topology):
                scene.topologies.append((picture, picture != old))
            elif isinstance(picture, Chart):
                if picture != old:
                    scene.charts.append(picture)
            elif picture != old:
                scene.differences.append(picture)
        last |= {picture.title: picture for picture in turn.pictures}
        scenes.append(scene)
    return scenes


def _short(move: Move) -> str:
    values = move.values() if isinstance(move, dict) else [move]
    words = [value for value in values if isinstance(value, str)]
    return " ".join(" · ".join(words)[:400].split()) or move_text(move)[:400]


def _own_target(entry: Entry) -> str:
    return entry.path


def _pair_path(pair: str, entry: Entry) -> str:
    """Return the path of the page that shows both episodes of a pair of runs side by side."""
    return f"same/{pair}/{entry.name}.html"


def _same_path(entry: Entry) -> str:
    return f"same/{entry.run.slug}/{entry.name}.html"


def _text(entry: Entry, number: str, part: str) -> bytes | None:
    """Return a complete text of a step with visible control characters; None without the step."""
    steps = entry.run.read(entry).steps
    if not 0 < int(number) <= len(steps):
        return None
    step = steps[int(number) - 1]
    return _encode(visible(_PARTS[part](step)))


def _state_text(step: Step) -> str:
    if step.state is None:
        return ""
    return json.dumps(step.state, ensure_ascii=False, indent=1)


#: Name of a text in paths -> function that returns this text of a step.
_PARTS: Mapping[str, Callable[[Step], str]] = {
    "prompt": lambda step: step.prompt,
    "reply": lambda step: step.reply.text if step.reply else "",
    "asked": lambda step: move_text(step.move),
    "output": lambda step: step.output,
    "state": _state_text,
}
_PART = re.compile(rf"text/([^/]+)/([^/]+)/([0-9]{{1,6}})-({'|'.join(_PARTS)})\.txt")


def _choices(entries: Sequence[Entry]) -> dict[str, list[tuple[str, str]]]:
    """Return the values of each filter, with labels that contain the number of episodes."""
    choices = {}
    for name, table in (("show", SHOWS), ("safe", SAFETIES)):
        counts = {value: sum(map(test, entries)) for value, (_, test) in table.items()}
        choices[name] = [
            (value, f"{words} ({counts[value]})" if value else words)
            for value, (words, _) in table.items()
            if counts[value] or not value
        ]
    titles = {entry.run.slug: f"{entry.run.title} · {entry.agent}" for entry in entries}
    for name, (words, field) in FACETS.items():
        found = Counter(map(field, entries))
        choices[name] = [("", words)] + [
            (value, f"{titles.get(value, value) if name == 'run' else value} ({count})")
            for value, count in sorted(found.items())
            if value
        ]
    return choices


def _pairs(entries: Sequence[Entry]) -> dict[str, list[tuple[str, str]]]:
    """Return the values of the filter ``pair``, with labels.

    The label of a pair contains the number of queries that only the first run solved.
    """
    found = Counter(pair for pairs in discordant(entries).values() for pair in pairs)
    titles = {entry.run.slug: entry.run.title for entry in entries}
    words = [("", "solved by only one run")]
    for pair, count in sorted(found.items()):
        better, _, worse = pair.partition(APART)
        text = (
            f"{shorten(titles[better], 40)} solved, {shorten(titles[worse], 40)} did not ({count})"
        )
        words.append((pair, text))
    return {"pair": words}


def _seen(value: Any) -> Any:
    """Make hidden characters in a template value visible. Jinja calls this for each value."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _clip(text: str, chars: int = 300) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 0.95 else f"{1000 * value:.0f} ms"


def _size(chars: int) -> str:
    return f"{chars:,} characters"


def _json(value: Any) -> Page:
    return Page("application/json", json.dumps(value).encode())


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")
