"""The types of a network policy: their fields in the API's order, and what each is, in our words.

What is sent is read by them (``shape``), and what ``kubectl explain`` shows is made of them
(``openapi``).
"""

from __future__ import annotations

from collections.abc import Mapping

_SELECTOR = (
    "A label selector: all of matchLabels and of matchExpressions must hold; an empty one "
    "selects everything."
)
#: type -> (what it is, {field: (type, what it is)}); a trailing [] is a list, {} a map of strings
POLICY_TYPES: Mapping[str, tuple[str, Mapping[str, tuple[str, str]]]] = {
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
