from __future__ import annotations

import json

import pytest

from netarena.a2a.credential import Credential, load_credentials, read_seed_secret, variable
from netarena.errors import ConfigError

SECRET = "k-123"


def credential(url: str) -> Credential:
    return Credential(url, {"x-api-key": SECRET})


@pytest.mark.parametrize(
    ("prefix", "url"),
    [
        ("https://host", "https://host/"),
        ("https://host/", "https://host:443/any/path?q=1"),
        ("https://HOST/a", "https://host/a"),
        ("https://host/a/", "https://host/a/.well-known/agent-card.json"),
        ("http://host:80/a", "http://host/a/"),
    ],
)
def test_headers_are_sent_to_the_origin_and_below_the_prefix(prefix, url):
    assert credential(prefix).covers(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://host/a", "https://other/a", "https://host:444/a", "https://host.evil/a",
        "https://host/", "https://host/ab", "https://host/b/a", "https://host//a",
        "https://host/a/../b", "https://host/a/%2e%2e/b", "https://host/a/%252e%252e/b",
        "https://host/a%2f..%2fb", "https://host/a/..%5cb", "https://host/a/..;/b",
        "https://sub.host/a",
    ],
)  # fmt: skip
def test_headers_are_not_sent_to_other_urls(url):
    assert not credential("https://host/a").covers(url)


def test_headers_are_read_from_the_environment_by_role():
    text = json.dumps({"url": "https://host/a", "headers": {"x-api-key": SECRET}})
    loaded = load_credentials(
        {variable("malt_operator"): text, "PATH": "/bin", "NETARENA_SEED": "s"}
    )
    assert variable("malt_operator") == "NETARENA_HEADERS_MALT_OPERATOR"
    assert variable("my-role.2") == "NETARENA_HEADERS_MY_ROLE_2"
    assert loaded == {"NETARENA_HEADERS_MALT_OPERATOR": credential("https://host/a")}


def test_header_values_are_not_in_the_representation():
    assert SECRET not in repr(credential("https://host"))


@pytest.mark.parametrize(
    "text",
    [
        SECRET, "[]", "{}", f'{{"url": "{SECRET}", "headers": {{"a": "b"}}}}',
        f'{{"url": "http://h", "headers": {{"a": 1, "b": "{SECRET}"}}}}',
        f'{{"url": "http://h", "headers": {{"a b": "{SECRET}"}}}}',
        f'{{"url": "http://h", "headers": {{"a": "{SECRET}\\r\\nx: y"}}}}',
        f'{{"url": "http://h", "headers": {{}}, "more": "{SECRET}"}}',
        f'{{"url": "http://h", "headers": {{}}, "headers2": "{SECRET}"}}',
    ],
)  # fmt: skip
def test_message_about_an_invalid_credential_does_not_contain_it(text):
    with pytest.raises(ConfigError) as caught:
        load_credentials({"NETARENA_HEADERS_X": text})
    assert "NETARENA_HEADERS_X" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "secret"),
    [
        ({}, None),
        ({"GREEN_SECRETS_JSON": " "}, None),
        ({"GREEN_SECRETS_JSON": '{"other": "x"}'}, None),
        ({"GREEN_SECRETS_JSON": '{"netarena_seed": "s3cret"}'}, "s3cret"),
        ({"GREEN_SECRETS_JSON": '{"holdout_key": "h", "netarena_seed": "s"}'}, "s"),
        ({"GREEN_SECRETS_JSON": '{"holdout_key": "h"}'}, "h"),
        ({"GREEN_SECRETS_JSON": '{"netarena_seed": "s"}', "NETARENA_SEED": "own"}, "own"),
    ],
)
def test_secrets_of_a_leaderboard_contain_the_seed_secret(environ, secret):
    assert read_seed_secret(environ) == secret


def test_warning_is_logged_for_secrets_without_a_seed_secret(caplog):
    assert read_seed_secret({"GREEN_SECRETS_JSON": '{"netarena_sed": "s3cret"}'}) is None
    assert "GREEN_SECRETS_JSON has no key netarena_seed or holdout_key" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    "text", ["[", "[]", '"s3cret"', '{"netarena_seed": 7}', '{"netarena_seed": " "}']
)
def test_unreadable_secrets_are_refused_without_their_values(text):
    with pytest.raises(ConfigError, match="GREEN_SECRETS_JSON") as caught:
        read_seed_secret({"GREEN_SECRETS_JSON": text})
    assert "s3cret" not in str(caught.value)
