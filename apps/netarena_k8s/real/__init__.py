"""Real clusters: an implementation of ``netarena_k8s.cluster`` for any cluster of a kubeconfig.

Module ``cluster`` implements the interface. ``workload_set`` manages one namespace with one world.
``measure`` tests its connections. ``manifest`` turns a world into objects. ``owner`` identifies
NetArena's namespaces, ``lease`` its objects in a shared namespace. ``rbac`` lists the rights that
the service needs. ``client`` sends requests to the API.
"""
