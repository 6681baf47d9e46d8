"""Replies of agents that do not read prompts: random commands, or the standard policies.

Neither agent knows the query. ``distract`` returns a random command that an operator might type.
``blanket`` writes the policies of Online Boutique in every world.
"""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Sequence

from netarena_k8s.solution import fenced
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import World, render_policy

#: templates of plausible commands, right and wrong, for ``distract``
_PLAUSIBLE = (
    "kubectl get networkpolicies",
    "kubectl get networkpolicy {policy} -o yaml",
    "kubectl describe networkpolicy {policy}",
    "kubectl get pods --show-labels",
    "kubectl get services -o wide",
    "kubectl delete networkpolicy {policy}",
    "kubectl label pod -l {label} checked=yes",
    "kubectl rollout restart deployment {app}",
    "kubectl patch networkpolicy {policy} -p {allow}",
    "kubectl patch networkpolicy {policy} --type=json -p {close}",
    "kubectl patch networkpolicy {policy} --type=json -p {select}",
    "kubectl annotate networkpolicy {policy} note=seen --overwrite",
)


def distract(world: World, rng: random.Random) -> str:
    """Return a plausible command."""
    policy, app = rng.choice(world.policies), rng.choice(world.apps)
    label = rng.choice(sorted(app.labels.items()))
    patches = {
        "allow": {"spec": {"ingress": [{"from": [{"podSelector": {"matchLabels": app.labels}}]}]}},
        "close": [{"op": "add", "path": "/spec/ingress", "value": []}],
        "select": [
            {"op": "add", "path": "/spec/podSelector", "value": {"matchLabels": app.labels}}
        ],
    }
    return fenced(
        rng.choice(_PLAUSIBLE).format(
            policy=policy.name,
            app=app.name,
            label="=".join(label),
            **{name: shlex.quote(json.dumps(patch)) for name, patch in patches.items()},
        )
    )


def blanket(namespace: str) -> Sequence[str]:
    """Return a command that replaces all policies with the policies of Online Boutique."""
    policies = [json.dumps(render_policy(policy, namespace)) for policy in boutique().policies]
    return [fenced("\n".join(("kubectl replace -f - <<'END'", *policies, "END")))]
