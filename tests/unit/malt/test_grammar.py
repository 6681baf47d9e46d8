from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.errors import ConfigError
from netarena_malt.grammar import (
    PACK_VARIABLE,
    Grammar,
    diagnose,
    private,
    shipped,
    start_sentences,
    with_pack,
)

DOCS = Path(__file__).parents[3] / "docs"


def write_pack(folder: Path, productions: object, **more: object) -> Path:
    path = folder / "pack.json"
    data = {"format": 1, "productions": productions} | more
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return path


def refusal_of(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        with_pack(path)
    message = str(caught.value)
    assert message.startswith(f"{PACK_VARIABLE}: {path.name}")
    assert "\n" not in message
    return message.removeprefix(f"{PACK_VARIABLE}: {path.name}")


def test_one_tenth_of_the_productions_is_held_out_and_no_production_repeats() -> None:
    productions = list(shipped().productions())
    held_out = sum(held for _, held in productions)
    assert len(productions) > 400
    assert 0.1 <= held_out / len(productions) <= 0.12
    assert f"({held_out} of {len(productions)})" in (DOCS / "malt.md").read_text(encoding="utf-8")
    for symbol in shipped().symbols.values():
        texts = [one.text for one in (*symbol.productions, *symbol.held_out)]
        assert len(set(texts)) == len(texts), symbol.name
        assert symbol.productions, symbol.name
        assert symbol.about, symbol.name


@pytest.mark.parametrize(
    ("symbol", "production", "why"),
    [
        ("count", "count the {what} {place}.", "{bound|having?} must occur exactly once, not 0"),
        ("count", "count {selected} and {what}.", "{what} must occur exactly once, not 2"),
        ("count", "{front}: count {selected}.", "{place|front} must occur exactly once, not 2"),
        ("count", "count [{what} ]{place}[ {bound}].", "brackets must contain an operand that may"),
        (
            "count",
            "count {place}[ {what} {bound}].",
            "{what} must not be in brackets, because this operand is never absent",
        ),
        ("count", "count {nodes}.", "{nodes} is neither a symbol nor an operand"),
        ("descending", "by {capacity}", "{capacity} needs the operand exact"),
        ("remove", "remove {victims", "unexpected '{'"),
        ("remove", "remove {}{victims}", "unexpected '{}'"),
        ("remove", "remove [{victims}", "an opening bracket has no closing bracket"),
        ("remove", "remove ]{victims}", "unexpected ']'"),
        ("remove", " ", "must be non-empty text"),
        ("remove", 7, "must be non-empty text"),
        ("total", "{total} of ports", "{total} must not contain itself"),
        ("remove", "go\x00 {victims}.", "must be one line of at most 500 printable characters"),
        ("remove", "go\n{victims}.", "must be one line"),
        ("remove", f"{'o' * 500}{{victims}}", "must be one line"),
        ("ref.name", "the {kind}  named {name}", "is equal to the production ref.name/4"),
        (
            "ref.name",
            "the {kind} that goes by the name {name}",
            "is equal to the production ref.name/h1",
        ),
    ],
)
def test_production_without_an_operand_is_refused_with_its_line(
    symbol: str, production: object, why: str, tmp_path: Path
) -> None:
    path = write_pack(tmp_path, {"please_do": ["kindly do this."], symbol: [production]})
    line = 1 + path.read_text(encoding="utf-8").split(json.dumps(production))[0].count("\n")
    message = refusal_of(path)
    assert message.startswith(f":{line}: {symbol}/p1: {why}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", ":1: not valid JSON: "),
        ('{"format": 1,\n"productions": }', ":2: not valid JSON: "),
        ("[" * 100_000, ": not valid JSON: "),
        ('{"format": 2}', ':1: must be an object with "format": 1'),
        ("[]", ':1: must be an object with "format": 1'),
        ('{"format": 1}', ':1: "productions" must map symbols to lists'),
        ('{"format": 1, "productions": {"count": []}}', ':1: "productions" must map symbols'),
        (
            '{"format": 1,\n"productions": {"tally": ["x"]}}',
            ":2: unknown symbol 'tally'",
        ),
        ('{"format": 1,\n"productions": {"count": "x"}}', ":2: the value of count must be a list"),
        ('{"format": 1, "productions": {"count": []},\n"extra": 1}', ":2: unknown key 'extra'"),
        ("\udcff", ": the file is not UTF-8 text"),
        (" " * (2**20 + 1), ": the file has more than 1048576 bytes"),
    ],
)
def test_malformed_pack_is_refused(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "pack.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert refusal_of(path).startswith(why)


def test_missing_pack_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal_of(tmp_path) == ": Is a directory"
    monkeypatch.setenv(PACK_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="No such file"):
        private()


def test_pack_is_used_only_in_held_out_text_and_is_reloaded_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PACK_VARIABLE, str(write_pack(tmp_path, {"else_word": ["or else"]})))
    grammar = private()
    assert grammar.pack
    words = Counter(_expand(grammar, "else_word", seed, held_out=True) for seed in range(200))
    assert 200 * 0.5 < words["or else"] < 200
    assert "or else" not in {_expand(grammar, "else_word", seed) for seed in range(200)}
    write_pack(tmp_path, {"else_word": ["in any other case"]})
    assert private().pack != grammar.pack
    monkeypatch.delenv(PACK_VARIABLE)
    assert private() is shipped()


