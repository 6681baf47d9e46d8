from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.errors import ConfigError
from netarena_malt.action import (
    Addition,
    Loop,
    NewNode,
    Question,
    Removal,
    Selection,
    Update,
    act,
)
from netarena_malt.app import Malt
from netarena_malt.edit import names_of
from netarena_malt.grammar import PACK_VARIABLE, shipped
from netarena_malt.network_builder import Draft
from netarena_malt.phrasing import (
    Writer,
    in_words,
    longest_sentence,
    ordinal_in_words,
    phrase,
)
from netarena_malt.query import LABELS, PROGRAMS, MaltConfig
from netarena_malt.topology import CAPACITY, EK_PACKET_SWITCH, EK_PORT
from tests.fake.deal import deal

#: digest of three varied and three held-out texts of each label. A different digest means that
#: every seed draws other texts, so raise ``query.WORDED_VERSION`` with it.
GOLDEN = "6b2f54da2d5dc695"
ALL_LEVELS = ("level1", "level2", "level3", "level4")


@pytest.fixture(autouse=True)
def _no_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PACK_VARIABLE, raising=False)


class Shapes(Writer):
    """A writer that prints kinds instead of operands."""

    def node(self, name: str, depth: int = 0) -> str:
        return "<node>"

    def capacity(self, bps: float) -> str:
        return "<capacity>"

    def number(self, number: float) -> str:
        return "<number>"

    def ordinal(self, rank: int) -> str:
        return "<place>"

    def multiple(self, factor: float) -> str:
        return "<factor>"

    def _names(self, names: Any) -> str:
        return "<names>"

    def _noun(self, kind: str | None, *, many: bool = False) -> Callable[[], str]:
        return lambda: "<kinds>" if many else "<kind>"

    def _quote_new(self, name: str) -> str:
        return "<name>"


def draw(phrasing: str, number: int = 4, **config: Any) -> Iterator[Any]:
    return deal(
        Malt(),
        MaltConfig(num_queries=number, phrasing=phrasing, complexity_level=ALL_LEVELS, **config),
        7,
        lambda index: random.Random(f"phrasing-{index}"),
        lambda index: f"test-{index}",
    )


@cache
def drawn(phrasing: str, number: int = 3) -> tuple[Any, ...]:
    """Return queries of the shipped grammar, drawn once for all tests of this module."""
    return tuple(draw(phrasing, number))


def make_writer(seed: int = 0, *, held_out: bool = False) -> Writer:
    return Writer(shipped(), Draft(), random.Random(seed), held_out=held_out)


def test_varied_and_held_out_queries_differ_only_in_their_text() -> None:
    canonical, varied, held_out = map(drawn, ("canonical", "varied", "held_out"))
    for one, two, three in zip(canonical, varied, held_out, strict=True):
        # canonical text names its node, so only the canonical network has its edits near this node
        assert two.actions == three.actions
        assert two.initial == three.initial != one.initial
        assert len({one.text, two.text, three.text}) == 3
        for query in (two, three):
            assert "\0" not in query.text
            assert "  " not in re.sub(r"\n +", "\n", query.text)
            assert query.text == query.text.strip()
            assert query.text[0].isupper() or query.text[0] in "'0123456789"


def test_texts_match_the_stored_digest() -> None:
    lines = "\n".join(query.text for how in ("varied", "held_out") for query in drawn(how))
    assert hashlib.sha256(lines.encode()).hexdigest()[:16] == GOLDEN


def test_only_the_last_of_several_nodes_is_described() -> None:
    """'The switch that holds A and B' would have two readings."""
    names = ("ju1.a1.m1.s2c1.p3", "ju1.a2.m1.s2c2.p5", "ju1.s1.s1c1.p2")
    removal = act("remove", Removal(names=names))
    texts = [make_writer(seed, held_out=seed % 2 == 1).step(removal) for seed in range(40)]
    assert all(repr(name) in text for text in texts for name in names[:-1])
    assert sum(repr(names[-1]) not in text for text in texts) > 20


