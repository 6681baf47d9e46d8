"""Deployments on a real cluster: slots, failures, and names."""

import asyncio
import itertools
import time
import types
from typing import Any, cast

import pytest
from k8s_real import PAIR, Placed, Slow, at_once, standing
from peer import until

from netarena.errors import EnvironmentFailed
from netarena_k8s.real import client, cluster
from netarena_k8s.real.client import Api, Refused, Server, path_of
from netarena_k8s.real.manifest import (
    policy_manifests,
)
from netarena_k8s.real.measure import Finding, Round
from netarena_k8s.world.model import (
    App,
    World,
)


def test_background_work_continues_after_any_error(monkeypatch, caplog):
    monkeypatch.setattr(cluster, "RENEW_S", 0)
    turns = []

    async def work():
        turns.append(1)
        if len(turns) == 1:
            raise ValueError("unforeseen")
        if len(turns) == 2:
            raise EnvironmentFailed("the API server is away")

    async def scene():
        one = cluster.RealCluster("context")
        one._background.start(one._again(work))
        await until(lambda: len(turns) > 3)
        await one.stop()

    asyncio.run(scene())
    assert [record.message for record in caplog.records] == ["maintaining the namespaces failed"]


@pytest.mark.parametrize("failure", [EnvironmentFailed("away"), RuntimeError("unforeseen")])
def test_deployment_that_cannot_be_renewed_frees_its_slot(monkeypatch, failure):
    class Failing(Placed):
        async def renew(self):
            if self.namespace in seen:
                raise failure
            seen.add(self.namespace)

    seen = set()
    monkeypatch.setattr(cluster, "Shop", Failing)
    monkeypatch.setattr(cluster, "MOST_SHOPS", 1)
    (world,) = worlds("a")

    async def scene():
        one = cluster.RealCluster("context")
        one._api = cast("Any", Spaces())
        for _ in range(3):
            await one._release(await one._pool.take(world))
            await one.rest()
        assert one._pool._room() == 1
        await one.stop()

    asyncio.run(scene())
    assert len(seen) == 3


def worlds(*apps):
    return [World(apps=(App(name=name, labels={"app": name}),), policies=()) for name in apps]


class Spaces(Slow):
    """An API of several namespaces, whose contents do not matter."""

    async def find(self, kind, namespace="", **query):
        await asyncio.sleep(0)
        return []

    async def apply(self, manifest):
        await asyncio.sleep(0)

    async def delete(self, path, uid=""):
        await asyncio.sleep(0)


def test_namespace_that_could_not_be_removed_is_removed_later(monkeypatch):
    monkeypatch.setattr(cluster, "Shop", Placed)
    monkeypatch.setattr(cluster, "RENEW_S", 0)
    deleted = []

    class Away(Spaces):
        async def delete(self, path, uid=""):
            deleted.append(path)
            if len(deleted) < 3:
                raise EnvironmentFailed("the API server is away")

        async def merge(self, path, patch):
            pass

    async def scene():
        one = cluster.RealCluster("context")
        one._api = cast("Any", Away())
        taken = await one._pool.take(worlds("a")[0])
        await one._discard(taken)
        assert list(one._shops.values()) == [taken]
        one._background.start(one._again(one._tidy))
        await until(lambda: not one._shops)
        await one.stop()

    asyncio.run(scene())
    assert len(deleted) == 3


def test_concurrent_callers_of_start_receive_the_same_failure(monkeypatch):
    async def scene():
        starts = []

        async def connect(_context):
            return Slow()

        async def fails():
            starts.append(len(starts))
            await asyncio.sleep(0)
            raise EnvironmentFailed("nobody answers")

        monkeypatch.setattr(Api, "connect", connect)
        one = cluster.RealCluster("context")
        monkeypatch.setattr(one, "_settle_in", fails)
        for starts_so_far in (1, 2):  # a later caller makes a new attempt
            found = await asyncio.gather(*(one.start() for _ in range(3)), return_exceptions=True)
            assert [str(error) for error in found] == ["nobody answers"] * 3
            assert len(starts) == starts_so_far

    asyncio.run(scene())


def test_requests_to_the_cluster_have_a_short_timeout_while_the_service_ends(monkeypatch):
    monkeypatch.setattr(client, "_PAUSE_S", 0.001)
    monkeypatch.setattr(client, "_PATIENCE_S", 3600.0)
    monkeypatch.setattr(client, "_PARTING_S", 0.05)

    async def gone(*_):
        raise OSError("no route")

    async def scene():
        api = Api(Server("https://192.0.2.1"), None, cast("Any", None))
        monkeypatch.setattr(api, "_ask", gone)
        api.part()
        async with asyncio.timeout(30):
            with pytest.raises(EnvironmentFailed, match="no route"):
                await api.get("/version")

    asyncio.run(scene())


def test_idle_time_of_a_cluster_starts_when_its_last_request_ends(monkeypatch):
    ticks = itertools.count()
    clock = types.SimpleNamespace(monotonic=lambda: float(next(ticks)), time=time.time)
    monkeypatch.setattr(client, "time", clock)

    async def scene():
        api = Api(Server("https://192.0.2.1"), None, cast("Any", None))
        with api.busy():
            with api.busy():
                assert api.idle_s == 0
            assert api.idle_s == 0
        assert 0 < api.idle_s < api.idle_s
        asked = asyncio.Event()

        async def never(*_):
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(api, "_ask", never)
        asking = asyncio.create_task(api.get("/version"))
        await asked.wait()
        assert api.idle_s == 0
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert api.idle_s > 0

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("status", "methods"), [(0, ["PUT"]), (404, ["PUT", "PATCH"]), (409, ["PUT"])]
)
def test_replace_creates_an_object_if_it_does_not_exist(status, methods, monkeypatch):
    api = Api(Server("https://192.0.2.1"), None, cast("Any", None))
    (manifest,) = policy_manifests(PAIR, "shop")
    asked = []

    async def answers(method, path, query, body, _content_type):
        assert (path, body) == (path_of("NetworkPolicy", "shop", "web"), manifest)
        asked.append((method, query))
        if method == "PUT" and status:
            raise Refused(status, "no")
        return body

    monkeypatch.setattr(api, "_ask", answers)
    if status in {0, 404}:
        assert asyncio.run(api.replace(manifest)) == manifest
    else:
        with pytest.raises(Refused, match="no"):
            asyncio.run(api.replace(manifest))
    assert [method for method, _ in asked] == methods
    assert asked[0] == ("PUT", {"fieldManager": client.MANAGER})


class Naming:
    """A meter that returns one of the given lookup results per round, and repeats the last one."""

    def __init__(self, *lookups):
        self._lookups = lookups
        self.rounds = 0

    async def measure(self, _net, _wait, _pairs):
        self.rounds += 1
        dns = self._lookups[min(self.rounds, len(self._lookups)) - 1]
        return Round((Finding(dns, "open"),), 1)


def test_deployment_is_ready_when_every_name_resolves_to_its_service():
    meter = Naming("wrong", "silent", "wrong", "ok")
    at_once(standing(meter, PAIR)._wait_for_names())
    assert meter.rounds == 4


@pytest.mark.parametrize("lookup", ["wrong", "silent"])
def test_name_that_never_resolves_to_its_service_is_reported(lookup):
    told = f"the name web does not resolve to its service: the result of the lookup is {lookup}"
    with pytest.raises(EnvironmentFailed, match=told):
        at_once(standing(Naming(lookup), PAIR)._wait_for_names())
