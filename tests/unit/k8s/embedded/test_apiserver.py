import asyncio
import contextlib
import json
from datetime import UTC, datetime

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena_k8s.embedded.apiserver import discovery
from netarena_k8s.embedded.apiserver.call import BODY_BYTES, User
from netarena_k8s.embedded.apiserver.default_objects import applied, objects
from netarena_k8s.embedded.apiserver.kind import NETWORK_POLICIES, by_kind, by_path, resources
from netarena_k8s.embedded.apiserver.protobuf import Field, Repeated, Text, read
from netarena_k8s.embedded.apiserver.selector import field_test, label_test
from netarena_k8s.embedded.apiserver.server import Server
from netarena_k8s.embedded.apiserver.shape import order_metadata
from netarena_k8s.embedded.apiserver.status import Refused
from netarena_k8s.embedded.apiserver.store import Store
from netarena_k8s.embedded.apiserver.table import show_age, show_selector
from netarena_k8s.source.varied import varied
from netarena_k8s.world.boutique import boutique
from tests.thorough import THOROUGH

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies"
OPERATOR = User("system:serviceaccount:shop:operator", ("system:authenticated",))
ADMIN = User("admin", ("system:masters",), admin=True)


def deployed(world=None):
    world = world or boutique()
    addresses = {app.name: f"10.244.0.{n}" for n, app in enumerate(world.apps, start=2)}
    store = Store()
    store.fill(objects(world, "shop", addresses, datetime.now(UTC)))
    return store


@pytest.fixture(scope="module", autouse=True)
def runner():
    with asyncio.Runner() as one:
        Client.runner = one
        yield


class Client:
    """A client of a server in this process; all clients share one event loop."""

    runner = None

    def __init__(self, server):
        self._transport = httpx.ASGITransport(server)

    def request(self, method, path, **arguments):
        async def ask():
            async with httpx.AsyncClient(
                transport=self._transport, base_url="http://api", timeout=60
            ) as client:
                return await client.request(method, path, **arguments)

        return self.runner.run(ask())


class Api:
    """A client of one server as one user."""

    def __init__(self, token="operator", store=None, clock=None):
        self.store = store or deployed()
        users = {"operator": OPERATOR, "admin": ADMIN}
        extra = {"monotonic": clock} if clock else {}
        self.server = Server(self.store, users, "shop", **extra)
        self.client = Client(self.server)
        self.headers = {"Authorization": f"Bearer {token}"}

    def get(self, path, **params):
        accept = params.pop("accept", "application/json")
        return self.client.request(
            "GET", path, params=params, headers={**self.headers, "Accept": accept}
        )

    def post(self, path, body, content_type="application/json"):
        headers = {**self.headers, "Content-Type": content_type}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.request("POST", path, content=data, headers=headers)

    def watch(self, path, **params):
        """Return all lines of a watch that ends after a second."""
        text = self.get(path, watch="true", timeoutSeconds="1", **params).text
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def admin(api):
    return Api("admin", api.store)


def names(response):
    return [one["metadata"]["name"] for one in response.json()["items"]]


def test_every_resource_has_a_path_and_discovery_lists_all_groups():
    assert len(resources()) == len(by_path()) == 66
    assert by_kind()["Event"].group == ""  # the older group takes precedence
    core, others = discovery.aggregated(core=True), discovery.aggregated(core=False)
    listed = {
        (group["metadata"].get("name", ""), version["version"], one["resource"])
        for document in (core, others)
        for group in document["items"]
        for version in group["versions"]
        for one in version["resources"]
    }
    assert listed == set(by_path())
    assert [one["version"] for one in others["items"][5]["versions"]] == ["v2", "v1"]


def test_discovery_is_available_in_the_aggregated_and_the_older_form(api):
    answer = api.get("/apis", accept=f"{discovery.AGGREGATED},application/json")
    assert answer.headers["content-type"] == discovery.AGGREGATED
    assert answer.json()["kind"] == "APIGroupDiscoveryList"
    assert api.get("/api").json()["versions"] == ["v1"]
    assert api.get("/apis").json()["groups"][0]["name"] == "apiregistration.k8s.io"
    listed = api.get("/apis/networking.k8s.io/v1").json()["resources"]
    assert next(one for one in listed if one["name"] == "networkpolicies")["shortNames"] == [
        "netpol"
    ]
    assert api.get("/apis/apps").json()["preferredVersion"]["version"] == "v1"
    assert {one["name"] for one in api.get("/api/v1").json()["resources"]} >= {"pods", "pods/exec"}


