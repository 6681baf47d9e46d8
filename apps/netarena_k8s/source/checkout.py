"""The world that a user's folder of manifests describes.

If a folder has the layout of Google's microservices-demo, ``release/kubernetes-manifests.yaml`` and
a folder of network policies are read. In any other folder, every YAML and JSON file is read. The
reader uses workloads of one pod (deployments, replica sets, stateful sets, daemon sets, pods),
services, network policies and namespaces. Other kinds (config maps, ingresses, ...) do not affect
connections and are skipped. The policies define the intended state, as in all worlds.

Some documents are valid but cannot be part of a world: a service without a selector, pods on the
host's network, a job, a policy of another API group. Such documents are skipped and named in the
log. If a cluster would refuse a document, ConfigError is raised. Its message names the file, the
position of the document and the field.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeAlias, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from netarena.sdk import ConfigError
from netarena_k8s.embedded.apiserver.document import count_values, parse_documents
from netarena_k8s.embedded.apiserver.kind import NETWORK_POLICIES
from netarena_k8s.embedded.apiserver.shape import MistypedError, shape
from netarena_k8s.embedded.apiserver.validity import find_flaws
from netarena_k8s.world.generated_name import labels_by, letters_of
from netarena_k8s.world.model import (
    NAME_LABEL,
    App,
    Policy,
    Service,
    ServicePort,
    ServiceType,
    Workload,
    World,
    target_port,
)
from netarena_k8s.world.policy import Protocol, selects

_log = logging.getLogger(__name__)

KEY = "config.microservice_dir"
#: Environment variable that names the folder to which the image's entry point copied the manifests.
#: The original files may be readable only by root.
COPIES = "NETARENA_MANIFESTS"
#: maximum number of files in a checkout, and maximum number of bytes in all files together
MAX_FILES = 1000
MAX_BYTES = 8 << 20
#: Maximum number of values in all files, after alias expansion. Real manifests have far fewer.
MAX_VALUES = 200_000
#: Maximum number of applications. Every pair of applications is tested, and every step checks all
#: ports of each pair.
MAX_APPS = 50
#: maximum number of skipped documents that the log names
_MAX_NAMED = 10
#: file of manifests in microservices-demo, and its possible folders of policies (only the first
#: existing one is read)
_RELEASE = "release/kubernetes-manifests.yaml"
_POLICIES = ("network-policies", "kustomize/components/network-policies")
_SUFFIXES = (".yaml", ".yml", ".json")

_Name: TypeAlias = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=63)]
_Number: TypeAlias = Annotated[int, Field(ge=1, le=65_535)]
_Labels: TypeAlias = dict[str, str]


class _Part(BaseModel):
    """Base class of object parts, with the fields that this module uses. Other fields are ignored,
    and a null counts as a missing field."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="ignore",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: one for key, one in value.items() if one is not None}
        return value


class _Metadata(_Part):
    name: _Name
    namespace: str = ""
    labels: _Labels = Field(default_factory=dict)


class _TemplateMetadata(_Part):
    labels: _Labels = Field(default_factory=dict)


class _ContainerPort(_Part):
    container_port: _Number
    protocol: Protocol = "TCP"
    name: str = ""


class _Container(_Part):
    name: _Name
    image: str = ""
    ports: list[_ContainerPort] = Field(default_factory=list)


class _PodSpec(_Part):
    containers: list[_Container] = Field(min_length=1)
    service_account_name: str = "default"
    host_network: bool = False


class _Template(_Part):
    metadata: _TemplateMetadata
    spec: _PodSpec


class _Requirement(_Part):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = Field(default_factory=list)


class _Selector(_Part):
    match_labels: _Labels = Field(default_factory=dict)
    match_expressions: list[_Requirement] = Field(default_factory=list)


class _WorkloadSpec(_Part):
    selector: _Selector | None = None
    template: _Template


class _Workload(_Part):
    """A deployment, replica set, stateful set or daemon set."""

    metadata: _Metadata
    spec: _WorkloadSpec


