"""netarena_k8s.change distinguishes commands that change the cluster from read-only commands."""

from __future__ import annotations

import pytest

from netarena_k8s.change import changes


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("kubectl get networkpolicies -o yaml", False),
        ("kubectl describe networkpolicy cart | grep patch", False),
        ("kubectl rollout status deployment/cart", False),
        ("kubectl get pods -l run=x", False),
        ("kubectl get deploy run", False),
        ("kubectl describe netpol set", False),
        ("kubectl -n default auth can-i patch networkpolicies", False),
        ("kubectl patch networkpolicy cart --dry-run=server -p '{}'", False),
        ("kubectl label netpol cart --list", False),
        ("kubectl -n default patch networkpolicy cart -p '{}'", True),
        ("kubectl get pods; kubectl apply -f - <<'EOF'\nx\nEOF", True),
        ("kubectl \\\npatch networkpolicy cart -p '{}'", True),
        ("kubectl get netpol -o name | xargs -n 1 kubectl delete", True),
        ("for p in a b; do kubectl --namespace=x edit netpol $p; done", True),
        ("EDITOR='sed -i s/a/b/' kubectl edit netpol cart", True),
        ("kubectl rollout restart deployment/cart", True),
        ("(kubectl get pods && kubectl scale --replicas=2 deploy/cart)", True),
    ],
)
def test_commands_that_change_the_cluster_are_recognised(command: str, expected: bool) -> None:
    assert changes(command) is expected