def test_schemas_cover_every_group_and_allow_dry_runs_of_patches(api):
    index = api.get("/openapi/v3").json()["paths"]
    assert set(index) == {one.root.lstrip("/") for one in resources()}
    for entry in index.values():
        path = entry["serverRelativeURL"].split("?")[0]
        document = api.get(path).json()
        known = document["components"]["schemas"]
        text = json.dumps(document)
        for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
            assert name in known
    policy = api.get("/openapi/v3/apis/networking.k8s.io/v1").json()
    patch = policy["paths"][f"{POLICIES.replace('shop', '{namespace}')}/{{name}}"]["patch"]
    assert {"dryRun", "fieldValidation"} <= {one["name"] for one in patch["parameters"]}


def test_schemas_give_type_names_enum_values_and_required_fields(api):
    document = api.get("/openapi/v3/apis/networking.k8s.io/v1").json()
    known = {
        name.rpartition(".")[2]: one for name, one in document["components"]["schemas"].items()
    }
    port = known["NetworkPolicyPort"]["properties"]
    assert port["port"]["allOf"] == [
        {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.util.intstr.IntOrString"}
    ]
    # with a type, kubectl explain would show the type and not the name
    assert "type" not in known["IntOrString"]
    assert port["protocol"]["enum"] == ["SCTP", "TCP", "UDP"]
    assert port["protocol"]["description"].endswith(
        'Possible enum values:\n - `"SCTP"`\n - `"TCP"`\n - `"UDP"`'
    )
    types = known["NetworkPolicySpec"]["properties"]["policyTypes"]
    assert (types["items"]["enum"], "enum" in types) == (["Egress", "Ingress"], False)
    assert known["OwnerReference"]["required"] == ["apiVersion", "kind", "name", "uid"]
    assert known["IPBlock"]["required"] == ["cidr"]
    metadata = known["ObjectMeta"]["properties"]
    assert metadata["ownerReferences"]["x-kubernetes-list-map-keys"] == ["uid"]
    words = [
        "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation",
        "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "labels",
        "annotations", "ownerReferences", "finalizers", "managedFields",
    ]  # fmt: skip
    # fields are written in the same order as the schema lists them
    assert list(metadata) == list(order_metadata(dict.fromkeys(sorted(words)))) == words
    for root in {one.root for one in resources()}:
        one = api.get(f"/openapi/v3{root}").json()["components"]["schemas"]
        assert one["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"] == metadata


def test_health_and_version_need_a_known_user(api):
    assert api.get("/healthz").text == "ok"
    assert api.get("/version").json()["gitVersion"] == "v1.34.2"
    assert Api("guess", api.store).get("/version").status_code == 401
    assert api.client.request("GET", "/version").status_code == 401
    refused = api.get("/metrics")
    assert refused.status_code == 403
    assert "cannot get path" in refused.json()["message"]
    assert Api("admin", api.store).get("/metrics").status_code == 404
    assert api.post("/version", {}).status_code == 403
    assert Api("admin", api.store).post("/version", {}).status_code == 405


def test_new_namespace_contains_all_objects_of_the_application(admin):
    counts = {
        resource.plural: len(admin.store.find(resource, "shop"))
        for resource in resources()
        if admin.store.find(resource, "shop")
    }
    assert counts == {
        "configmaps": 1, "endpoints": 12, "events": 72, "pods": 12, "serviceaccounts": 2,
        "services": 12, "deployments": 12, "replicasets": 12, "networkpolicies": 13,
        "rolebindings": 1, "roles": 1, "endpointslices": 12,
    }  # fmt: skip
    assert names(admin.get("/api/v1/nodes")) == ["netarena-control-plane"]
    assert "shop" in names(admin.get("/api/v1/namespaces"))
    pod = admin.get("/api/v1/namespaces/shop/pods").json()["items"][0]
    owner = pod["metadata"]["ownerReferences"][0]
    path = f"/apis/apps/v1/namespaces/shop/replicasets/{owner['name']}"
    assert admin.get(path).json()["metadata"]["uid"] == owner["uid"]


def test_objects_of_the_same_world_and_time_are_equal():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    import random

    world = varied(random.Random(3))
    addresses = {app.name: "10.244.0.9" for app in world.apps}
    assert list(objects(world, "shop", addresses, now)) == list(
        objects(world, "shop", addresses, now)
    )


def test_endpoints_of_the_email_service_have_the_pods_port(api):
    slices = api.get("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices")
    assert {
        one["ports"][0]["port"]
        for one in slices.json()["items"]
        if one["metadata"]["labels"]["kubernetes.io/service-name"] == "emailservice"
    } == {8080}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "/apis/networking.k8s.io/v1/networkpolicies",
            (
                'networkpolicies.networking.k8s.io is forbidden: User "system:serviceaccount:shop:'
                'operator" cannot list resource "networkpolicies" in API group "networking.k8s.io" '
                "at the cluster scope"
            ),
        ),
        (
            "/apis/networking.k8s.io/v1/namespaces/nosuchns/networkpolicies",
            (
                'networkpolicies.networking.k8s.io is forbidden: User "system:serviceaccount:shop:'
                'operator" cannot list resource "networkpolicies" in API group "networking.k8s.io" '
                'in the namespace "nosuchns"'
            ),
        ),
        (
            "/api/v1/namespaces/shop/secrets",
            (
                'secrets is forbidden: User "system:serviceaccount:shop:operator" cannot list '
                'resource "secrets" in API group "" in the namespace "shop"'
            ),
        ),
        (
            "/api/v1/namespaces/shop/pods/x/log",
            (
                'pods "x" is forbidden: User "system:serviceaccount:shop:operator" cannot get '
                'resource "pods/log" in API group "" in the namespace "shop"'
            ),
        ),
        (
            "/api/v1/namespaces/shop",
            (
                'namespaces "shop" is forbidden: User "system:serviceaccount:shop:operator" cannot '
                'get resource "namespaces" in API group "" in the namespace "shop"'
            ),
        ),
        (
            "/api/v1/nodes/n",
            (
                'nodes "n" is forbidden: User "system:serviceaccount:shop:operator" cannot get '
                'resource "nodes" in API group "" at the cluster scope'
            ),
        ),
        (
            "/api/v1/namespaces/shop/serviceaccounts/operator/token",
            (
                'serviceaccounts "operator" is forbidden: User "system:serviceaccount:shop:'
                'operator" cannot get resource "serviceaccounts/token" in API group "" in the '
                'namespace "shop"'
            ),
        ),
        (
            "/apis/no.such/v1/namespaces/shop/things",
            (
                'things.no.such is forbidden: User "system:serviceaccount:shop:operator" cannot '
                'list resource "things" in API group "no.such" in the namespace "shop"'
            ),
        ),
        (
            "/api/v1/namespaces/shop/pods/..%2F..%2Fsecrets/log",
            (
                'pods "../../secrets" is forbidden: User "system:serviceaccount:shop:operator" '
                'cannot get resource "pods/log" in API group "" in the namespace "shop"'
            ),
        ),
    ],
)
def test_forbidden_read_is_refused_with_the_api_servers_message(api, path, message):
    answer = api.get(path)
    assert answer.status_code == answer.json()["code"] == 403
    assert answer.json()["message"] == message


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (
            {"Impersonate-User": "system:admin", "Impersonate-Group": "system:masters"},
            (
                'users "system:admin" is forbidden: User "system:serviceaccount:shop:operator" '
                'cannot impersonate resource "users" in API group "" at the cluster scope'
            ),
        ),
        (
            {"Impersonate-User": "system:serviceaccount:shop:default", "Impersonate-Uid": "7"},
            (
                'serviceaccounts "default" is forbidden: User '
                '"system:serviceaccount:shop:operator" cannot impersonate resource '
                '"serviceaccounts" in API group "" in the namespace "shop"'
            ),
        ),
    ],
)
@pytest.mark.parametrize("path", [POLICIES, "/version", "/api/v1/namespaces/shop/secrets"])
def test_impersonation_of_another_user_is_refused(api, headers, message, path):
    answer = api.client.request("GET", path, headers={**api.headers, **headers})
    assert answer.status_code == answer.json()["code"] == 403
    assert answer.json()["message"] == message


