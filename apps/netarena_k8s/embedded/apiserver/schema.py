"""Types of network policies and of metadata: fields in the API's order, with descriptions.

``shape`` reads input with the types of policies. ``openapi`` derives the output of ``kubectl
explain`` from all types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

_SELECTOR = (
    "A label selector: all of matchLabels and of matchExpressions must hold; an empty one "
    "selects everything."
)
#: type -> (description, {field: (type, description)}); a trailing [] means a list, {} a map of
#: strings
Types: TypeAlias = Mapping[str, tuple[str, Mapping[str, tuple[str, str]]]]
POLICY_TYPES: Types = {
    "NetworkPolicySpec": (
        "NetworkPolicySpec says which pods a policy is for and what they may talk to.",
        {
            "podSelector": (
                "LabelSelector",
                "The pods of the policy's namespace that it is for. " + _SELECTOR,
            ),
            "ingress": (
                "NetworkPolicyIngressRule[]",
                "What may come in. Without a rule, nothing; an empty rule lets everything in.",
            ),
            "egress": (
                "NetworkPolicyEgressRule[]",
                (
                    "What may go out. Without a rule nothing, name lookups included; an empty one "
                    "lets everything out."
                ),
            ),
            "policyTypes": (
                "string[]",
                (
                    "The directions that the policy restricts: Ingress, Egress. Absent: Ingress, "
                    "and Egress if there are egress rules."
                ),
            ),
        },
    ),
    "NetworkPolicyIngressRule": (
        "NetworkPolicyIngressRule lets in what comes from one of the peers to one of the ports.",
        {
            "from": ("NetworkPolicyPeer[]", "The sources; absent or empty: any source."),
            "ports": ("NetworkPolicyPort[]", "Ports of the pod; absent or empty: any port."),
        },
    ),
    "NetworkPolicyEgressRule": (
        "NetworkPolicyEgressRule lets out what goes to one of the peers at one of the ports.",
        {
            "to": ("NetworkPolicyPeer[]", "The targets; absent or empty: any target."),
            "ports": ("NetworkPolicyPort[]", "Ports of the target pod; absent or empty: any port."),
        },
    ),
    "NetworkPolicyPeer": (
        "NetworkPolicyPeer names pods or addresses. Two selectors in one peer must both hold.",
        {
            "podSelector": ("LabelSelector", "Pods by their labels. " + _SELECTOR),
            "namespaceSelector": (
                "LabelSelector",
                "Namespaces by their labels; absent: the policy's own. " + _SELECTOR,
            ),
            "ipBlock": ("IPBlock", "A range of addresses; not together with a selector."),
        },
    ),
    "NetworkPolicyPort": (
        "NetworkPolicyPort is a port, or a range of them, of one protocol.",
        {
            "port": (
                "IntOrString",
                "The number or the name of a port of the pod, not of a service; absent: all.",
            ),
            "endPort": ("integer", "The last port of a range; the port must then be a number."),
            "protocol": ("string", "TCP (the default), UDP or SCTP."),
        },
    ),
    "IPBlock": (
        "IPBlock is a range of addresses with exceptions.",
        {
            "cidr": ("string", "The range, for example 192.168.1.0/24."),
            "except": ("string[]", "Ranges within cidr that are left out."),
        },
    ),
    "LabelSelector": (
        _SELECTOR,
        {
            "matchLabels": ("string{}", "Labels that must be there with these values."),
            "matchExpressions": ("LabelSelectorRequirement[]", "Conditions on labels."),
        },
    ),
    "LabelSelectorRequirement": (
        "LabelSelectorRequirement is a condition on one label.",
        {
            "key": ("string", "The label."),
            "operator": ("string", "In, NotIn, Exists or DoesNotExist."),
            "values": ("string[]", "Values for In and NotIn."),
        },
    ),
}
META_TYPES: Types = {
    "ObjectMeta": (
        "ObjectMeta is what every object has.",
        {
            "name": ("string", "The name, one of its kind in a namespace."),
            "generateName": ("string", "What a name begins with that the server is to make up."),
            "namespace": ("string", "The namespace that it is in."),
            "selfLink": ("string", "Out of use: always empty."),
            "uid": ("string", "What tells it from an earlier one of its name."),
            "resourceVersion": (
                "string",
                "Another one after each change; a write that gives an older one is refused.",
            ),
            "generation": ("int64", "A number that rises with each change of what is wanted."),
            "creationTimestamp": ("Time", "When it was created."),
            "deletionTimestamp": ("Time", "When it goes, once it has been deleted."),
            "deletionGracePeriodSeconds": ("int64", "How long it may take to go, in seconds."),
            "labels": ("string{}", "What selectors select by."),
            "annotations": ("string{}", "Notes for programs."),
            "ownerReferences": (
                "OwnerReference[]",
                "The objects that it belongs to: it goes when all of them are gone.",
            ),
            "finalizers": ("string[]", "Who must agree before it goes."),
            "managedFields": ("ManagedFieldsEntry[]", "Who set which fields."),
        },
    ),
    "OwnerReference": (
        "OwnerReference names an object that this one belongs to, of its namespace or of none.",
        {
            "apiVersion": ("string", "The group and version of the owner."),
            "kind": ("string", "What the owner is."),
            "name": ("string", "The name of the owner."),
            "uid": ("string", "The uid of the owner."),
            "controller": ("boolean", "Whether the owner is the one that looks after it."),
            "blockOwnerDeletion": (
                "boolean",
                "Whether an owner deleted in the foreground waits until this object is gone.",
            ),
        },
    ),
    "ManagedFieldsEntry": (
        "ManagedFieldsEntry tells which fields one program has set in one way.",
        {
            "manager": ("string", "The program."),
            "operation": ("string", "How it set them: Apply or Update."),
            "apiVersion": ("string", "The group and version that it wrote in."),
            "time": ("Time", "When its fields last became others."),
            "fieldsType": ("string", "The form of fieldsV1: FieldsV1."),
            "fieldsV1": ("FieldsV1", "The fields."),
            "subresource": ("string", "The subresource that it wrote to, if to one."),
        },
    ),
}
