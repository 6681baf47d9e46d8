"""The keys of k8s beside those that every application has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from netarena.config import Config, shapes
from netarena.label import read_labels
from netarena.model import JsonValue
from netarena_k8s.checkout import digest_checkout

#: no context of a kubeconfig, but the cluster that comes with this application
EMBEDDED: Final = "embedded"


class KubernetesConfig(Config):
    """Keys of k8s; see the outside contract's table."""

    BUILT_IN: ClassVar[Mapping[str, str]] = {"microservice_dir": "/microservices-demo"}

    #: kinds of fault, ``+`` joins a combination; none: the paper's kinds and their pairs
    error_types: tuple[str, ...] | None = shapes(default=None)
    #: Online Boutique, or a shop that is drawn from the seed
    world: Literal["standard", "varied"] = shapes(default="standard")
    #: ``embedded``, or the context of a kubeconfig
    cluster: str = EMBEDDED
    #: on a real cluster: one that all episodes take turns in; none: one for each episode
    namespace: str | None = Field(default=None, pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    #: on a real cluster: what runs in the pods, stand-ins or Online Boutique itself
    images: Literal["standin", "boutique"] = "standin"
    #: on the embedded cluster: how connections are measured
    datapath: Literal["evaluator", "netns"] = "evaluator"
    #: a folder of manifests that replaces Online Boutique; what they say shapes the queries
    microservice_dir: str | None = None

    @field_validator("error_types", mode="before")
    @classmethod
    def _error_types(cls, value: Any) -> Any:
        return read_labels(value)

    @field_validator("microservice_dir")
    @classmethod
    def _one_world(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("world") == "varied":
            raise ValueError("only with world=standard, which it replaces")
        return value

    def shape(self) -> dict[str, JsonValue]:
        shape = super().shape()
        if self.microservice_dir is not None:
            shape["microservice_dir"] = {"sha256": digest_checkout(self.microservice_dir)}
        return shape