class _Pod(_Part):
    metadata: _Metadata
    spec: _PodSpec


class _ServicePort(_Part):
    port: _Number
    target_port: _Number | str | None = None
    protocol: Protocol = "TCP"
    name: str = ""


class _ServiceSpec(_Part):
    type: str = "ClusterIP"
    selector: _Labels = Field(default_factory=dict)
    ports: list[_ServicePort] = Field(default_factory=list)
    cluster_ip: str = Field(default="", alias="clusterIP")


class _Service(_Part):
    metadata: _Metadata
    spec: _ServiceSpec


class _Namespace(_Part):
    metadata: _Metadata


class _Policy(_Part):
    metadata: _Metadata


_P = TypeVar("_P", bound=_Part)
_SERVICE_TYPES: Mapping[str, ServiceType] = {
    "ClusterIP": "ClusterIP",
    "NodePort": "NodePort",
    "LoadBalancer": "LoadBalancer",
}


@dataclass(frozen=True)
class _Document:
    """One manifest, with its file and its position in the file."""

    file: str
    number: int
    manifest: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The kind, or "" if the manifest has no kind."""
        kind = self.manifest.get("kind")
        return kind if isinstance(kind, str) else ""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Return the metadata, or an empty mapping if the document has no metadata."""
        metadata = self.manifest.get("metadata")
        return metadata if isinstance(metadata, Mapping) else {}

    def tell(self, problem: str, field: str = "") -> str:
        """Return a one-line text with the position of the document and its problem."""
        what = f"{self.kind} {self.metadata.get('name', '')}".strip()
        place = f"{self.file}, document {self.number}{f' ({what:.120})' if what else ''}"
        return f"{place}: {field}: {problem}" if field else f"{place}: {problem}"

    def refuse(self, problem: str, field: str = "") -> NoReturn:
        """Raise ConfigError with the position and the problem."""
        _refuse(self.tell(problem, field))

    def read(self, part: type[_P]) -> _P:
        """Return the manifest as an object of the class ``part``. Raises ConfigError for the first
        invalid field."""
        try:
            return part.model_validate(self.manifest)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            self.refuse(str(first["msg"])[:200], ".".join(map(str, first["loc"])))


class _Passed:
    """The skipped documents that could affect connections, and the number of other skipped
    documents of each kind."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self._kinds: Counter[str] = Counter()
        #: ``id`` of each skipped document
        self._skipped: set[int] = set()

    def add(self, document: _Document, why: str, field: str = "") -> None:
        self._told.append(document.tell(why, field))
        self._skipped.add(id(document))

    def count(self, document: _Document, kind: str) -> None:
        """Count a document of a kind that does not affect connections."""
        self._kinds[kind] += 1
        self._skipped.add(id(document))

    def others(self, documents: Iterable[_Document]) -> list[_Document]:
        """Return the documents that are not skipped."""
        return [one for one in documents if id(one) not in self._skipped]

    def log(self, folder: str) -> None:
        """Log the skipped documents in one line, as a warning if any could affect connections."""
        if not self._told and not self._kinds:
            return
        named = self._told[:_MAX_NAMED]
        if (more := len(self._told) - len(named)) > 0:
            named.append(f"{more} more")
        if self._kinds:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._kinds.items()))
            named.append(f"without an effect on connections: {kinds}")
        _log.log(
            logging.WARNING if self._told else logging.INFO,
            "microservice_dir %s: %d documents are skipped: %s",
            folder,
            len(self._told) + self._kinds.total(),
            "; ".join(named),
        )


def _refuse(problem: str) -> NoReturn:
    raise ConfigError(KEY, problem)


def _refuse_unread(name: str, error: OSError) -> NoReturn:
    _refuse(f"{name} cannot be read: {error.strerror} (user {os.geteuid()})")


def read_checkout(folder: str) -> World:
    """Return the world that a folder's manifests describe. The world is cached until a file
    changes.

    Raises ConfigError.
    """
    place = _find(folder)
    return _read(str(place), tuple((str(path), *_version(path)) for path in _choose(place)))


def read_workloads(folder: str) -> dict[str, Mapping[str, Any]]:
    """Return the original manifests of a folder's workloads by name. Raises ConfigError."""
    known = read_checkout(folder).by_name
    place = _find(folder)
    documents = _read_files(_choose(place), place, _Passed())
    return {
        one.manifest["metadata"]["name"]: {**one.manifest, "kind": _AS.get(one.kind, one.kind)}
        for one in documents
        if one.kind in {*get_args(Workload), *_AS} and one.manifest["metadata"]["name"] in known
    }