def test_impersonation_of_groups_without_a_user_is_refused(api):
    headers = {**api.headers, "Impersonate-Group": "system:masters"}
    answer = api.client.request("GET", POLICIES, headers=headers)
    assert answer.status_code == 500
    assert "without impersonating a user" in answer.json()["message"]


@pytest.mark.parametrize(
    ("method", "verb"),
    [("POST", "create"), ("DELETE", "deletecollection")],
)
def test_operator_can_neither_create_nor_delete_policies(api, method, verb):
    before = list(api.store.find(NETWORK_POLICIES))
    answer = api.client.request(method, POLICIES, headers=api.headers, json={})
    assert answer.status_code == 403
    assert f'cannot {verb} resource "networkpolicies"' in answer.json()["message"]
    assert api.store.find(NETWORK_POLICIES) == before
    answer = api.client.request("DELETE", f"{POLICIES}/frontend", headers=api.headers)
    assert answer.status_code == 403
    assert api.client.request("OPTIONS", POLICIES, headers=api.headers).status_code == 405


def test_missing_object_is_not_found(api, admin):
    answer = api.get(f"{POLICIES}/nosuch")
    assert answer.status_code == 404
    assert answer.json()["message"] == 'networkpolicies.networking.k8s.io "nosuch" not found'
    assert answer.json()["details"] == {
        "name": "nosuch", "group": "networking.k8s.io", "kind": "networkpolicies"
    }  # fmt: skip
    assert admin.get("/apis/no.such/v1/things").status_code == 404
    pod = names(admin.get("/api/v1/namespaces/shop/pods"))[0]
    assert admin.get(f"/api/v1/namespaces/shop/pods/{pod}/log").status_code == 404
    assert admin.get(f"/api/v1/namespaces/shop/pods/{pod}/status").status_code == 200


