"""Real clusters: the interface of ``netarena_k8s.cluster`` for any cluster of a kubeconfig.

``cluster`` implements the interface; ``shop`` is one namespace with one world; ``measure`` finds
out who reaches whom; ``manifest`` turns a world into objects; ``owner`` identifies NetArena's
namespaces, ``claim`` its objects in a namespace of others; ``right`` lists the service's rights;
``client`` speaks to the API.
"""
