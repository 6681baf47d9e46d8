"""Write requests to the object store: each kind of change, refusals, and hostile bodies."""

import asyncio
import json
from datetime import UTC, datetime

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena_k8s.embedded.apiserver.bound import POLICY_CHARS, POLICY_ENTRIES
from netarena_k8s.embedded.apiserver.call import Call, User
from netarena_k8s.embedded.apiserver.default_objects import objects
from netarena_k8s.embedded.apiserver.kind import NETWORK_POLICIES, by_path
from netarena_k8s.embedded.apiserver.ownership import leaves, read_owners, show_owners
from netarena_k8s.embedded.apiserver.patch import APPLY, JSON, MERGE, STRATEGIC
from netarena_k8s.embedded.apiserver.server import Server
from netarena_k8s.embedded.apiserver.status import Refused
from netarena_k8s.embedded.apiserver.store import Store
from netarena_k8s.embedded.apiserver.write import write
from netarena_k8s.world.boutique import boutique
from tests.thorough import THOROUGH

OPERATOR = User("system:serviceaccount:shop:operator")
ADMIN = User("admin", admin=True)
FRONTEND = {"from": [{"podSelector": {"matchLabels": {"app": "frontend"}}}]}
TCP = {"port": 9555, "protocol": "TCP"}
PODS = by_path()["", "v1", "pods"]
CONFIG_MAPS = by_path()["", "v1", "configmaps"]


@pytest.fixture
def store():
    world = boutique()
    addresses = {app.name: f"10.244.0.{n}" for n, app in enumerate(world.apps, start=2)}
    found = Store()
    found.fill(objects(world, "shop", addresses, datetime(2026, 1, 1, tzinfo=UTC)))
    return found


def do(store, verb, body=b"", media="application/json", name="adservice", **more):
    query = {key: value for key, value in more.items() if key[0] != "_"}
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    call = Call(
        verb, more.get("_of", NETWORK_POLICIES), more.get("_in", "shop"), name,
        more.get("_sub", ""), more.get("_user", OPERATOR), query, "", media, "curl/8", body,
    )  # fmt: skip
    return write(call, store)


def refused(store, *words, **more):
    version = store.version
    with pytest.raises(Refused) as caught:
        do(store, *words, **more)
    assert store.version == version
    return caught.value.code, caught.value.status["message"]


def policy(store, name="adservice"):
    return store.get(NETWORK_POLICIES, "shop", name)


def managers(one):
    return {
        (entry["manager"], entry["operation"]): entry["fieldsV1"]
        for entry in one["metadata"]["managedFields"]
    }


def spec_of(ingress, **more):
    return {"spec": {"ingress": ingress, **more}}


def test_merge_patch_sets_defaults_generation_and_field_managers(store):
    before = policy(store)
    new = do(store, "patch", spec_of([{"ports": [{"port": 1}], "from": []}]), MERGE).body
    assert new["spec"]["ingress"] == [{"ports": [{"port": 1, "protocol": "TCP"}]}]
    assert new["metadata"]["generation"] == before["metadata"]["generation"] + 1
    assert new["metadata"]["uid"] == before["metadata"]["uid"]
    assert int(new["metadata"]["resourceVersion"]) == store.version
    assert managers(new)["curl", "Update"] == {"f:spec": {"f:ingress": {}}}
    assert "f:ingress" not in managers(new)["kubectl", "Apply"]["f:spec"]
    again = do(store, "patch", spec_of([{"ports": [{"port": 1}]}]), MERGE).body
    assert again is policy(store)  # nothing changed, so nothing was written
    assert again["metadata"]["resourceVersion"] == new["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("sent", "counted"),
    [
        ({"egress": []}, True),
        ({"ingress": [{"from": []}]}, True),
        ({"ingress": [{"from": [{"podSelector": {"matchLabels": {}}}]}]}, True),
        ({"ingress": [{"from": [{"podSelector": {}}]}]}, False),
        ({"policyTypes": ["Ingress", "Egress"]}, False),
        ({}, False),
    ],
)
def test_empty_list_in_a_merge_patch_increments_the_generation_each_time(store, sent, counted):
    """A real API server also counts such a patch as a change, although the object is unchanged."""
    first = do(store, "patch", {"spec": sent}, MERGE).body
    again = do(store, "patch", {"spec": sent}, MERGE).body
    assert again["spec"] == first["spec"]
    assert again["metadata"]["generation"] == first["metadata"]["generation"] + counted


def test_empty_list_in_an_apply_is_owned_and_increments_the_generation_each_time(store):
    """Real API servers do the same."""
    sent = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "spec": {"podSelector": {}, "egress": [], "ingress": [{"from": []}]},
    }
    more = {"fieldManager": "me", "force": "true"}
    found = [do(store, "patch", sent, APPLY, **more).body for _ in range(3)]
    first = found[0]["metadata"]["generation"]
    assert [one["metadata"]["generation"] for one in found] == [first, first + 1, first + 2]
    assert "egress" not in found[2]["spec"]
    assert managers(found[2])["me", "Apply"]["f:spec"].keys() >= {"f:egress", "f:ingress"}