@pytest.mark.slow
def test_varied_sentences_are_short() -> None:
    longest = [longest_sentence(query.text) for query in drawn("varied")]
    assert sum(words > 25 for words in longest) < len(longest) / 20
    assert max(longest) <= 32


def test_varied_text_asks_before_it_states_the_form_of_the_answer() -> None:
    words = re.compile(
        r"add|install|create|provision|remove|delete|decommission|retire|set|change|update|adjust|"
        r"assign|configure|scale|multiply|count|number|list|names?|which|how many|rank|sort",
        re.IGNORECASE,
    )
    for query in drawn("varied"):
        before_answer = re.split(r"[^.]*(?:type '|updated_graph)", query.text, maxsplit=1)[0]
        assert words.search(before_answer), query.text


def test_varied_steps_are_in_the_order_in_which_they_run() -> None:
    port = "ju1.s2.s1c1.p1"
    actions = (
        act("remove", Removal(names=(port,))),
        act("count", Question(select=Selection(name="ju1.a2", scope="children"))),
    )
    asks = re.compile(r"\b(?:count|number|how many)\b", re.IGNORECASE)
    for seed in range(60):
        text = phrase(actions, Draft(), random.Random(seed))
        change = re.search(r"\b(?:remove|delete|decommission|retire)\b", text, re.IGNORECASE)
        question = asks.search(text)
        assert change is not None
        assert question is not None
        assert change.start() < question.start(), text


@pytest.mark.slow
def test_held_out_productions_are_used_in_held_out_text_only() -> None:
    varied: Counter[str] = Counter()
    held = {one.id for one, held in shipped().productions() if held}
    for query in drawn("varied"):
        _phrase_again(query, varied)
        used: Counter[str] = Counter()
        _phrase_again(query, used, held_out=True)
        assert sum(used[one] for one in held) >= 3, query.label
    assert varied
    assert not held & set(varied)


def test_pack_appears_in_held_out_text_and_changes_the_shape_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = MaltConfig(phrasing="held_out").shape_hash()
    pack = tmp_path / "pack.json"
    pack.write_text(
        json.dumps({"format": 1, "productions": {"answer.graph": ["send {network} by pigeon."]}}),
        encoding="utf-8",
    )
    monkeypatch.setenv(PACK_VARIABLE, str(pack))
    shares = {
        how: sum("by pigeon" in query.text for query in draw(how, 2) if "add" in query.label)
        for how in ("varied", "held_out")
    }
    assert shares["held_out"] > shares["varied"] == 0
    assert MaltConfig(phrasing="held_out").shape_hash() != plain
    assert MaltConfig(phrasing="varied").shape() | {"phrasing": "canonical"} == MaltConfig().shape()
    pack.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^NETARENA_PHRASING_PACK: pack.json:1: not valid JSON"):
        MaltConfig.parse({"phrasing": "held_out"})
    assert MaltConfig.parse({"phrasing": "varied"}).phrasing == "varied"
    with pytest.raises(ConfigError, match="'rhymed' is not one of canonical, varied, held_out"):
        MaltConfig.parse({"phrasing": "rhymed"})


@pytest.mark.slow
def test_every_production_is_used() -> None:
    used: Counter[str] = Counter()
    for query in drawn("canonical", 16):
        for seed in range(4):
            _phrase_again(query, used, seed, held_out=True)
    unused = {one.id for one, _ in shipped().productions()} - set(used)
    # Productions that no label uses: two bounds at once, nodes with exactly one sibling, capacities
    # that are not whole numbers, and port names without a dot after the switch's name.
    # Productions that are rare: the only port with a capacity, new blocks, places before a held-out
    # question, and nodes of any kind below a node.
    rare = (
        "bound.between/",
        "having.between/",
        "capacity/1",
        "capacity/2",
        "front.directly/",
        "naming.suffix/",
        "namings.suffix/",
        "ref.sibling/",
        "ref.only/",
        "add.block/",
        "new_block/",
        "EK_JUPITER.many/",
        "node.many/",
    )
    assert not {one for one in unused if not one.startswith(rare)}