def digest_checkout(folder: str) -> str:
    """Return the SHA-256 digest of a folder's world in hex. Folders that describe the same world
    have the same digest.

    Raises ConfigError.
    """
    return hashlib.sha256(read_checkout(folder).model_dump_json().encode()).hexdigest()


def _find(folder: str) -> Path:
    """Return the folder, or the copy that the image's entry point made of it."""
    if copies := os.environ.get(COPIES):
        copy = Path(copies, folder.lstrip("/"))
        if copy.is_dir():
            return copy
    return Path(folder)


def _version(path: Path) -> tuple[int, int, int]:
    """Return the file's modification time in ns, its size in bytes and its inode number.

    At least one of them changes when the content changes.
    """
    try:
        status = path.stat()
    except OSError as error:
        _refuse_unread(path.name, error)
    return status.st_mtime_ns, status.st_size, status.st_ino


def _choose(folder: Path) -> list[Path]:
    """Return the files to read, sorted by path."""
    try:
        if not folder.is_dir():
            _refuse(f"{folder.name} does not exist or is not a folder")
        if (release := folder / _RELEASE).is_file():
            places = [folder / name for name in _POLICIES if (folder / name).is_dir()]
            return [release, *(_walk(places[0]) if places else [])]
        found = list(_walk(folder))
    except OSError as error:
        _refuse_unread(folder.name, error)
    if not found:
        _refuse(f"{folder.name} contains no YAML or JSON file")
    return found


def _walk(folder: Path) -> list[Path]:
    """Return the YAML and JSON files below a folder, except hidden files and links."""
    found: list[Path] = []
    waiting = [folder]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            if path.name.startswith(".") or path.is_symlink():
                continue
            if path.is_dir():
                waiting.append(path)
            elif path.suffix in _SUFFIXES and path.is_file():  # Opening a pipe would block.
                found.append(path)
            if len(found) > MAX_FILES or len(waiting) > MAX_FILES:
                _refuse(f"more than {MAX_FILES} files: choose a folder with only the manifests")
    return sorted(found)


@lru_cache(maxsize=4)
def _read(folder: str, files: tuple[tuple[str, int, int, int], ...]) -> World:
    if sum(size for _, _, size, _ in files) > MAX_BYTES:
        _refuse(f"the manifests have more than {MAX_BYTES >> 20} MiB")
    passed = _Passed()
    documents = _read_files([Path(name) for name, *_ in files], Path(folder), passed)
    apps = _apps(documents, passed)
    apps, others = _serve(apps, documents, passed)
    namespace = _namespace(passed.others(documents), passed)
    policies = _policies(documents, namespace)
    _check_size(apps, policies)
    passed.log(Path(folder).name)
    world = World(
        apps=tuple(apps.values()),
        policies=policies,
        services=others,
        labels=next(
            (_own_labels(one) for one in passed.others(documents) if one.kind == "Namespace"), {}
        ),
    )
    calls = tuple(
        (pair.source, pair.target)
        for pair, wanted in zip(world.pairs, world.intended, strict=True)
        if wanted
    )
    return world.model_copy(update={"calls": calls})


def _check_size(apps: Mapping[str, App], policies: Sequence[Policy]) -> None:
    if not policies:
        _refuse(
            "no NetworkPolicy among the manifests: network policies define the intended "
            f"communication (in microservices-demo, they must be in {' and '.join(_POLICIES)})"
        )
    if len(apps) > MAX_APPS:
        _refuse(f"{len(apps)} workloads; an application may have at most {MAX_APPS}")
    if len(apps) < 2 or not any(app.service for app in apps.values()):
        _refuse(
            "there is no connection to test: the manifests must have at least two workloads and a "
            "service of one of them"
        )