@pytest.mark.parametrize(
    ("sent", "types"),
    [
        ({"policyTypes": None}, ["Ingress", "Egress"]),
        ({"policyTypes": [], "egress": []}, ["Ingress"]),
        ({"policyTypes": None, "egress": None}, ["Ingress"]),
        ({"policyTypes": ["Egress"]}, ["Egress"]),
    ],
)
def test_missing_policy_types_are_defaulted_from_the_rules(store, sent, types):
    found = do(store, "patch", {"spec": sent}, MERGE).body["spec"]
    assert found["policyTypes"] == types
    assert found.get("egress") != []


def test_empty_rules_and_selectors_keep_their_meaning(store):
    peers = [{"podSelector": {}, "namespaceSelector": {"matchLabels": {}}}]
    sent = spec_of([{"from": peers}, {}], podSelector=None)
    found = do(store, "patch", sent, MERGE).body["spec"]
    assert found["ingress"] == [{"from": [{"podSelector": {}, "namespaceSelector": {}}]}, {}]
    assert found["podSelector"] == {}


def test_strategic_patch_merges_maps_and_replaces_lists(store):
    sent = {"spec": {"podSelector": {"matchLabels": {"tier": "x"}}, "ingress": [{}]}}
    found = do(store, "patch", sent, STRATEGIC).body["spec"]
    assert found["podSelector"]["matchLabels"] == {"app": "adservice", "tier": "x"}
    assert found["ingress"] == [{}]
    sent = {
        "metadata": {"labels": {"a": "b"}, "finalizers": ["x.io/y"]},
        "spec": {"podSelector": {"$patch": "replace", "matchLabels": {"z": "1"}}},
    }
    found = do(store, "patch", sent, STRATEGIC).body
    assert found["spec"]["podSelector"] == {"matchLabels": {"z": "1"}}
    pod = {"apiVersion": "v1", "kind": "Pod"}
    sent = {
        "metadata": {
            "$setElementOrder/finalizers": [],
            "$deleteFromPrimitiveList/finalizers": ["x.io/y"],
            "labels": {"$patch": "delete"},
            "ownerReferences": [{**pod, "uid": "1", "name": "n"}],
        },
        "spec": {"$retainKeys": ["ingress", "podSelector"], "policyTypes": None},
    }
    found = do(store, "patch", sent, STRATEGIC).body
    assert {"labels", "finalizers"} & found["metadata"].keys() == set()
    assert "egress" not in found["spec"]
    owner, other = {**pod, "uid": "1", "name": "m"}, {**pod, "uid": "2", "name": "o"}
    sent = {"metadata": {"ownerReferences": [owner, other]}}
    found = do(store, "patch", sent, STRATEGIC).body["metadata"]["ownerReferences"]
    assert found == [owner, other]
    sent = {"metadata": {"ownerReferences": [{"$patch": "delete", "uid": "1"}]}}
    found = do(store, "patch", sent, STRATEGIC).body["metadata"]["ownerReferences"]
    assert found == [other]
    assert refused(store, "patch", {"spec": {"$patch": "x"}}, STRATEGIC)[0] == 400