@pytest.mark.slow
def test_twelve_operations_have_at_least_ten_thousand_sentence_shapes() -> None:
    """Operands are replaced by their kinds; frames, answers and irrelevant words do not count."""
    shapes: Counter[str] = Counter()
    labels = [label for label in LABELS if PROGRAMS[label][0] != "level4"]
    assert len(labels) == 12
    queries = [query for query in drawn("canonical", 16) if query.label in labels]
    for number, query in enumerate(queries):
        rng = random.Random(number)
        for _ in range(75):
            writer = Shapes(shipped(), Draft(), rng, held_out=False)
            shapes[" ".join(writer.step(action) for action in query.actions)] += 1
    print(f"{len(shapes)} shapes in {shapes.total()} draws")
    assert len(shapes) >= 10_000


@pytest.mark.slow
def test_nodes_are_rarely_named() -> None:
    named = total = 0
    for query in drawn("varied"):
        for action in query.actions:
            if action.kind in {"count", "list", "rank"}:
                total += 1
                named += repr(action.parameters["select"]["name"]) in query.text
    assert named / total < 0.25


def test_phrase_that_node_is_used_only_while_one_node_of_its_kind_was_mentioned() -> None:
    writer = make_writer()
    first, second = "ju1.a1.m1.s2c1", "ju1.a1.m1.s2c2"
    writer.node(first, 2)
    again = re.compile(r"(that|same|above|earlier|aforesaid)\b")
    assert any(again.search(writer.node(first, 2)) for _ in range(20))
    writer.node(second, 2)
    assert not any(again.search(writer.node(first, 2)) for _ in range(20))


def test_references_to_earlier_steps_follow_the_order_of_the_text() -> None:
    actions = (
        act("list", Question(select=Selection(name="ju1.s2", scope="children"))),
        act("count", Question(select=Selection(name="ju1.s2", scope="children"))),
    )
    noun = r"(?:spine block|spine)\b"
    again = re.compile(
        rf"\b(?:that|same|aforesaid) {noun}|{noun} mentioned (?:above|earlier)", re.IGNORECASE
    )
    first_is_later = agains = 0
    for seed in range(200):
        text = phrase(actions, Draft(), random.Random(seed), held_out=seed % 2 == 1)
        first = re.search(r"\b(?:spine blocks?|spines?)\b|'ju1\.s2'", text)
        for found in again.finditer(text):
            agains += 1
            assert first is not None
            assert first.start() < found.start(), text
        first_is_later += "What must happen before" in text
    assert first_is_later
    assert agains > 20


def test_node_added_by_a_loop_is_named_by_a_later_step() -> None:
    port = NewNode(name="$1.p99", kind=EK_PORT, attributes={CAPACITY: 1e9}, parents=("$1",))
    loop = Loop(
        select=Selection(name="ju1.s2", scope="children", kind=EK_PACKET_SWITCH),
        then=(act("add", Addition(nodes=(port,))),),
    )
    actions = (act("each", loop), act("remove", Removal(names=("ju1.s2.s1c1.p99",))))
    text = phrase(actions, Draft(), random.Random(5))
    assert "'ju1.s2.s1c1.p99'" in text
    assert "'p99'" in text or "'.p99'" in text


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({"at_least_bps": 2e9, "below_bps": 4e9}, r"(at least|or more).*(below|less than)"),
        ({"below_bps": 4e9}, r"(below|less than|under)"),
        ({"at_least_bps": 4e9}, r"(at least|or more|no less)"),
        ({}, ""),
    ],
)
def test_bounds_are_stated_in_the_text(update: dict[str, float], words: str) -> None:
    select = Selection(name="ju1.s1", scope="descendants", kind=EK_PORT, **update)
    for seed in range(40):
        text = phrase(
            (act("update", Update(select=select, times=2.0)),), Draft(), random.Random(seed)
        )
        assert re.search(words, text)
        assert len(re.findall(r"bps|bit/s|Gb/s|bits per second", text)) >= len(update)