def test_list_omits_kinds_of_items_and_is_paginated(api):
    whole = api.get(POLICIES)
    assert whole.json()["kind"] == "NetworkPolicyList"
    assert "kind" not in whole.json()["items"][0]
    found, token = [], None
    while True:
        page = api.get(POLICIES, limit="5", **({"continue": token} if token else {}))
        found += names(page)
        token = page.json()["metadata"].get("continue")
        if not token:
            break
        assert page.json()["metadata"]["remainingItemCount"] == 13 - len(found)
    assert found == names(whole)
    part = api.get("/api/v1/namespaces/shop/pods", limit="1", labelSelector="app")
    assert "remainingItemCount" not in part.json()["metadata"]
    for token in ("x", "bm9uZQ==", "eyJhIjoxfQ=="):
        assert api.get(POLICIES, **{"continue": token}).status_code == 400
    assert api.get(POLICIES, limit="x").status_code == 400


def test_table_has_the_columns_that_kubectl_prints(api):
    table = api.get(POLICIES, accept=TABLE).json()
    assert [one["name"] for one in table["columnDefinitions"]] == ["Name", "Pod-Selector", "Age"]
    assert {tuple(row["cells"]) for row in table["rows"]} >= {
        ("frontend", "app=frontend", "12m"),
        ("deny-all", "<none>", "12m"),
    }
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    one = api.get(f"{POLICIES}/frontend", accept=TABLE, includeObject="Object").json()
    assert one["rows"][0]["object"]["kind"] == "NetworkPolicy"
    none = api.get(f"{POLICIES}/frontend", accept=TABLE, includeObject="None").json()
    assert none["rows"][0]["object"] is None