def test_json_patch_applies_completely_or_not_at_all(store):
    sent = [
        {"op": "test", "path": "/spec/ingress/0/ports/0/port", "value": 9555},
        {"op": "copy", "from": "/spec/ingress/0", "path": "/spec/ingress/-"},
        {"op": "replace", "path": "/spec/ingress/1/ports/0/port", "value": 1},
    ]
    found = do(store, "patch", sent, JSON).body["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in found] == [9555, 1]
    # beyond the RFC, as on a real API server: replacing an absent member adds it
    new = [{"op": "replace", "path": "/spec/podSelector/matchLabels/x", "value": "y"}]
    found = do(store, "patch", new, JSON).body["spec"]
    assert found["podSelector"]["matchLabels"]["x"] == "y"
    assert refused(store, "patch", [{"op": "remove", "path": "/metadata/name"}], JSON) == (
        400,
        "the name of the object (adservice based on URL) was undeterminable: name must be provided",
    )
    for bad in (
        [sent[2], {"op": "test", "path": "/kind", "value": "Pod"}],
        [{"op": "remove", "path": "/spec/nosuch"}],
        [{"op": "replace", "path": "spec"}],
        [{"op": "frob", "path": "/spec"}],
        [{"op": "copy", "from": None, "path": "/spec"}],
        [{"path": 1}],
    ):
        told = "the server rejected our request due to an error in our request"
        assert refused(store, "patch", bad, JSON) == (422, told)
    assert refused(store, "patch", {"spec": {}}, JSON)[1].endswith("[]handlers.jsonPatchOp")
    assert refused(store, "patch", ["x"], JSON)[0] == 400
    assert refused(store, "patch", [{"op": "remove", "path": ""}], JSON)[0] in {400, 422}
    assert refused(store, "patch", [{}] * 10_001, JSON)[0] == 413


def test_json_patch_with_copies_of_copies_is_refused_as_too_large(store):
    bomb = [{"op": "add", "path": "/metadata/annotations", "value": {"a": "x" * 1000}}]
    bomb += [
        {"op": "copy", "from": "/metadata/annotations", "path": f"/metadata/annotations/{n}"}
        for n in range(64)
    ]
    assert refused(store, "patch", bomb, JSON)[0] == 413


SPEC = "Go struct field NetworkPolicySpec.spec"
END = "Go struct field NetworkPolicyPort.spec.ingress.ports.endPort"
LABELS = "Go struct field LabelSelector.spec.podSelector.matchLabels"
PORT = "spec.ingress[0].ports[0]"
FROM = "spec.ingress[0].from[0]"


@pytest.mark.parametrize(
    ("ingress", "told"),
    [
        ({"ports": [{"port": 70000}]}, f"{PORT}.port: Invalid value: 70000: must be between 1 "),
        ({"ports": [{"port": "x" * 16}]}, "must be no more than 15 characters"),
        ({"ports": [{"port": "123"}]}, "must contain at least one letter (a-z)"),
        ({"ports": [{"port": "a--b"}]}, "must not contain consecutive hyphens"),
        ({"ports": [{"port": "-a"}]}, "must not begin or end with a hyphen"),
        ({"ports": [{"port": 9, "endPort": 8}]}, f"{PORT}.endPort: Invalid value: 9: must be grea"),
        ({"ports": [{"port": 9, "endPort": 70000}]}, f"{PORT}.endPort: Invalid value: 70000: must"),
        ({"ports": [{"endPort": 8}]}, "may not be specified when `port` is not specified"),
        ({"ports": [{"port": "a", "endPort": 8}]}, "when `port` is non-numeric"),
        ({"ports": [{"protocol": "tcp"}]}, 'Unsupported value: "tcp": supported values: "TCP"'),
        ({"from": [{}]}, f"{FROM}: Required value: must specify a peer"),
        ({"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}, "both"),
        ({"from": [{"ipBlock": {}}]}, f"{FROM}.ipBlock.cidr: Required value"),
        ({"from": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}, "must be a valid CIDR value"),
        ({"from": [{"ipBlock": {"cidr": "10.0.0.0"}}]}, "must be a valid CIDR value"),
        (
            {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8", "x"]}}]},
            'except[0]: Invalid value: "10.0.0.0/8": must be a strict subset of `cidr`, ',
        ),
        (
            {"from": [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]},
            "matchExpressions[0].values: Required value: must be specified when `operator` is 'In'",
        ),
        (
            {"from": [{"namespaceSelector": {"matchExpressions": [
                {"key": "a/b/c", "operator": "Exists", "values": ["-"]}]}}]},
            "values: Forbidden: may not be specified when `operator` is 'Exists'",
        ),
        (
            {"from": [{"podSelector": {"matchLabels": {"/a": "y" * 64}}}]},
            "prefix part must be non-empty",
        ),
        ({"from": [{"podSelector": {"matchLabels": {"A_/": "-"}}}]}, "name part must be non-empty"),
    ],
)  # fmt: skip
def test_invalid_policy_is_refused_with_the_api_servers_message(store, ingress, told):
    code, message = refused(store, "patch", spec_of([ingress]), MERGE)
    assert code == 422
    assert message.startswith('NetworkPolicy.networking.k8s.io "adservice" is invalid: ')
    assert told in message


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"spec": {"policyTypes": ["Ingress"] * 3}}, "may not specify more than two policyTypes"),
        ({"spec": {"policyTypes": ["Both"]}}, 'spec.policyTypes[0]: Unsupported value: "Both"'),
        ({"metadata": {"labels": {"a b": "c"}}}, 'metadata.labels: Invalid value: "a b"'),
        ({"metadata": {"annotations": {"a b": "c"}}}, "metadata.annotations: Invalid value"),
        ({"metadata": {"annotations": {"a": "c" * 300_000}}}, "Too long: may not be more than"),
        ({"metadata": {"finalizers": ["a b"]}}, "metadata.finalizers[0]: Invalid value"),
    ],
)
def test_invalid_field_outside_the_rules_is_refused_with_a_message(store, sent, told):
    code, message = refused(store, "patch", sent, MERGE)
    assert (code, told in message) == (422, True)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"ingress": {}}, f"object into {SPEC}.ingress of type []v1.NetworkPolicyIngressRule"),
        ({"ingress": ["x"]}, f"string into {SPEC}.ingress of type v1.NetworkPolicyIngressRule"),
        ({"ingress": [{"ports": [{"port": True}]}]}, "bool into Go value of type int32"),
        ({"ingress": [{"ports": [{"port": 1.5}]}]}, "number 1.5 into Go value of type int32"),
        ({"ingress": [{"ports": [{"port": 1 << 40}]}]}, "into Go value of type int32"),
        ({"ingress": [{"ports": [{"endPort": "1"}]}]}, f"string into {END} of type int32"),
        ({"policyTypes": "Ingress"}, "of type []v1.PolicyType"),
        ({"podSelector": {"matchLabels": []}}, "of type map[string]string"),
        ({"podSelector": {"matchLabels": {"a": 1}}}, f"number into {LABELS} of type string"),
    ],
)
def test_value_of_the_wrong_type_is_refused_with_a_message(store, sent, told):
    code, message = refused(store, "patch", {"spec": sent}, MERGE)
    assert code == 422
    assert message.startswith(' "" is invalid: patch: Invalid value: "{')
    assert message.endswith(told)


def test_unknown_field_is_warned_about_dropped_or_refused(store):
    sent = {"spec": {"bogus": 1, "ingress": [{"ports": [{"prot": "x", **TCP}]}]}}
    told = ('unknown field "spec.bogus"', 'unknown field "spec.ingress[0].ports[0].prot"')
    answer = do(store, "patch", sent, MERGE)
    assert sorted(answer.warnings) == sorted(told)
    assert answer.body["spec"]["ingress"] == [{"ports": [TCP]}]
    assert do(store, "patch", sent, MERGE, fieldValidation="Ignore").warnings == []
    message = refused(store, "patch", sent, MERGE, fieldValidation="Strict")[1]
    assert "strict decoding error: " in message
    whole = {**policy(store), "status": {}}
    code, message = refused(store, "update", whole, fieldValidation="Strict")
    assert code == 400
    assert message.endswith(
        'cannot be handled as a NetworkPolicy: strict decoding error: unknown field "status"'
    )