def test_doctor_checks_the_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PACK_VARIABLE, raising=False)
    (check,) = diagnose()
    assert (check.ok, check.detail.partition(":")[0]) == (
        True,
        "no private pack (NETARENA_PHRASING_PACK); held-out texts use the built-in productions",
    )
    monkeypatch.setenv(PACK_VARIABLE, str(write_pack(tmp_path, {"else_word": ["or else"]})))
    (check,) = diagnose()
    assert (check.ok, check.detail.partition(",")[0]) == (True, "1 productions")
    write_pack(tmp_path, {"else_word": ["or {else}"]})
    (check,) = diagnose()
    assert not check.ok
    assert check.detail.startswith(f"{PACK_VARIABLE}: pack.json:5: else_word/p1: {{else}} is nei")
    assert PACK_VARIABLE in check.remedy


def test_example_pack_is_valid() -> None:
    grammar = with_pack(DOCS / "phrasing-pack.example.json")
    assert sum(len(symbol.pack) for symbol in grammar.symbols.values()) >= 5


@given(st.text("{}[] whatplacebound.", max_size=40))
def test_any_pack_is_accepted_or_refused_with_a_reason(text: str) -> None:
    from netarena_malt.grammar import _Reader

    reader = _Reader({name: symbol.operands for name, symbol in shipped().symbols.items()})
    with suppress(ValueError):
        production = reader.read("count", text, "count/p1")
        assert "{what}" in production.text


def test_optional_part_of_a_production_appears_only_with_its_operand() -> None:
    bounded, plain = (
        {_count(seed, bound) for seed in range(300)} for bound in ("with a bound", None)
    )
    assert all(text.count("with a bound") == 1 for text in bounded)
    assert not [text for text in plain if "bound" in text or "only" in text or "  " in text]
    assert all(("A_PLACE" in text) != ("A_FRONT" in text) for text in bounded | plain)


def test_sentences_start_with_capitals() -> None:
    text = "first: 'a.b' goes. 2 ports? they stay.\n  {x}\n  this too"
    assert start_sentences(text) == "First: 'a.b' goes. 2 ports? They stay.\n  {x}\n  This too"


def _count(seed: int, bound: str | None) -> str:
    operands = {"what": "ports", "place": "A_PLACE", "front": "A_FRONT", "bound": bound}
    operands |= {"having": bound, "same_what": "ports", "of": None}
    return shipped().expand("count", operands, random.Random(seed))


def _expand(grammar: Grammar, symbol: str, seed: int, *, held_out: bool = False) -> str:
    return grammar.expand(symbol, {}, random.Random(seed), held_out=held_out)
