"""Table of the API's resources, for discovery, paths and authorization.

Source: ``kubectl api-resources`` of Kubernetes 1.34. The embedded server has objects of only some
of these kinds, and lists of the other kinds are empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

_ALL = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
#: abbreviations of verbs in the table
_VERBS = {"*": _ALL, "c": ("create",), "r": ("get", "list")}

#: group/version (core: v1); then plural, kind, scope (n: namespaced, c: cluster), verbs, short
#: names and categories (after @), and subresources as name=verbs
_TABLE = """
v1
 bindings Binding n c
 componentstatuses ComponentStatus c r cs
 configmaps ConfigMap n * cm
 endpoints Endpoints n * ep
 events Event n * ev
 limitranges LimitRange n * limits
 namespaces Namespace c * ns finalize=update status=get,patch,update
 nodes Node c * no proxy=create,delete,get,patch,update status=get,patch,update
 persistentvolumeclaims PersistentVolumeClaim n * pvc status=get,patch,update
 persistentvolumes PersistentVolume c * pv status=get,patch,update
 pods Pod n * po,@all attach=create,get binding=create ephemeralcontainers=get,patch,update
   eviction=create exec=create,get log=get portforward=create,get
   proxy=create,delete,get,patch,update resize=get,patch,update status=get,patch,update
 podtemplates PodTemplate n *
 replicationcontrollers ReplicationController n * rc,@all scale=get,patch,update
 resourcequotas ResourceQuota n * quota status=get,patch,update
 secrets Secret n *
 serviceaccounts ServiceAccount n * sa token=create
 services Service n * svc,@all proxy=create,delete,get,patch,update status=get,patch,update
apiregistration.k8s.io/v1
 apiservices APIService c * @api-extensions
apps/v1
 controllerrevisions ControllerRevision n *
 daemonsets DaemonSet n * ds,@all status=get,patch,update
 deployments Deployment n * deploy,@all scale=get,patch,update status=get,patch,update
 replicasets ReplicaSet n * rs,@all scale=get,patch,update status=get,patch,update
 statefulsets StatefulSet n * sts,@all scale=get,patch,update status=get,patch,update
events.k8s.io/v1
 events Event n * ev
authentication.k8s.io/v1
 selfsubjectreviews SelfSubjectReview c c
 tokenreviews TokenReview c c
authorization.k8s.io/v1
 localsubjectaccessreviews LocalSubjectAccessReview n c
 selfsubjectaccessreviews SelfSubjectAccessReview c c
 selfsubjectrulesreviews SelfSubjectRulesReview c c
 subjectaccessreviews SubjectAccessReview c c
autoscaling/v2
 horizontalpodautoscalers HorizontalPodAutoscaler n * hpa,@all status=get,patch,update
autoscaling/v1
 horizontalpodautoscalers HorizontalPodAutoscaler n * hpa,@all status=get,patch,update
batch/v1
 cronjobs CronJob n * cj,@all status=get,patch,update
 jobs Job n * @all status=get,patch,update
certificates.k8s.io/v1
 certificatesigningrequests CertificateSigningRequest c * csr approval=get,patch,update
networking.k8s.io/v1
 ingressclasses IngressClass c *
 ingresses Ingress n * ing status=get,patch,update
 ipaddresses IPAddress c * ip
 networkpolicies NetworkPolicy n * netpol
 servicecidrs ServiceCIDR c * status=get,patch,update
policy/v1
 poddisruptionbudgets PodDisruptionBudget n * pdb status=get,patch,update
rbac.authorization.k8s.io/v1
 clusterrolebindings ClusterRoleBinding c *
 clusterroles ClusterRole c *
 rolebindings RoleBinding n *
 roles Role n *
storage.k8s.io/v1
 csidrivers CSIDriver c *
 csinodes CSINode c *
 csistoragecapacities CSIStorageCapacity n *
 storageclasses StorageClass c * sc
 volumeattachments VolumeAttachment c * status=get,patch,update
 volumeattributesclasses VolumeAttributesClass c * vac
admissionregistration.k8s.io/v1
 mutatingwebhookconfigurations MutatingWebhookConfiguration c * @api-extensions
 validatingadmissionpolicies ValidatingAdmissionPolicy c * @api-extensions
 validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding c * @api-extensions
 validatingwebhookconfigurations ValidatingWebhookConfiguration c * @api-extensions
apiextensions.k8s.io/v1
 customresourcedefinitions CustomResourceDefinition c * crd,crds,@api-extensions
scheduling.k8s.io/v1
 priorityclasses PriorityClass c * pc
coordination.k8s.io/v1
 leases Lease n *
node.k8s.io/v1
 runtimeclasses RuntimeClass c *
discovery.k8s.io/v1
 endpointslices EndpointSlice n *
flowcontrol.apiserver.k8s.io/v1
 flowschemas FlowSchema c * status=get,patch,update
 prioritylevelconfigurations PriorityLevelConfiguration c * status=get,patch,update
resource.k8s.io/v1
 deviceclasses DeviceClass c *
 resourceclaims ResourceClaim n * status=get,patch,update
 resourceclaimtemplates ResourceClaimTemplate n *
 resourceslices ResourceSlice c *
"""


@dataclass(frozen=True)
class Resource:
    """One resource in one version. ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    verbs: tuple[str, ...]
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full(self) -> str:
        """The name in error messages, such as ``networkpolicies.networking.k8s.io`` or ``pods``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def root(self) -> str:
        """The API path of the resource's group and version."""
        return f"/{'apis' if self.group else 'api'}/{self.api_version}"


def _read(group: str, version: str, words: list[str]) -> Resource:
    plural, kind, scope, verbs, *rest = words
    names = [] if not rest or "=" in rest[0] else rest.pop(0).split(",")
    return Resource(
        group,
        version,
        plural,
        kind,
        scope == "n",
        _VERBS[verbs],
        tuple(name for name in names if not name.startswith("@")),
        tuple(name[1:] for name in names if name.startswith("@")),
        tuple(
            (name, tuple(allowed.split(","))) for name, allowed in (one.split("=") for one in rest)
        ),
    )


@lru_cache(maxsize=1)
def resources() -> tuple[Resource, ...]:
    """Return all resources, with groups in the order of discovery."""
    found = []
    group = version = ""
    for line in _TABLE.replace("\n   ", " ").strip().splitlines():
        if line.startswith(" "):
            found.append(_read(group, version, line.split()))
        else:
            group, _, version = line.rpartition("/")
    return tuple(found)


@lru_cache(maxsize=1)
def by_path() -> dict[tuple[str, str, str], Resource]:
    """Return a map from (group, version, plural) to the resource."""
    return {(one.group, one.version, one.plural): one for one in resources()}


@lru_cache(maxsize=1)
def by_kind() -> dict[str, Resource]:
    """Return a map from each kind to its resource. If several groups or versions have the kind, the
    map contains the first resource.
    """
    found: dict[str, Resource] = {}
    for one in resources():
        found.setdefault(one.kind, one)
    return found


NETWORK_POLICIES = by_path()["networking.k8s.io", "v1", "networkpolicies"]