def test_dry_run_returns_the_result_and_changes_nothing(store):
    version = store.version
    answer = do(store, "patch", spec_of([{}]), MERGE, dryRun="All")
    assert answer.body["spec"]["ingress"] == [{}]
    do(store, "delete", name="adservice", dryRun="All")
    do(store, "delete", {"dryRun": ["All"]})
    do(store, "deletecollection", name="", dryRun="All")
    assert store.version == version
    assert policy(store)["spec"]["ingress"] != [{}]


def test_write_with_a_stale_resource_version_is_a_conflict(store):
    old = policy(store)
    do(store, "patch", spec_of([{}]), MERGE)
    assert refused(store, "update", old)[0] == 409
    stale = {"metadata": {"resourceVersion": "1"}}
    assert refused(store, "patch", stale, MERGE)[0] == 409
    code, message = refused(store, "patch", {"metadata": {"uid": "x"}}, MERGE)
    assert (code, "UID in precondition: x" in message) == (409, True)
    current = policy(store)
    answer = do(store, "update", {**current, "spec": old["spec"]})
    assert answer.body["spec"] == old["spec"]
    unconditional = {"metadata": {"name": "adservice"}, "spec": {}}
    answer = do(store, "update", unconditional)
    assert answer.body["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    assert answer.body["metadata"]["uid"] == old["metadata"]["uid"]


@pytest.mark.parametrize(
    ("words", "more", "code"),
    [
        (("patch", {}, "text/plain"), {}, 415),
        (("patch", b"{", MERGE), {}, 400),
        (("patch", b"[" * 100_000, JSON), {}, 400),
        (("patch", b'{"a":' * 900 + b"1" + b"}" * 900, MERGE), {"name": "nosuch"}, 404),
        (("patch", [], MERGE), {}, 400),
        (("patch", {"metadata": None}, MERGE), {}, 400),
        (("patch", {"kind": "Pod"}, MERGE), {}, 422),
        (("patch", {"metadata": {"name": "x"}}, MERGE), {}, 400),
        (("patch", {"metadata": {"namespace": "x"}}, MERGE), {}, 400),
        (("patch", {}, MERGE), {"dryRun": "Some"}, 422),
        (("patch", {}, MERGE), {"fieldValidation": "x"}, 422),
        (("patch", {}, MERGE), {"fieldManager": "\n"}, 422),
        (("patch", {}, MERGE), {"force": "true"}, 422),
        (("patch", {}, MERGE), {"_sub": "status"}, 404),
        (("patch", {}, APPLY), {}, 422),
        (("update", {"metadata": {}}), {}, 400),
        (("update", {"metadata": []}), {}, 400),
        (("update", []), {}, 400),
        (("update", {}, "application/vnd.kubernetes.protobuf"), {}, 415),
        (("update", {"metadata": {"name": "nosuch"}}), {"name": "nosuch"}, 404),
        (("delete", []), {}, 400),
        (("delete", {"preconditions": {"uid": "x"}}), {}, 409),
        (("delete",), {"name": "nosuch"}, 404),
        (("create", {"metadata": {"name": "adservice"}}), {"name": ""}, 409),
        (("create", {"metadata": {}}), {"name": ""}, 422),
        (("create", {"metadata": {"name": "A"}}), {"name": ""}, 422),
        (("create", {"metadata": {"name": "a" * 254}}), {"name": ""}, 422),
        (("create", {"metadata": {"name": "a", "resourceVersion": "1"}}), {"name": ""}, 400),
        (("create", {"metadata": {"name": "a"}}), {"name": "", "_in": "nosuch"}, 404),
        (("create", {"metadata": {}}), {"name": "", "_of": CONFIG_MAPS}, 422),
    ],
)
def test_invalid_write_request_is_refused_with_its_status_code(store, words, more, code):
    assert refused(store, *words, **more)[0] == code


def many(entries):
    """Return a spec with this total number of entries, not counting its policyTypes."""
    return spec_of([{"from": [{"podSelector": {"matchLabels": {"app": "a"}}}] * (entries - 2)}])


def test_policy_above_the_limit_of_entries_is_refused(store):
    types = len(do(store, "patch", many(3), MERGE).body["spec"]["policyTypes"])
    assert do(store, "patch", many(POLICY_ENTRIES - types), MERGE).code == 200
    code, words = refused(store, "patch", many(POLICY_ENTRIES - types + 1), MERGE)
    assert (code, words) == (
        403,
        (
            'networkpolicies.networking.k8s.io "adservice" is forbidden: a policy may have at most '
            "100 entries (rules, peers, ports, blocks, values)"
        ),
    )
    assert do(store, "patch", many(POLICY_ENTRIES), MERGE, _user=ADMIN).code == 200


@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_policy_above_the_limit_of_characters_is_refused(store, part):
    def sent(chars):
        return {"metadata": {part: {f"k{n}": "v" * 60 for n in range(chars // 100)}}}

    assert do(store, "patch", sent(POLICY_CHARS // 2), MERGE).code == 200
    code, words = refused(store, "patch", sent(2 * POLICY_CHARS), MERGE)
    assert (code, "at most 65536 characters of JSON" in words) == (403, True)


def test_field_managers_count_towards_the_size_limit(store):
    sent = {"metadata": {"labels": {f"k{n}": "v" for n in range(500)}}}
    sent |= {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    assert do(store, "patch", sent, APPLY, fieldManager="m").code == 200

    def own_it_all():
        for number in range(20):
            do(store, "patch", sent, APPLY, fieldManager=f"m{number}")

    with pytest.raises(Refused, match="characters of JSON"):
        own_it_all()


def test_message_about_many_errors_has_a_limited_length(store):
    bad = spec_of([{"ports": [{"port": 0}] * 5000}])
    assert len(refused(store, "patch", bad, MERGE)[1]) < 20_000


def test_cidr_with_host_bits_is_accepted_with_a_warning(store):
    block = {"cidr": "10.0.0.1/8", "except": ["10.1.0.0/16"]}
    answer = do(store, "patch", spec_of([{"from": [{"ipBlock": block}]}]), MERGE)
    (told,) = answer.warnings
    assert told == (
        'spec.ingress[0].from[0].ipBlock.cidr: CIDR value "10.0.0.1/8" is ambiguous in this '
        'context (should be "10.0.0.0/8" or "10.0.0.1/32"?)'
    )


def test_objects_are_created_and_deleted(store):
    sent = {"metadata": {"generateName": "new-", "labels": {"a": "b"}}, "spec": {"egress": [{}]}}
    answer = do(store, "create", sent, name="", _user=ADMIN)
    made = answer.body["metadata"]
    assert (answer.code, made["generation"], made["namespace"]) == (201, 1, "shop")
    assert answer.body["spec"]["policyTypes"] == ["Ingress", "Egress"]
    labels = managers(answer.body)["curl", "Update"]["f:metadata"]["f:labels"]
    assert labels == {".": {}, "f:a": {}}
    status = do(store, "delete", name=made["name"], _user=ADMIN).body
    assert status["details"]["uid"] == made["uid"]
    gone = do(store, "deletecollection", name="", labelSelector="", _user=ADMIN).body["items"]
    assert len(gone) == 13
    assert store.find(NETWORK_POLICIES) == []
    config = {"metadata": {"name": "x"}, "data": {"a": "b"}}
    do(store, "create", config, name="", _of=CONFIG_MAPS, _user=ADMIN)
    config = {"data": {"a": "c"}}
    answer = do(store, "patch", config, MERGE, name="x", _of=CONFIG_MAPS, _user=ADMIN)
    assert answer.body["data"] == {"a": "c"}
    status = do(store, "delete", name="x", _of=CONFIG_MAPS, _user=ADMIN).body
    assert status["details"]["kind"] == "configmaps"


def config_of(name="adservice", **spec):
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


def test_apply_owns_its_fields_and_removes_fields_it_no_longer_has(store):
    mine = config_of(ingress=[{}])
    mine["metadata"]["labels"] = {"a": "b"}
    code, message = refused(store, "patch", mine, APPLY, fieldManager="me")
    told = 'Apply failed with 1 conflict: conflict with "kubectl": .spec.ingress'
    assert (code, message) == (409, told)
    found = do(store, "patch", mine, APPLY, fieldManager="me", force="true").body
    assert found["spec"]["ingress"] == [{}]
    assert found["spec"]["podSelector"] == {"matchLabels": {"app": "adservice"}}
    assert managers(found)["me", "Apply"] == {
        "f:metadata": {"f:labels": {"f:a": {}}},
        "f:spec": {"f:ingress": {}},
    }
    assert do(store, "patch", mine, APPLY, fieldManager="me").body is policy(store)
    found = do(store, "patch", config_of(), APPLY, fieldManager="me").body
    assert "ingress" not in found["spec"]
    assert "labels" not in found["metadata"]
    assert managers(found)["me", "Apply"] == {"f:spec": {}}


@pytest.mark.parametrize("nothing", [None, []])
def test_apply_of_an_empty_list_conflicts_with_its_other_owner(nothing, store):
    do(store, "patch", spec_of([FRONTEND, {}]), MERGE, fieldManager="kubectl-edit")
    sent = config_of(podSelector=None, ingress=nothing)
    code, message = refused(store, "patch", sent, APPLY, fieldManager="me")
    assert code == 409
    assert '"kubectl-edit" using networking.k8s.io/v1:\n- .spec.ingress' in message
    found = do(store, "patch", sent, APPLY, fieldManager="me", force="true").body
    assert "ingress" not in found["spec"]
    assert found["spec"]["podSelector"] == {}
    owned = {"f:ingress": {}, "f:podSelector": {}}
    assert managers(found)["me", "Apply"] == {"f:spec": owned}
    again = do(store, "patch", sent, APPLY, fieldManager="me").body
    assert managers(again)["me", "Apply"] == {"f:spec": owned}


@pytest.mark.parametrize("nothing", [None, {}])
def test_apply_of_an_empty_map_keeps_entries_of_other_managers(nothing, store):
    do(store, "patch", {"metadata": {"labels": {"a": "b"}}}, MERGE, fieldManager="kubectl-label")
    sent = {**config_of(), "spec": nothing}
    sent["metadata"] |= {"labels": nothing, "annotations": nothing, "finalizers": None}
    before = policy(store)["spec"]
    found = do(store, "patch", sent, APPLY, fieldManager="me").body
    assert found["spec"] == before
    assert found["metadata"]["labels"] == {"a": "b"}
    assert "annotations" not in found["metadata"]
    maps = {"f:labels": {}, "f:annotations": {}, "f:finalizers": {}}
    assert managers(found)["me", "Apply"] == {"f:metadata": maps, "f:spec": {}}


def test_apply_reports_all_conflicts(store):
    do(store, "patch", spec_of([{}], egress=[{"ports": [TCP]}]), MERGE, fieldManager="edit")
    sent = config_of(ingress=[], egress=[], policyTypes=["Ingress"])
    sent["spec"] |= {"ingress": [FRONTEND], "egress": [{}]}
    message = refused(store, "patch", sent, APPLY, fieldManager="me")[1]
    assert message == (
        'Apply failed with 3 conflicts: conflicts with "edit" using networking.k8s.io/v1:\n'
        '- .spec.egress\n- .spec.ingress\nconflicts with "kubectl":\n- .spec.policyTypes'
    )


def test_kubectl_apply_takes_over_fields_of_its_client_side_apply(store):
    note = "kubectl.kubernetes.io/last-applied-configuration"
    sent = {"metadata": {"annotations": {note: "{}"}}, "spec": {"ingress": [{}]}}
    do(store, "patch", sent, MERGE, fieldManager="kubectl-client-side-apply")
    mine = config_of(ingress=[{"ports": [{"port": 1}]}])
    assert refused(store, "patch", mine, APPLY, fieldManager="other")[0] == 409
    found = do(store, "patch", mine, APPLY, fieldManager="kubectl").body
    assert found["spec"]["ingress"] == [{"ports": [{"port": 1, "protocol": "TCP"}]}]
    assert json.loads(found["metadata"]["annotations"][note]) == mine


def test_apply_that_would_create_an_object_needs_create_permission(store):
    sent = config_of("new", podSelector={})
    code, message = refused(store, "patch", sent, APPLY, name="new", fieldManager="me")
    assert (code, "cannot create resource" in message) == (403, True)
    answer = do(store, "patch", sent, APPLY, name="new", fieldManager="me", _user=ADMIN)
    assert (answer.code, answer.body["spec"]["policyTypes"]) == (201, ["Ingress"])
    assert managers(answer.body) == {("me", "Apply"): {"f:spec": {"f:podSelector": {}}}}


HEAD = b"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"a: &a [1]\nb: *a", 400),
        (b"a: [1", 400),
        (b"- 1", 400),
        (b"? [a]\n: b", 400),
        (b"\xff\xfe\xff", 400),
        (b"[" * 3000, 400),
        (b"a: 2026-01-01", 400),
        (b"a: " + b"x" * 200_000, 413),
        (b"apiVersion: v1\nkind: Pod", 400),
        (b"metadata: 1", 400),
        (HEAD + b"metadata: {managedFields: [{}]}", 400),
        (HEAD + b"spec: 1", 500),
    ],
)  # fmt: skip
def test_invalid_apply_body_is_refused_with_its_status_code(store, body, code):
    assert refused(store, "patch", body, APPLY, fieldManager="me")[0] == code


def test_apply_accepts_yaml(store):
    text = (
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {resourceVersion: '1'}\n"
        "spec:\n  ingress:\n  - from:\n    - podSelector:\n        matchLabels: {a: b}\n"
    )
    more = {"fieldManager": "me", "force": "true"}
    assert refused(store, "patch", text.encode(), APPLY, **more)[0] == 409
    text = text.replace("{resourceVersion: '1'}", "{name: adservice}")
    found = do(store, "patch", text.encode(), APPLY, **more).body["spec"]["ingress"]
    assert found == [{"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]}]


def test_managed_fields_can_be_rewritten_by_clients(store):
    answer = do(store, "patch", {"metadata": {"managedFields": [{}]}}, MERGE)
    assert answer.body["metadata"]["managedFields"] == []
    deep = {
        "manager": "m", "operation": "Update",
        "fieldsV1": {"f:spec": {"f:podSelector": {"f:matchLabels": {"f:a": {}}}}},
    }  # fmt: skip
    answer = do(store, "patch", {"metadata": {"managedFields": [deep]}}, MERGE)
    assert managers(answer.body) == {("m", "Update"): {"f:spec": {"f:podSelector": {}}}}
    for bad in ([1], [{"operation": "x"}], [{"fieldsV1": 1, "operation": "Apply"}]):
        answer = do(store, "patch", {"metadata": {"managedFields": bad}}, MERGE)
        assert managers(answer.body) == {("m", "Update"): {"f:spec": {"f:podSelector": {}}}}


def test_removed_field_has_no_owner(store):
    do(store, "patch", {"metadata": {"labels": {"a": "b"}}}, MERGE, fieldManager="one")
    found = do(store, "patch", {"metadata": {"labels": None}}, MERGE, fieldManager="two").body
    assert {name for name, _ in managers(found)} == {"kubectl"}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    ["ingress", "egress", "from", "to", "ports", "port", "podSelector", "ipBlock", "cidr",
     "matchLabels", "matchExpressions", "key", "operator", "values", "except", "policyTypes",
     "namespaceSelector", "protocol", "endPort"]
)  # fmt: skip
SPECS = st.recursive(
    JSON_VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=30,
)


@THOROUGH
@given(st.sampled_from([MERGE, STRATEGIC, JSON, APPLY]), SPECS)
def test_arbitrary_spec_is_refused_or_stored_in_a_valid_form(media, sent):
    world = boutique()
    addresses = {app.name: "10.244.0.2" for app in world.apps}
    store = Store()
    store.fill(objects(world, "shop", addresses, datetime(2026, 1, 1, tzinfo=UTC)))
    bodies = {
        JSON: [{"op": "replace", "path": "/spec/ingress", "value": sent}],
        APPLY: {**config_of(), "spec": sent},
    }
    body = bodies.get(media, {"spec": {"ingress": sent, "egress": sent}})
    try:
        found = do(store, "patch", body, media, fieldManager="me", **_force(media)).body
    except Refused:
        return
    json.dumps(found)
    # a stored object is accepted again unchanged
    assert do(store, "update", found).body["spec"] == found["spec"]


def _force(media):
    return {"force": "true"} if media == APPLY else {}


@THOROUGH
@given(
    st.dictionaries(st.sampled_from("abc"), st.text(max_size=2), min_size=1),
    st.dictionaries(st.sampled_from(["ingress", "egress"]), st.just([{}])),
)
def test_field_owners_survive_a_round_trip(labels, spec):
    one = {"metadata": {"labels": labels}, "spec": spec or {"podSelector": {}}}
    entry = {"manager": "m", "operation": "Apply", "apiVersion": "v1", "time": "t"}
    (owner,) = read_owners([{**entry, "fieldsV1": {"f:x": {}}}])
    owner = type(owner)("m", "Apply", "v1", "t", frozenset(leaves(one)))
    assert read_owners(show_owners([owner])) == [owner]


def test_patch_with_a_table_accept_header_returns_a_table(store):
    server = Server(store, {"token": ADMIN}, "shop")
    table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

    async def patch_policy(accept, body):
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(server), base_url="http://api", timeout=60
        ) as client:
            return await client.patch(
                "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/adservice",
                content=json.dumps(body),
                headers={"Accept": accept, "Content-Type": MERGE, "Authorization": "Bearer token"},
            )

    answer = asyncio.run(patch_policy(table, spec_of([{"x": 1}])))
    assert answer.json()["rows"][0]["cells"][:2] == ["adservice", "app=adservice"]
    assert answer.headers["warning"] == '299 - "unknown field \\"spec.ingress[0].x\\""'
    answer = asyncio.run(patch_policy(table, spec_of({})))
    assert (answer.status_code, answer.json()["kind"]) == (422, "Status")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"ingress": "all"}, '"map[spec:map[ingress:all]]": cannot restore slice from string'),
        ({"ingress": ["x"]}, '"map[spec:map[ingress:[x]]]": cannot restore struct from: string'),
        ({"podSelector": {"matchLabels": ["x"]}}, "cannot restore map from slice"),
        ({"podSelector": {"matchLabels": {"b": None, "a": 1}}},
         '"map[spec:map[podSelector:map[matchLabels:map[a:1]]]]": cannot convert int64 to string'),
        ({"podSelector": {"matchLabels": {"a": True}}}, 'a:true]]]]": unrecognized type: string'),
        ({"policyTypes": [1]}, "cannot convert int64 to v1.PolicyType"),
        ({"policyTypes": [{}]}, '[map[]]]]": unrecognized type: string'),
        ({"ingress": [{"ports": [{"endPort": "9"}]}]}, "unrecognized type: int32"),
        ({"ingress": [{"ports": [{"port": 1.5}]}]},
         "json: cannot unmarshal number 1.5 into Go value of type int32"),
        (5, '"map[spec:5]": cannot restore struct from: int64'),
    ],
)  # fmt: skip
def test_strategic_patch_with_wrong_types_fails_with_the_real_servers_message(store, spec, told):
    """The messages are those of Kubernetes 1.34.2 for the same patches."""
    body = json.dumps({"spec": spec}).encode()
    with pytest.raises(Refused) as caught:
        do(store, "patch", body, STRATEGIC)
    message = caught.value.status["message"]
    assert message.startswith(' "" is invalid: patch: Invalid value: "map[')
    assert told in message


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"ingress": [{"form": []}]}, ".spec.ingress[0].form: field not declared in schema"),
        ({"foo": 1, "bar": 2}, ".spec.bar: field not declared in schema"),
        ({"ingress": "all"}, ".spec.ingress: expected list, got &{all}"),
        ({"podSelector": "x"}, ".spec.podSelector: expected map, got &{x}"),
        ({"podSelector": {"matchLabels": {"a": 1}}}, (".spec.podSelector.matchLabels.a: expected "
         "string, got &value.valueUnstructured{Value:1}")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("validation", ["Strict", "Ignore"])
def test_apply_of_fields_outside_the_schema_fails_with_any_field_validation(
    store, spec, told, validation
):
    """Message and status are those of Kubernetes 1.34.2."""
    sent = config_of("adservice", **{"podSelector": {}, **spec})
    where = "(shop/adservice; networking.k8s.io/v1, Kind=NetworkPolicy)"
    assert refused(store, "patch", sent, APPLY, fieldManager="me", fieldValidation=validation) == (
        500,
        f"failed to create typed patch object {where}: {told}",
    )


TWO = [{"ports": [TCP]}, FRONTEND]


@pytest.mark.parametrize(
    ("operations", "left"),
    [
        ([{"op": "add", "path": "/spec/ingress/-1", "value": {}}], [*TWO, {}]),
        ([{"op": "add", "path": "/spec/ingress/-3", "value": {}}], [{}, *TWO]),
        ([{"op": "add", "path": "/spec/ingress/01", "value": {}}], [TWO[0], {}, TWO[1]]),
        ([{"op": "add", "path": "/spec/ingress/+0", "value": {}}], [{}, *TWO]),
        ([{"op": "remove", "path": "/spec/ingress/-1"}], TWO[:1]),
        ([{"op": "replace", "path": "/spec/ingress/-2", "value": {}}], [{}, TWO[1]]),
        ([{"op": "remove", "path": "/spec/ingress/-2/ports"}], [{}, TWO[1]]),
        ([{"op": "move", "from": "/spec/ingress/0", "path": "/spec/ingress/-1"}], TWO[::-1]),
        ([{"op": "copy", "from": "/spec/ingress/-1", "path": "/spec/ingress/0"}], [TWO[1], *TWO]),
        ([{"op": "copy", "from": "/spec/nothing", "path": "/spec/ingress"}], None),
        ([{"op": "add", "path": "/spec/ingress"}], None),
        ([{"op": "replace", "path": "/spec/ingress/0"}], [{}, TWO[1]]),
        ([{"op": "add", "path": "passed over/spec/ingress", "value": []}], None),
    ],
)
def test_json_patch_paths_beyond_the_rfc_behave_as_on_a_real_server(store, operations, left):
    """Beyond RFC 6902; seen on real servers (tests/integration/test_k8s_cluster_commands.py)."""
    do(store, "patch", spec_of(TWO), MERGE)
    assert do(store, "patch", operations, JSON).body["spec"].get("ingress") == left


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "add", "path": "/spec/ingress/-4", "value": {}},
        {"op": "add", "path": "/spec/ingress/3", "value": {}},
        {"op": "remove", "path": "/spec/ingress/-3"},
        {"op": "replace", "path": "/spec/ingress/-", "value": {}},
        {"op": "copy", "from": "/spec/ingress/2", "path": "/spec/ingress/0"},
        {"op": "move", "from": "/spec/nothing", "path": "/spec/ingress"},
        {"op": "replace", "path": "", "value": {}},
        {"op": "add", "path": "spec", "value": {}},
        {"op": "add", "value": {}},
        {"op": "test", "path": "/spec/ingress"},
        {"path": "/spec/ingress"},
    ],
)
def test_json_patch_with_an_invalid_path_is_refused(store, operation):
    do(store, "patch", spec_of(TWO), MERGE)
    code, message = refused(store, "patch", [operation], JSON)
    assert (code, message) == (
        422, "the server rejected our request due to an error in our request"
    )  # fmt: skip


