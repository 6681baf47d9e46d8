"""Options that ``serve`` refuses before it starts, and options that it passes on."""

from __future__ import annotations

import threading
from threading import Event

import pytest
from netarena_toy import Toy
from peer import Answering

import netarena.a2a.server
from netarena.a2a.server import serve, serve_agent
from netarena.errors import ConfigError
from netarena.model import Check, Severity


class Unprotected(Toy):
    def diagnose(self):
        return [Check(name="cage", ok=False, severity=Severity.SANDBOX, detail="none", remedy="x")]


@pytest.fixture
def served(monkeypatch):
    calls = []
    monkeypatch.setattr(
        netarena.a2a.server, "run_app", lambda app, listener: (calls.append(app), listener.close())
    )
    return calls


def test_service_without_a_sandbox_is_refused_with_the_reason(served, tmp_path):
    with pytest.raises(ConfigError, match=r"sandbox: cage: none; x, or start the service"):
        serve(Unprotected(), port=0, out=tmp_path)
    assert not served


def test_leaderboard_service_derives_seeds_from_its_secrets(served, tmp_path, monkeypatch):
    told = {}
    monkeypatch.setattr(
        netarena.a2a.server, "create_app", lambda application, **options: told.update(options)
    )
    secrets = '{"netarena_seed": "s3cret"}'
    serve(Toy(), port=0, out=tmp_path, environ={"GREEN_SECRETS_JSON": secrets})
    assert told["seed_secret"] == "s3cret"


def test_unsandboxed_application_is_served_without_a_sandbox(served, tmp_path):
    serve(Unprotected(unsandboxed=True), port=0, out=tmp_path)
    assert len(served) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_service_reports_the_address_on_which_it_listens(served, tmp_path, host):
    told = []
    serve(Toy(), host=host, port=0, out=tmp_path, ready=told.append)
    assert told[0].startswith(f"http://{host}:")


def test_remote_checks_run_after_the_service_listens(monkeypatch, tmp_path, caplog):
    listens, looked = Event(), Event()

    class Far(Toy):
        def diagnose_elsewhere(self):
            # the cluster does not answer; serving must start without waiting for it
            assert listens.wait(20)
            looked.set()
            return [Check(name="far", ok=False, severity=Severity.RUN, detail="d", remedy="r")]

    def run_app(app, listener):
        listens.set()
        assert looked.wait(20)
        listener.close()

    monkeypatch.setattr(netarena.a2a.server, "run_app", run_app)
    told = []
    serve(Far(), port=0, out=tmp_path, ready=told.append)
    assert len(told) == 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name == "elsewhere":
            thread.join(20)
    assert "far: d. r" in caplog.messages


@pytest.mark.parametrize("url", ["not a url", "ftp://x/", "http://", "http://a:99999/", ""])
def test_invalid_card_url_is_refused(served, tmp_path, url):
    with pytest.raises(ConfigError, match=r"^card_url: must "):
        serve(Toy(), port=0, out=tmp_path, card_url=url)
    with pytest.raises(ConfigError, match=r"^card_url: must "):
        serve_agent(Answering(str), port=0, card_url=url, name="n", description="d")
    assert not served


def test_application_is_served_if_the_machine_supports_the_sandbox(served, tmp_path):
    serve(Toy(), port=0, out=tmp_path)
    assert len(served) == 1