def test_every_resource_of_a_new_cluster_can_be_listed_as_a_table(admin):
    for resource in resources():
        if "list" in resource.verbs:
            answer = admin.get(f"{resource.root}/{resource.plural}", accept=TABLE)
            table = answer.json()
            width = len(table["columnDefinitions"])
            assert all(len(row["cells"]) == width for row in table["rows"])
    endpoints = admin.get("/api/v1/namespaces/shop/endpoints")
    assert "deprecated in v1.33+" in endpoints.headers["warning"]


def test_table_of_an_incomplete_object_has_placeholder_cells(admin):
    service = by_path()["", "v1", "services"]
    admin.store.add(
        service,
        {
            "kind": "Service",
            "apiVersion": "v1",
            "metadata": {"name": "odd", "namespace": "shop"},
            "spec": {
                "type": "LoadBalancer",
                "ports": [{"port": 80, "nodePort": 30080}],
            },
        },
    )
    table = admin.get("/api/v1/namespaces/shop/services/odd", accept=TABLE).json()
    assert table["rows"][0]["cells"] == [
        "odd", "LoadBalancer", "<none>", "<pending>", "80:30080/TCP", "<unknown>", "<none>"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (185, "3m5s"), (725, "12m"), (10800, "3h"),
     (11000, "3h3m"), (30000, "8h"), (172800, "2d"), (180000, "2d2h"), (900000, "10d")],
)  # fmt: skip
def test_age_is_formatted_like_in_kubectl(seconds, shown):
    assert show_age(seconds) == shown


def test_selector_is_formatted_in_one_line():
    selector = {
        "matchLabels": {"b": "2", "a": "1"},
        "matchExpressions": [
            {"key": "c", "operator": "In", "values": ["y", "x"]},
            {"key": "d", "operator": "NotIn", "values": ["z"]},
            {"key": "e", "operator": "Exists"},
            {"key": "f", "operator": "DoesNotExist"},
        ],
    }
    assert show_selector(selector) == "a=1,b=2,c in (x,y),d notin (z),e,!f"
    assert show_selector(None) == "<none>"


OBJECT = {"metadata": {"name": "n", "labels": {"app": "shop", "n": "5"}}}


@pytest.mark.parametrize(
    ("text", "holds"),
    [("", True), ("app=shop", True), ("app==shop", True), ("app!=shop", False), ("x!=y", True),
     ("app in (a, shop)", True), ("app notin (a,shop)", False), ("x notin (a)", True),
     ("app", True), ("!app", False), ("! x", True), ("n>4", True), ("n<5", False), ("app>1", False),
     ("app=shop,n=5", True), ("app=shop,n=6", False), ("app=", False), ("x in (a)", False)],
)  # fmt: skip
def test_label_selector_follows_the_grammar(text, holds):
    assert label_test(text)(OBJECT) is holds


@pytest.mark.parametrize("text", ["=x", "app in", "app in (", "a b", "!app=x", "n>x", ",", "a=(b)"])
def test_invalid_label_selector_is_refused(text, api):
    with pytest.raises(Refused, match="unable to parse requirement"):
        label_test(text)
    assert api.get(POLICIES, labelSelector=text).status_code == 400


@THOROUGH
@given(st.text(alphabet="ab=!<>(), in", max_size=30))
def test_arbitrary_text_is_a_selector_or_refused(text):
    for make in (label_test, lambda one: field_test(one, NETWORK_POLICIES)):
        with contextlib.suppress(Refused):
            make(text)(OBJECT)


@pytest.mark.parametrize("text", ["{}(", "!{}(", "a{}(", "a in{}", "a,{}", "{}!"])
def test_long_selector_is_parsed_in_linear_time(text):
    """Parsing the selector's blanks in quadratic time would take minutes."""
    with contextlib.suppress(Refused):
        label_test(text.format(" " * 400_000))
    with contextlib.suppress(Refused):
        label_test("a," * 15_000 + text.format(" " * 60_000))