def test_strategic_patch_ignores_directives_in_a_replaced_list(store):
    answer = do(store, "patch", spec_of([{"$patch": "replace"}]), STRATEGIC)
    assert answer.body["spec"]["ingress"] == [{}]
    assert answer.warnings == ['unknown field "spec.ingress[0].$patch"']


def test_strategic_patch_drops_nulls_and_directives_from_new_fields(store):
    found = do(store, "patch", spec_of([{"$patch": "replace"}, FRONTEND]), STRATEGIC,
               name="loadgenerator")  # fmt: skip
    assert found.body["spec"]["ingress"] == [FRONTEND]
    assert found.warnings == []
    sent = {"spec": {"podSelector": {"matchLabels": {"app": None}}}}
    found = do(store, "patch", sent, STRATEGIC, name="deny-all").body
    assert found["spec"]["podSelector"] == {}
    sent = {"metadata": {"labels": {"$patch": "replace", "a": "b"}}}
    assert "labels" not in do(store, "patch", sent, STRATEGIC).body["metadata"]


def test_empty_strategic_patch_changes_nothing(store):
    before = policy(store)
    assert do(store, "patch", b"null", STRATEGIC).body == before


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({"deletionTimestamp": "2020-01-01T00:00:00Z"},
         'metadata.deletionTimestamp: Invalid value: "2020-01-01T00:00:00Z": field is immutable'),
        ({"deletionGracePeriodSeconds": 3},
         "metadata.deletionGracePeriodSeconds: Invalid value: 3: field is immutable"),
        ({"finalizers": ["kept"]},
         ('metadata.finalizers[0]: Invalid value: "kept": '
          "name is neither a standard finalizer name nor is it fully qualified")),
        ({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x"}]},
         'metadata.ownerReferences.uid: Invalid value: "": must not be empty'),
    ],
)  # fmt: skip
def test_invalid_metadata_is_refused_with_the_real_servers_message(store, metadata, told):
    code, message = refused(store, "patch", {"metadata": metadata}, MERGE)
    assert (code, message) == (
        422, f'NetworkPolicy.networking.k8s.io "adservice" is invalid: {told}'
    )  # fmt: skip


def test_object_with_two_controllers_is_refused(store):
    owner = {"apiVersion": "v1", "kind": "Pod", "uid": "1", "controller": True}
    owners = [{**owner, "name": name} for name in ("x", "y")]
    do(store, "patch", {"metadata": {"ownerReferences": owners[:1]}}, MERGE)
    _, message = refused(store, "patch", {"metadata": {"ownerReferences": owners}}, MERGE)
    assert message.endswith(
        "Only one reference can have Controller set to true. "
        'Found "true" in references for Pod/x and Pod/y'
    )