# Files


def _read_files(paths: Sequence[Path], folder: Path, passed: _Passed) -> list[_Document]:
    """Return the last document of each object in all files, and add skipped documents to
    ``passed``. Raises ConfigError."""
    found: list[_Document] = []
    left = MAX_VALUES
    for path in paths:
        documents, values, odd = _documents(path, folder, left)
        for one in documents:
            if reason := _unread(one):
                passed.add(one, *reason)
            elif one.kind not in _READ or _lacking(one.manifest):
                passed.count(one, one.kind or "no manifest")
            elif odd and (own := count_values(one.manifest, left)[1]):
                one.refuse(own)
            else:
                found.append(one)
        left -= values
    named: Counter[str] = Counter()
    return _last_applied([_named(one, named) for one in found], passed)


def _last_applied(documents: Sequence[_Document], passed: _Passed) -> list[_Document]:
    """Return only the last document of each object.

    ``kubectl apply -f`` reads files in the order of their names, and a later document replaces an
    earlier one. Raises ConfigError if a later document changes an immutable field.
    """
    last: dict[tuple[str, str, str], _Document] = {}
    for one in documents:
        key = (one.kind, str(one.metadata.get("namespace")), str(one.metadata.get("name")))
        before = last.get(key)
        last[key] = one
        if before is None:
            continue
        if before.manifest == one.manifest:
            passed.count(before, f"duplicate {one.kind}")
            continue
        for field in _FIXED.get(one.kind, ()):
            if _fixed(before.manifest, field) != _fixed(one.manifest, field):
                where = f"{before.file}, document {before.number}"
                one.refuse(
                    f"a cluster does not allow changes of this field: {where} contains the "
                    "same object with another value",
                    field,
                )
        passed.add(before, f"{one.file}, document {one.number}, replaces it")
    return list(last.values())


def _fixed(manifest: Mapping[str, Any], field: str) -> Any:
    """Return the immutable part of a field. For a pod's spec, it is everything except the
    images."""
    value: Any = manifest
    for key in field.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if field != _POD or not isinstance(value, Mapping):
        return value
    containers = value.get("containers")
    if not isinstance(containers, list):
        return value
    return {
        **value,
        "containers": [
            {key: part for key, part in one.items() if key != "image"}
            if isinstance(one, Mapping)
            else one
            for one in containers
        ],
    }


def _unread(document: _Document) -> tuple[str, str] | None:
    """Return the reason why a document that could affect connections is skipped, and the field that
    causes it.

    Returns None if the document is not skipped. Raises ConfigError for a kind that does not exist
    in the document's API version.
    """
    lacking = _lacking(document.manifest)
    if len(lacking) == 1:
        return f"it is not a manifest, because it has no {lacking[0]}", ""
    kind = document.kind
    if kind in _READ and not lacking:
        version = document.manifest["apiVersion"]
        group = version.rpartition("/")[0]
        # An item of a list may omit the API version.
        if version and group not in _READ[kind]:
            if "." in group:
                return f"the group {group:.80} is not the group of Kubernetes' {kind}", "apiVersion"
            document.refuse(f"{version!r:.80} has no {kind}", "apiVersion")
        if document.metadata.get("ownerReferences"):
            return "the owner of this object creates it", "metadata.ownerReferences"
    elif kind in _RUNNING:
        return "workloads of this kind are not read", "kind"
    elif kind.endswith(NETWORK_POLICIES.kind):
        return f"only policies of {NETWORK_POLICIES.api_version} are read", "kind"
    return None


