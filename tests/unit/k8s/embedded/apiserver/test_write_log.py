"""The write log of a command: which requests it records, and its limits."""

import asyncio
import json
from datetime import UTC, datetime

import httpx
import pytest

from netarena_k8s.embedded.apiserver import write_log
from netarena_k8s.embedded.apiserver.call import User
from netarena_k8s.embedded.apiserver.default_objects import objects
from netarena_k8s.embedded.apiserver.patch import MERGE
from netarena_k8s.embedded.apiserver.server import Server
from netarena_k8s.embedded.apiserver.store import Store
from netarena_k8s.world.boutique import boutique

PATH = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies"
WORLD = boutique()


class Api:
    """A client of one server that acts as the operator or as the administrator."""

    def __init__(self):
        store = Store()
        addresses = {app.name: f"10.244.0.{n}" for n, app in enumerate(WORLD.apps, start=2)}
        store.fill(objects(WORLD, "shop", addresses, datetime(2026, 1, 1, tzinfo=UTC)))
        users = {
            "operator": User("system:serviceaccount:shop:operator", ("system:authenticated",)),
            "admin": User("admin", ("system:masters",), admin=True),
        }
        self.server = Server(store, users, "shop")

    def ask(self, method, name, body=None, *, user="operator", media=MERGE, **query):
        async def ask():
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(self.server), base_url="http://api", timeout=60
            ) as client:
                headers = {"Authorization": f"Bearer {user}", "Content-Type": media}
                content = None if body is None else json.dumps(body)
                return await client.request(
                    method, f"{PATH}{name and '/'}{name}", content=content, headers=headers,
                    params=query,
                )  # fmt: skip

        return asyncio.run(ask())

    @property
    def written(self):
        return [(one["what"], one["spec"] is None) for one in self.server.ledger.writes]


@pytest.fixture
def api():
    return Api()


def ingress(port):
    return {"spec": {"ingress": [{"ports": [{"port": port}]}]}}


def test_each_spec_change_is_logged_with_its_verb(api):
    assert api.ask("PATCH", "adservice", ingress(1)).status_code == 200
    there = api.ask("GET", "adservice").json()
    there["spec"]["ingress"] = []
    assert api.ask("PUT", "adservice", there, media="application/json").status_code == 200
    assert api.ask("DELETE", "", user="admin", labelSelector="none").status_code == 200
    assert api.ask("DELETE", "deny-all", user="admin").status_code == 200
    made = {"metadata": {"name": "new"}, "spec": {"podSelector": {}}}
    assert api.ask("POST", "", made, user="admin", media="application/json").status_code == 201
    assert api.written == [
        ("patch networkpolicy adservice", False),
        ("replace networkpolicy adservice", False),
        ("delete networkpolicy deny-all", True),
        ("create networkpolicy new", False),
    ]
    last = api.server.ledger.writes[1]
    assert (last["name"], last["spec"].get("ingress")) == ("adservice", None)
    api.server.ledger.clear()
    assert api.written == []
    api.ask("DELETE", "", user="admin")
    left = {policy.name for policy in WORLD.policies} - {"deny-all"} | {"new"}
    assert {what for what, _ in api.written} == {f"delete networkpolicy {name}" for name in left}


def test_dry_runs_refused_writes_and_label_changes_are_not_logged(api):
    assert api.ask("PATCH", "adservice", ingress(1), dryRun="All").status_code == 200
    assert api.ask("DELETE", "adservice", user="admin", dryRun="All").status_code == 200
    assert api.ask("DELETE", "adservice").status_code == 403
    assert api.ask("PATCH", "adservice", ingress(0)).status_code == 422
    assert api.ask("PATCH", "nosuch", ingress(1)).status_code == 404
    assert api.ask("PATCH", "adservice", {"metadata": {"labels": {"a": "b"}}}).status_code == 200
    assert api.written == []


def test_command_above_its_write_limits_is_refused(api, monkeypatch):
    monkeypatch.setattr(write_log, "CHANGES", 2)
    told = [api.ask("PATCH", "adservice", ingress(port)) for port in (1, 2, 3)]
    assert [one.status_code for one in told] == [200, 200, 403]
    assert "a command may change policies at most 2 times" in told[-1].json()["message"]
    assert len(api.written) == 2
    monkeypatch.setattr(write_log, "CHANGES", 100)
    monkeypatch.setattr(write_log, "CHARS", 10)
    assert api.ask("PATCH", "frontend", ingress(3)).status_code == 403
    api.server.ledger.clear()
    assert api.ask("PATCH", "frontend", ingress(3)).status_code == 200


def test_closed_server_responds_with_unauthorized(api):
    """This includes requests that began before the server was closed."""
    api.server.closed = True
    for method, body in (("GET", None), ("PATCH", ingress(1))):
        assert api.ask(method, "adservice", body).status_code == 401

    async def late():
        """Close the server while the request body is being sent."""
        api.server.closed = False

        async def body():
            yield json.dumps(ingress(1)).encode()
            api.server.closed = True

        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(api.server), base_url="http://api"
        ) as client:
            headers = {"Authorization": "Bearer operator", "Content-Type": MERGE}
            return await client.patch(f"{PATH}/adservice", content=body(), headers=headers)

    assert asyncio.run(late()).status_code == 401
    assert api.written == []