def test_field_selectors_support_the_fields_of_each_resource(api):
    assert names(api.get(POLICIES, fieldSelector="metadata.name=frontend")) == ["frontend"]
    assert len(names(api.get(POLICIES, fieldSelector="metadata.name!=frontend"))) == 12
    pods = "/api/v1/namespaces/shop/pods"
    assert len(names(api.get(pods, fieldSelector="status.phase=Running"))) == 12
    assert names(api.get(pods, fieldSelector="status.phase==Failed,metadata.namespace=shop")) == []
    assert names(api.get(pods, fieldSelector="spec.hostNetwork=true")) == []
    unknown = api.get(POLICIES, fieldSelector="spec.foo=x")
    assert unknown.json()["message"].startswith('"spec.foo" is not a known field selector: only')
    assert "not supported: spec.foo" in api.get(pods, fieldSelector="spec.foo=x").text
    assert "invalid field selector" in api.get(pods, fieldSelector="spec").text


def test_watch_reports_existing_objects_and_changes(api, admin):
    first = api.watch(POLICIES)
    assert [one["type"] for one in first] == ["ADDED"] * 13
    version = str(api.store.version)
    policy = api.store.get(NETWORK_POLICIES, "shop", "frontend")
    api.store.put(NETWORK_POLICIES, {**policy, "spec": {"podSelector": {}}})
    api.store.remove(NETWORK_POLICIES, "shop", "deny-all")
    other = {**policy, "metadata": {**policy["metadata"], "namespace": "default"}}
    api.store.add(NETWORK_POLICIES, other)
    seen = api.watch(POLICIES, resourceVersion=version)
    assert [(one["type"], one["object"]["metadata"]["name"]) for one in seen] == [
        ("MODIFIED", "frontend"),
        ("DELETED", "deny-all"),
    ]
    one = api.watch(f"{POLICIES}/frontend", resourceVersion=version)
    assert [line["type"] for line in one] == ["MODIFIED"]
    table = api.watch(POLICIES, resourceVersion=version, accept=TABLE)
    assert table[0]["object"]["rows"][0]["cells"][0] == "frontend"


def test_watch_with_a_selector_reports_objects_that_start_or_cease_to_match(api):
    policy = api.store.get(NETWORK_POLICIES, "shop", "frontend")
    version = str(api.store.version)
    labelled = {**policy, "metadata": {**policy["metadata"], "labels": {"a": "b"}}}
    api.store.put(NETWORK_POLICIES, labelled)
    api.store.put(NETWORK_POLICIES, policy)
    seen = api.watch(POLICIES, resourceVersion=version, labelSelector="a=b")
    assert [one["type"] for one in seen] == ["ADDED", "DELETED"]


def test_watch_sends_a_bookmark_after_the_initial_events_on_request(api):
    params = {"sendInitialEvents": "true", "allowWatchBookmarks": "true"}
    for accept in ("application/json", TABLE):
        *added, mark = api.watch(POLICIES, accept=accept, **params)
        assert len(added) == 13
        assert mark["type"] == "BOOKMARK"
        assert "k8s.io/initial-events-end" in json.dumps(mark)


def test_watch_from_an_expired_version_is_refused(api):
    policy = api.store.get(NETWORK_POLICIES, "shop", "frontend")
    version = api.store.version
    for _ in range(300):
        api.store.put(NETWORK_POLICIES, policy)
    assert api.get(POLICIES, watch="1", resourceVersion=str(version)).status_code == 410
    assert api.get(POLICIES, watch="1", resourceVersion="x").status_code == 400


def review(kind, spec, group="authorization.k8s.io"):
    return {"kind": kind, "apiVersion": f"{group}/v1", "spec": spec}


ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.mark.parametrize(
    ("attributes", "allowed"),
    [
        ({"verb": "patch", "group": "networking.k8s.io", "resource": "networkpolicies"}, True),
        ({"verb": "delete", "group": "networking.k8s.io", "resource": "networkpolicies"}, False),
        ({"verb": "get", "resource": "pods"}, True),
        ({"verb": "get", "resource": "pods", "subresource": "log"}, False),
        ({"verb": "*", "group": "*", "resource": "*"}, False),
        ({"verb": "get", "resource": "pods", "namespace": "kube-system"}, False),
    ],
)
def test_access_review_answers_according_to_the_operators_permissions(api, attributes, allowed):
    spec = {"resourceAttributes": {"namespace": "shop", **attributes}}
    answer = api.post(ACCESS, review("SelfSubjectAccessReview", spec))
    assert answer.status_code == 201
    assert answer.json()["status"]["allowed"] is allowed