def _named(document: _Document, named: Counter[str]) -> _Document:
    """Return the document. If it has ``generateName`` and no name, it gets a name that is the same
    in each run."""
    prefix = document.metadata.get("generateName")
    if not isinstance(prefix, str) or document.metadata.get("name"):
        return document
    named[prefix] += 1
    name = f"{prefix[:_MAX_PREFIX]}{letters_of(f'name {prefix} {named[prefix]}', 5)}"
    metadata = {**document.metadata, "name": name}
    return replace(document, manifest={**document.manifest, "metadata": metadata})


def _documents(path: Path, folder: Path, most: int) -> tuple[list[_Document], int, str]:
    """Return the manifests of a file, the number of their values, and a message about the first
    value that JSON does not support ("" if JSON supports all values).

    Raises ConfigError if the file is not YAML or has more than ``most`` values.
    """
    name = str(path.relative_to(folder))
    try:
        loaded, values, odd = parse_documents(path.read_text("utf-8-sig"), most, aliases=True)
    except ValueError as error:
        if most < MAX_VALUES and str(error).startswith("more than"):
            _refuse(
                f"the manifests up to {name} have more than {MAX_VALUES} values: choose a "
                "smaller folder"
            )
        _refuse(f"{name} cannot be read as YAML: {error}")
    except OSError as error:
        _refuse_unread(name, error)
    found: list[_Document] = []
    for number, one in enumerate(loaded, start=1):
        if isinstance(one, dict):
            found += _manifests(_Document(name, number, one))
    return found, values, odd


def _manifests(document: _Document) -> Iterator[_Document]:
    """Yield the document itself, or the items of the list that it contains.

    Items of a typed list, such as ``DeploymentList``, may omit their kind and API version.
    """
    own = document.kind.removesuffix(_LIST)
    known = own in {"", *_READ, *_RUNNING}
    if own == document.kind or not known or _lacking(document.manifest):
        yield document
        return
    items = document.manifest.get("items") or []
    if not isinstance(items, list):
        document.refuse("must be a list", "items")
    said = {"kind": own, "apiVersion": document.manifest.get("apiVersion")} if own else _UNSAID
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("kind", own or None), str):
            document.refuse("each item must be an object with a kind", "items")
        yield from _manifests(_Document(document.file, document.number, {**said, **item}))


def _lacking(manifest: Mapping[str, Any]) -> list[str]:
    """Return which of the keys ``kind`` and ``apiVersion`` a manifest lacks."""
    return [key for key in ("kind", "apiVersion") if not isinstance(manifest.get(key), str)]


# Objects


def _namespace(documents: Sequence[_Document], passed: _Passed) -> str:
    """Return the namespace that the objects name, or "" if they name no namespace.

    In the world, this namespace has another name. Namespace objects with other names are skipped.
    """
    spaces = [one for one in documents if one.kind == "Namespace"]
    objects = [one for one in documents if one.kind != "Namespace"]
    named = Counter(str(one.metadata.get("namespace") or "") for one in objects)
    del named[""]
    own = Counter(str(one.metadata.get("name") or "") for one in spaces)
    if named:
        named.update({name: count for name, count in own.items() if name in named})
        known = named.most_common(1)[0][0]
    else:
        # If no object names a namespace and several Namespace objects exist, the choice would be
        # arbitrary, so no namespace is chosen.
        known = next(iter(own)) if len(own) == 1 else ""
    for one in objects:
        space = one.metadata.get("namespace")
        if space and space != known:
            one.refuse(
                f"the manifests use the namespaces {space!r:.80} and {known!r:.80}, but only "
                "one namespace is allowed",
                "namespace",
            )
    for one in spaces:
        if one.metadata.get("name") != known:
            passed.add(one, "no object of the application is in this namespace", "metadata.name")
    return known


def _own_labels(document: _Document) -> _Labels:
    labels = document.read(_Namespace).metadata.labels
    return {key: value for key, value in labels.items() if key != NAME_LABEL}


