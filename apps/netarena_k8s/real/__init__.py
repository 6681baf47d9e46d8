"""Any cluster that a kubeconfig names: what the seam ``netarena_k8s.cluster`` asks for, for real.

``cluster`` has the interface; ``shop`` is one namespace with one world in it; ``measure`` finds out
who reaches whom; ``manifest`` says what a world comes to as objects; ``owner`` tells what is ours,
``claim`` what of ours is in a namespace of others; ``right`` what the service must be allowed;
``client`` speaks to the API.
"""