def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


def test_access_review_accepts_protobuf(api):
    attributes = field(1, b"shop") + field(2, b"get") + field(5, b"pods") + b"\x48\x01"
    message = field(2, field(1, attributes))
    envelope = b"k8s\x00" + field(1, field(1, b"v1") + field(2, b"X")) + field(2, message)
    media = "application/vnd.kubernetes.protobuf"
    assert api.post(ACCESS, envelope, media).json()["status"]["allowed"] is True
    for broken in (envelope[:-3], b"k8s\x00\xff", b"k8s\x00\x0b", b"\xff" * 20):
        assert api.post(ACCESS, broken, media).status_code == 400


def test_access_reviews_for_paths_rules_and_the_caller_are_answered(api, admin):
    spec = {"nonResourceAttributes": {"verb": "get", "path": "/version"}}
    assert api.post(ACCESS, review("SelfSubjectAccessReview", spec)).json()["status"]["allowed"]
    assert api.post(ACCESS, review("SelfSubjectAccessReview", {})).status_code == 400
    assert api.post(ACCESS, b"[]").status_code == 400
    assert api.post(ACCESS, b"[" * 100_000).status_code == 400
    rules = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    for client, count in ((api, 6), (admin, 1)):
        body = review("SelfSubjectRulesReview", {"namespace": "shop"})
        assert len(client.post(rules, body).json()["status"]["resourceRules"]) == count
    me = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    body = review("SelfSubjectReview", {}, "authentication.k8s.io")
    assert api.post(me, body).json()["status"]["userInfo"]["username"] == OPERATOR.name
    assert admin.post("/apis/authentication.k8s.io/v1/tokenreviews", {}).status_code == 400


@THOROUGH
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_protobuf_message_or_refused(data):
    fields = {1: Text("a"), 2: Repeated("b"), 3: Field("c", {1: Text("d")})}
    try:
        read(data, fields)
    except ValueError:
        return


def test_request_flood_is_answered_with_too_many_requests():
    api = Api(clock=lambda: 0.0)  # the clock stands still: only the burst allowance is available
    codes = [api.get("/healthz").status_code for _ in range(420)]
    assert codes[:400] == [200] * 400
    assert set(codes[400:]) == {429}


def test_request_without_free_memory_is_answered_with_retry_after(api):
    """Bodies, responses and watches count; their memory is released afterwards."""
    room, most = api.server._room, 8 << 20
    assert room.take(most)
    review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    for answer in (api.get(POLICIES), api.post(review, {"kind": "x"})):
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    assert api.watch(POLICIES) == []
    room.give(most)
    assert api.get(POLICIES).status_code == 200
    assert len(api.watch(POLICIES)) == 13
    assert room.take(most)
    room.give(most)


def test_watch_from_a_version_dropped_for_its_size_is_refused(api):
    policy = api.store.get(NETWORK_POLICIES, "shop", "frontend")
    large = {**policy, "metadata": {**policy["metadata"], "annotations": {"a": "x" * 900_000}}}
    version = api.store.version
    for _ in range(3):
        api.store.put(NETWORK_POLICIES, large)
    assert len(api.store.since(version + 1)) == 2
    with pytest.raises(Refused, match="too old"):
        api.store.since(version)


def test_store_above_its_size_limit_refuses_new_objects(admin):
    """Each object has 1 MB; a replaced object counts once, and a deleted one does not count."""
    annotations = {f"a{n}": "x" * 100_000 for n in range(10)}

    def make(name):
        body = {"metadata": {"name": name, "annotations": annotations}}
        return admin.post("/api/v1/namespaces/shop/configmaps", body)

    codes = [make(f"large-{n}").status_code for n in range(5)]
    assert codes == [201, 201, 201, 500, 500]
    assert "database space exceeded" in make("large-9").json()["message"]
    for _ in range(5):
        admin.store.put(by_kind()["ConfigMap"], admin.store.get(
            by_kind()["ConfigMap"], "shop", "large-0"))  # fmt: skip
    admin.store.remove(by_kind()["ConfigMap"], "shop", "large-0")
    assert make("large-9").status_code == 201