def _apps(documents: Sequence[_Document], passed: _Passed) -> dict[str, App]:
    """Return the workloads by name, without their services."""
    found: dict[str, App] = {}
    for one in documents:
        if one.kind in {"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"}:
            app = _workload(one, passed)
        elif one.kind == "Pod":
            pod = one.read(_Pod)
            app = _app(one, pod.metadata.name, pod.metadata.labels, pod.spec, passed)
        else:
            continue
        if app is None:
            continue
        if app.name in found:
            one.refuse("another workload has this name", "metadata.name")
        found[app.name] = app
    return found


def _workload(document: _Document, passed: _Passed) -> App | None:
    read = document.read(_Workload)
    labels, selector = read.spec.template.metadata.labels, read.spec.selector
    if selector is None and not document.manifest["apiVersion"].endswith("v1beta1"):
        document.refuse("Field required", "spec.selector")
    # In ``v1beta1``, an omitted selector means the labels of the template.
    if selector is not None and not selects(selector.model_dump(by_alias=True), labels):
        document.refuse("does not match the labels of the template", "spec.selector")
    return _app(document, read.metadata.name, labels, read.spec.template.spec, passed)


def _app(
    document: _Document, name: str, labels: _Labels, spec: _PodSpec, passed: _Passed
) -> App | None:
    """Return an application, or None if no policy can select its pods."""
    if not labels:
        problem = "its pods have no label, so no policy can select them"
        passed.add(document, problem, "metadata.labels")
        return None
    if spec.host_network:
        passed.add(document, "no policy applies to pods on the host's network", "hostNetwork")
        return None
    first = spec.containers[0]
    ports = [port for container in spec.containers for port in container.ports]
    return App.model_validate(
        {
            "name": name,
            "labels": labels,
            "ports": [
                {"number": one.container_port, "protocol": one.protocol, "name": one.name}
                for one in ports
            ],
            "workload": _AS.get(document.kind, document.kind),
            "container": first.name,
            "image": first.image,
            "account": spec.service_account_name,
        }
    )


def _serve(
    apps: Mapping[str, App], documents: Sequence[_Document], passed: _Passed
) -> tuple[dict[str, App], tuple[Service, ...]]:
    """Return the workloads by name, each with the service that tests use, and all other
    services."""
    by_app: dict[str, list[Service]] = {}
    names: set[str] = set()
    for one in documents:
        if one.kind == "Service" and (service := _service(one, apps, passed)):
            if service.name in names:
                one.refuse("another service has this name", "metadata.name")
            names.add(service.name)
            by_app.setdefault(service.app, []).append(service)
    served, others = dict(apps), []
    for name, services in by_app.items():
        tested = min(services, key=lambda one: _fitness(one, name))
        others += [one for one in services if one is not tested]
        served[name] = apps[name].model_copy(
            update={
                "service": tested.ports,
                "service_name": "" if tested.name == name else tested.name,
                "service_type": tested.type,
            }
        )
    return served, tuple(others)


def _fitness(service: Service, app: str) -> tuple[bool, bool]:
    """Return a sort key for services of an application. Tests use the service with the smallest
    key."""
    return service.name != app, service.type in {"NodePort", "LoadBalancer"}


def _service(document: _Document, apps: Mapping[str, App], passed: _Passed) -> Service | None:
    """Return a service, or None if it is skipped because it selects no pod or names no port of the
    pod."""
    read = document.read(_Service)
    spec = read.spec
    headless = spec.cluster_ip == "None"
    if spec.type == "ExternalName" or not spec.selector or (headless and not spec.ports):
        passed.count(document, "Service without a selector")
        return None
    if spec.type not in _SERVICE_TYPES:
        document.refuse(
            f"{spec.type!r:.80} is not one of ClusterIP, NodePort, LoadBalancer", "spec.type"
        )
    if not spec.ports:
        document.refuse("a service must have at least one port", "spec.ports")
    app = next((one for one in apps.values() if spec.selector.items() <= _labels(one)), None)
    if app is None:
        passed.add(document, "no workload of the manifests has these labels", "spec.selector")
        return None
    ports = tuple(
        ServicePort(
            port=one.port,
            # The name of a headless service resolves to the pods, so no port is translated.
            target=one.port if headless or one.target_port is None else one.target_port,
            protocol=one.protocol,
            name=one.name,
        )
        for one in spec.ports
    )
    for number, port in enumerate(ports):
        if target_port(app, port) is None:
            owner = f"{app.workload} {app.name}"
            problem = f"{port.target!r:.80} is not a {port.protocol} port of {owner}"
            passed.add(document, problem, f"spec.ports.{number}.targetPort")
            return None
    return Service(
        name=read.metadata.name,
        app=app.name,
        ports=ports,
        type="Headless" if headless else _SERVICE_TYPES[spec.type],
    )


