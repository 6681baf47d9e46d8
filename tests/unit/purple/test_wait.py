from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from a2a_purple.wait import asked_wait_s
from tests.growth import is_linear

GEMINI = (
    "You exceeded your current quota, please check your plan and billing details. * Quota exceeded "
    "for metric: generate_content_free_tier_requests, limit: 20, model: gemini-3.8-flash\n"
)


@pytest.mark.parametrize(
    ("words", "wait_s"),
    [
        (f"{GEMINI}Please retry in 38.601658672s.", 38.601658672),
        ('{"@type": "google.rpc.RetryInfo", "retryDelay": "26s"}', 26),
        ("Rate limit reached for m on tokens per min. Please try again in 6.2s. Visit …", 6.2),
        ("Please try again in 7m12s. Need more tokens? Add a card in billing", 432),
        ("Please try again in 1m2.5s.", 62.5),
        ("try again in 120ms", 0.12),
        ("Please retry after 60 seconds.", 60),
        ("Please wait 17 seconds before the next request", 17),
        ("Your quota will reset after 12h34m16s.", 45_256),
        ("Rate limit resets in 1 minute 30 seconds", 90),
        ("Try again in 1 hour", 3600),
        ('{"error": "Model m is currently loading", "estimated_time": 20.0}', 20),
        ("{'retry_after': 3}", 3),
        ("retry_after_ms=250", 0.25),
        ("retry-after: 5", 5),
        ("You exceeded your current quota, please check your plan and billing details", None),
        ("slow down", None),
        ("Please try again later, gpt-4 is busy: 429", None),
        ("Request 17 s99 failed", None),
        ("", None),
    ],
)
def test_waiting_time_is_parsed_from_the_text_of_an_error(words, wait_s):
    assert asked_wait_s({}, words) == (None if wait_s is None else pytest.approx(wait_s))


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "9", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00"}, 0),
        ({"retry-after": "soon"}, 3),
        ({"retry-after": "nan"}, 3),
        ({}, 3),
    ],
)
def test_waiting_time_in_a_header_overrides_that_in_the_text(headers, wait_s):
    assert asked_wait_s(headers, "try again in 3s") == wait_s


def test_wait_ends_at_the_date_in_the_header():
    then = format_datetime(datetime.now(UTC) + timedelta(minutes=1), usegmt=True)
    assert 50 < (asked_wait_s({"retry-after": then}, "") or 0) <= 60


@pytest.mark.parametrize("words", ["retry" * 100_000, "wait 1" * 100_000, "again " + "1" * 500_000])
def test_error_text_of_any_length_is_parsed_in_linear_time(words):
    assert is_linear(lambda size: asked_wait_s({}, words[:size]), len(words))