def test_body_above_the_size_limit_is_refused(api):
    path = f"{POLICIES}/frontend"
    headers = {**api.headers, "Content-Type": "application/merge-patch+json"}
    answer = api.client.request("PATCH", path, content=b" " * (BODY_BYTES + 1), headers=headers)
    assert answer.status_code == 413
    assert api.store.touched() == []


def test_store_lists_objects_changed_since_deployment():
    store = deployed()
    policy = store.get(NETWORK_POLICIES, "shop", "frontend")
    store.amend(NETWORK_POLICIES, {**policy, "spec": {"podSelector": {}}})
    assert store.touched() == []
    assert store.get(NETWORK_POLICIES, "shop", "frontend")["metadata"] == policy["metadata"]
    pods = by_path()["", "v1", "pods"]
    (key, pod), *_ = store.find(pods, "shop")
    store.put(pods, pod)
    store.remove(NETWORK_POLICIES, "shop", "deny-all")
    store.add(NETWORK_POLICIES, {**policy, "metadata": {"name": "new", "namespace": "shop"}})
    assert store.touched() == [
        ("changed", key),
        ("created", (NETWORK_POLICIES.full, "shop", "new")),
        ("deleted", (NETWORK_POLICIES.full, "shop", "deny-all")),
    ]
    with pytest.raises(Refused, match="already exists"):
        store.add(NETWORK_POLICIES, policy)
    for act in (
        lambda: store.remove(NETWORK_POLICIES, "shop", "gone"),
        lambda: store.amend(NETWORK_POLICIES, {"metadata": {"namespace": "shop", "name": "gone"}}),
        lambda: store.put(NETWORK_POLICIES, {**policy, "metadata": {"name": "gone"}}),
    ):
        with pytest.raises(Refused, match="not found"):
            act()


@pytest.mark.parametrize("left", [("podSelector",), ("podSelector", "ingress"), ()])
def test_injected_fault_leaves_no_trace_in_an_object(left):
    """This includes managedFields, which list the keys of applied objects."""
    world = boutique()
    chosen = world.policies[1]
    spec = {key: value for key, value in chosen.spec.items() if key in left} or {
        **chosen.spec, "egress": [{}],
    }  # fmt: skip
    store, faulty = deployed(world), chosen.model_copy(update={"spec": spec})
    there = store.get(NETWORK_POLICIES, "shop", chosen.name)
    store.amend(NETWORK_POLICIES, applied(there, spec))
    policies = [faulty if one is chosen else one for one in world.policies]
    born = deployed(world.model_copy(update={"policies": tuple(policies)}))
    seen = [one.get(NETWORK_POLICIES, "shop", chosen.name) for one in (store, born)]
    for one in seen:
        one["metadata"].pop("creationTimestamp")
        one["metadata"]["managedFields"][0].pop("time")
    assert seen[0] == seen[1]
    assert seen[0]["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].keys() == {
        f"f:{key}" for key in seen[0]["spec"]
    }


def test_store_above_its_object_limit_refuses_new_objects():
    store = Store()
    for number in range(5000):
        store.add(NETWORK_POLICIES, {"metadata": {"name": str(number)}})
    with pytest.raises(Refused, match="space exceeded"):
        store.add(NETWORK_POLICIES, {"metadata": {"name": "more"}})


def test_wait_ends_with_the_next_change_of_the_store():
    async def scene():
        store = deployed()
        version = store.version
        waiting = asyncio.create_task(store.wait(version, 60))
        await asyncio.sleep(0)
        store.remove(NETWORK_POLICIES, "shop", "deny-all")
        assert await waiting
        assert await store.wait(version, 60)
        assert not await store.wait(store.version, 0)

    asyncio.run(scene())


def test_internal_error_of_the_server_is_answered_with_status_500():
    moments = iter([0.0])
    answer = Api(clock=lambda: next(moments)).get("/healthz")
    assert answer.status_code == 500
    assert answer.json()["reason"] == "InternalError"