def _labels(app: App) -> ItemsView[str, str]:
    """Return the labels of the pods, including labels that their controller adds."""
    return labels_by(app.workload, app.name, app.labels).items()


def _policies(documents: Sequence[_Document], namespace: str) -> tuple[Policy, ...]:
    """Return the policies as the API stores them."""
    found: dict[str, Policy] = {}
    for one in documents:
        if one.kind != "NetworkPolicy":
            continue
        if one.manifest["apiVersion"] != NETWORK_POLICIES.api_version:
            one.refuse(f"must be {NETWORK_POLICIES.api_version}", "apiVersion")
        name = one.read(_Policy).metadata.name
        if name in found:
            one.refuse("another policy has this name", "metadata.name")
        sent = {**one.manifest, "metadata": {"name": name}}
        # Policies of older API versions have a status, which does not affect the allowed traffic.
        sent.pop("status", None)
        try:
            shaped = shape(NETWORK_POLICIES, sent)
        except MistypedError as error:
            one.refuse(str(error)[:200])
        if shaped.unknown:
            one.refuse(shaped.unknown[0])
        for _, message, field in find_flaws(shaped.object):
            one.refuse(message[:300], field)
        if namespace:
            _check_spaces(one, namespace, shaped.object["spec"])
        found[name] = Policy(name=name, spec=shaped.object["spec"])
    return tuple(found.values())


def _check_spaces(document: _Document, own: str, value: Any, *, within: bool = False) -> None:
    """Raise ConfigError if a policy selects its own namespace by name, because the world renames
    this namespace."""
    if isinstance(value, list):
        for one in value:
            _check_spaces(document, own, one, within=within)
    elif isinstance(value, dict):
        if within and own in {value.get(NAME_LABEL), *_values(value)}:
            document.refuse(
                f"{NAME_LABEL}={own}: the namespace has another name here; select the namespace "
                "by another of its labels, or omit the selector",
                "namespaceSelector",
            )
        for key, one in value.items():
            _check_spaces(document, own, one, within=within or key == "namespaceSelector")


def _values(expression: Mapping[str, Any]) -> Sequence[str]:
    """Return the values of a match expression whose key is the label with the namespace's name. For
    any other key, the result is empty."""
    return (expression.get("values") or ()) if expression.get("key") == NAME_LABEL else ()


#: suffix of the kind of a typed list, and the fields that an item of an untyped list may omit
_LIST = "List"
_UNSAID: Mapping[str, Any] = {"apiVersion": ""}
#: kind that is read -> its API groups; the core group is empty
_READ: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("Deployment", "ReplicaSet", "DaemonSet"), ("apps", "extensions")),
    "StatefulSet": ("apps",),
    **dict.fromkeys(("Pod", "Service", "Namespace"), ("",)),
    "NetworkPolicy": ("networking.k8s.io", "extensions"),
}
#: kind -> immutable fields of its objects
_POD = "spec"
_FIXED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"), ("spec.selector",)),
    "Pod": (_POD,),
    "Service": ("spec.clusterIP",),
}
#: kind of a workload -> its kind in a world
_AS: Mapping[str, str] = {"ReplicaSet": "Deployment"}
#: kinds of workloads that are not read, although policies could select their pods
_RUNNING = frozenset({"Job", "CronJob", "ReplicationController", "DeploymentConfig", "Rollout"})
#: maximum number of characters of ``generateName`` in a generated name
_MAX_PREFIX = 58
