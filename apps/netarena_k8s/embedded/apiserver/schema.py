"""Types of network policies and of metadata: fields in the API's order, with descriptions.

Module ``shape`` uses the types of policies to read input. Module ``openapi`` derives the output of
``kubectl explain`` from all types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

_SELECTOR = (
    "A label selector. All labels in matchLabels and all conditions in matchExpressions must "
    "match. An empty selector selects everything."
)
#: type -> (description, {field: (type, description)}); a trailing [] means a list, {} a map of
#: strings
Types: TypeAlias = Mapping[str, tuple[str, Mapping[str, tuple[str, str]]]]
POLICY_TYPES: Types = {
    "NetworkPolicySpec": (
        "NetworkPolicySpec selects pods and specifies their allowed traffic.",
        {
            "podSelector": (
                "LabelSelector",
                "Selects the pods to which the policy applies, in the policy's namespace. "
                + _SELECTOR,
            ),
            "ingress": (
                "NetworkPolicyIngressRule[]",
                (
                    "Allowed ingress traffic. Without rules, no traffic is allowed. An empty rule "
                    "allows all traffic."
                ),
            ),
            "egress": (
                "NetworkPolicyEgressRule[]",
                (
                    "Allowed egress traffic, including DNS. Without rules, no traffic is allowed. "
                    "An empty rule allows all traffic."
                ),
            ),
            "policyTypes": (
                "string[]",
                (
                    "Directions of traffic that the policy restricts: Ingress, Egress. The default "
                    "is Ingress, and also Egress if the policy has egress rules."
                ),
            ),
        },
    ),
    "NetworkPolicyIngressRule": (
        "NetworkPolicyIngressRule allows traffic from each of the peers to each of the ports.",
        {
            "from": (
                "NetworkPolicyPeer[]",
                "Allowed sources. If absent or empty, all sources are allowed.",
            ),
            "ports": (
                "NetworkPolicyPort[]",
                "Ports of the selected pods. If absent or empty, all ports.",
            ),
        },
    ),
    "NetworkPolicyEgressRule": (
        "NetworkPolicyEgressRule allows traffic to each of the peers on each of the ports.",
        {
            "to": (
                "NetworkPolicyPeer[]",
                "Allowed destinations. If absent or empty, all destinations are allowed.",
            ),
            "ports": (
                "NetworkPolicyPort[]",
                "Ports of the destination. If absent or empty, all ports.",
            ),
        },
    ),
    "NetworkPolicyPeer": (
        "NetworkPolicyPeer selects pods or addresses. Two selectors of a peer must both match.",
        {
            "podSelector": ("LabelSelector", "Selects pods by their labels. " + _SELECTOR),
            "namespaceSelector": (
                "LabelSelector",
                "Selects namespaces by their labels. If absent, the policy's own namespace. "
                + _SELECTOR,
            ),
            "ipBlock": (
                "IPBlock",
                "A range of addresses. It must not be combined with a selector.",
            ),
        },
    ),
    "NetworkPolicyPort": (
        "NetworkPolicyPort is a port or a range of ports of one protocol.",
        {
            "port": (
                "IntOrString",
                "Number or name of a port of the pod, not of a service. If absent, all ports.",
            ),
            "endPort": ("integer", "Last port of a range, whose first port is the number in port."),
            "protocol": ("string", "TCP (the default), UDP or SCTP."),
        },
    ),
    "IPBlock": (
        "IPBlock is a range of addresses with exceptions.",
        {
            "cidr": ("string", "The range of addresses, for example 192.168.1.0/24."),
            "except": ("string[]", "Ranges within cidr that are excluded."),
        },
    ),
    "LabelSelector": (
        _SELECTOR,
        {
            "matchLabels": ("string{}", "Required labels and their values."),
            "matchExpressions": ("LabelSelectorRequirement[]", "Conditions on labels."),
        },
    ),
    "LabelSelectorRequirement": (
        "LabelSelectorRequirement is a condition on one label.",
        {
            "key": ("string", "Key of the label."),
            "operator": ("string", "In, NotIn, Exists or DoesNotExist."),
            "values": ("string[]", "Values for the operators In and NotIn."),
        },
    ),
}
META_TYPES: Types = {
    "ObjectMeta": (
        "ObjectMeta is the metadata of an object.",
        {
            "name": (
                "string",
                "Name of the object, unique among the objects of its kind in a namespace.",
            ),
            "generateName": ("string", "Prefix of a name that the server generates."),
            "namespace": ("string", "Namespace of the object."),
            "selfLink": ("string", "Deprecated: always empty."),
            "uid": (
                "string",
                "Unique identifier, which distinguishes objects of the same name over time.",
            ),
            "resourceVersion": (
                "string",
                "Changes with each write. A write with an older resourceVersion is refused.",
            ),
            "generation": ("int64", "Number that increases with each change of the desired state."),
            "creationTimestamp": ("Time", "Time of creation."),
            "deletionTimestamp": ("Time", "Time at which a deleted object will be removed."),
            "deletionGracePeriodSeconds": ("int64", "Seconds until a deleted object is removed."),
            "labels": ("string{}", "Labels, which selectors match."),
            "annotations": ("string{}", "Arbitrary data for tools."),
            "ownerReferences": (
                "OwnerReference[]",
                "Owners of the object. The object is deleted after all of its owners.",
            ),
            "finalizers": (
                "string[]",
                "Identifiers that must be removed before the object can be deleted.",
            ),
            "managedFields": ("ManagedFieldsEntry[]", "The fields that each program has set."),
        },
    ),
    "OwnerReference": (
        "OwnerReference identifies an owner, in the same namespace or without a namespace.",
        {
            "apiVersion": ("string", "API group and version of the owner."),
            "kind": ("string", "Kind of the owner."),
            "name": ("string", "Name of the owner."),
            "uid": ("string", "UID of the owner."),
            "controller": (
                "boolean",
                "Whether the owner is the controller that manages this object.",
            ),
            "blockOwnerDeletion": (
                "boolean",
                "Whether foreground deletion of the owner waits until this object is deleted.",
            ),
        },
    ),
    "ManagedFieldsEntry": (
        "ManagedFieldsEntry lists the fields that one program has set with one operation.",
        {
            "manager": ("string", "Name of the program."),
            "operation": ("string", "Operation that set the fields: Apply or Update."),
            "apiVersion": ("string", "API group and version of the operation."),
            "time": ("Time", "Time of the last change of the set of fields."),
            "fieldsType": ("string", "Format of fieldsV1: FieldsV1."),
            "fieldsV1": ("FieldsV1", "The set of fields."),
            "subresource": ("string", "Subresource of the operation, if any."),
        },
    ),
}