def test_question_about_one_node_keeps_its_canonical_words() -> None:
    action = act("count", Question(select=Selection(name="ju1.s1")))
    assert "Count the node 'ju1.s1'." in phrase((action,), Draft(), random.Random(1))


@given(st.one_of(st.floats(1, 1e15), st.integers(1, 10**6).map(lambda n: n * 1e8)))
def test_capacity_is_parsed_back_to_the_same_number(bps: float) -> None:
    units = {"bps": 1.0, "bit/s": 1.0}
    units |= dict.fromkeys(("Mbps", "Mbit/s", "megabits per second"), 1e6)
    for seed in range(8):
        number, unit = make_writer(int(bps) + seed).capacity(bps).split(" ", 1)
        if number[0].isalpha() or "-" in number:
            assert bps % 1e9 == 0
            continue
        assert float(number.replace(",", "")) * units.get(unit, 1e9) == bps


@given(st.integers(0, 999))
def test_different_numbers_have_different_words(number: int) -> None:
    assert in_words(number) not in {in_words(other) for other in range(1000) if other != number}
    assert ordinal_in_words(number + 1) != ordinal_in_words(number)


@pytest.mark.parametrize(
    ("number", "words", "place"),
    [
        (1, "one", "first"),
        (12, "twelve", "twelfth"),
        (20, "twenty", "twentieth"),
        (42, "forty-two", "forty-second"),
        (115, "one hundred and fifteen", "one hundred and fifteenth"),
        (300, "three hundred", "three hundredth"),
        (1000, None, None),
    ],
)
def test_numbers_are_written_in_words(number: int, words: str | None, place: str | None) -> None:
    assert in_words(number) == words
    assert ordinal_in_words(number) == place


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (0.5, {"half", "0.5 times", "50 percent of", "50% of"}),
        (1.0, {"once", "1 times", "100 percent of", "100% of"}),
        (2.0, {"twice", "2 times", "200 percent of", "200% of"}),
        (2.5, {"two and a half times", "2.5 times", "250 percent of", "250% of"}),
        (3.0, {"three times", "3 times", "300 percent of", "300% of"}),
        (0.1 + 0.2, {"0.30000000000000004 times"}),
    ],
)
def test_factors_are_written_in_all_forms(factor: float, words: set[str]) -> None:
    writer = make_writer()
    assert {writer.multiple(factor) for _ in range(80)} == words


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (0, {"first", "1st"}),
        (11, {"twelfth", "12th"}),
        (12, {"13th"}),
        (-1, {"last"}),
    ],
)
def test_ordinals_are_written_in_all_forms(rank: int, words: set[str]) -> None:
    assert {make_writer(seed).ordinal(rank) for seed in range(40)} == words


def test_fraction_is_written_in_digits() -> None:
    assert {make_writer(seed).number(2.5) for seed in range(20)} == {"2.5"}


def _phrase_again(query: Any, used: Counter[str], seed: int = 0, *, held_out: bool = False) -> None:
    """Write the query's actions on its network in other words."""
    rng = random.Random(1000 * seed + query.index)
    phrase(query.actions, _draft_of(query), rng, held_out=held_out, used=used)


def _draft_of(query: Any) -> Draft:
    draft = Draft()
    for name in query.initial["remove"]:
        port = draft.kind(name) == EK_PORT
        (draft.remove_port if port else draft.remove_switch)(name)
    for name, attributes, parents in query.initial["add"]:
        if attributes["type"] == [EK_PORT]:
            draft.add_port(parents[0], name, attributes[CAPACITY])
        else:
            draft.add_switch(name, attributes["switch_loc"]["stage"], parents, {})
    for names, _, bps in query.initial["set"]:
        for name in names_of(names):
            draft.set_capacity(name, bps)
    return draft
