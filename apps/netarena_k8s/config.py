"""Config keys of the Kubernetes application, in addition to those of every application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, StrictBool, StrictInt, ValidationInfo, field_validator, model_validator

from netarena.sdk import Briefing, FaultConfig, JsonValue, shapes
from netarena_k8s.source.checkout import digest_checkout

#: name of the embedded cluster, which is part of this application and not a context of a kubeconfig
EMBEDDED: Final = "embedded"
#: smallest and largest number of applications of a large world
MIN_LARGE, MAX_LARGE = 20, 60
#: smallest number of applications in tickets; a world of this size is too large for an agent to
#: read completely
TICKET_LARGE = 40
_Size = Annotated[StrictInt, Field(ge=MIN_LARGE, le=MAX_LARGE)]


class KubernetesConfig(FaultConfig):
    """Config keys of the Kubernetes application, as described in docs/config.md."""

    BUILT_IN: ClassVar[Mapping[str, str]] = {"microservice_dir": "/microservices-demo"}
    IN_TICKETS: ClassVar = {
        **FaultConfig.IN_TICKETS,
        "world": "varied",
        "num_apps": [TICKET_LARGE, MAX_LARGE],
    }

    #: Online Boutique, or a random world from the seed
    world: Literal["standard", "varied"] = shapes(default="standard")
    #: smallest and largest number of applications of a random world with teams and roles; None: a
    #: small random world
    num_apps: tuple[_Size, _Size] | None = shapes(default=None)
    #: ``embedded``, or a context of the kubeconfig
    cluster: str = EMBEDDED
    #: whether a real cluster is required; if true, a run on the embedded cluster stops with an
    #: error
    require_cluster: StrictBool = False
    #: on a real cluster: one namespace that all episodes use in turn; None: a new namespace for
    #: each episode
    namespace: str | None = Field(default=None, pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    #: on a real cluster: images that the pods run: the stand-in, or the images in the manifests
    images: Literal["standin", "boutique"] = "standin"
    #: on the embedded cluster: how connections are measured
    datapath: Literal["evaluator", "netns"] = "evaluator"
    #: on the embedded cluster: whether a command that is a single patch runs in kubectl or goes
    #: directly to the API server; the result and the output are the same
    patches: Literal["kubectl", "direct"] = "kubectl"
    #: a folder of manifests that replaces Online Boutique; the manifests determine the queries
    microservice_dir: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_turns(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("world") == "varied":
            return {"max_iterations": None, **values}
        return values

    @field_validator("num_apps", mode="before")
    @classmethod
    def _one_size(cls, value: Any) -> Any:
        return [value, value] if isinstance(value, int) else value

    @field_validator("num_apps")
    @classmethod
    def _sizes(cls, value: tuple[int, int] | None, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("world") == "standard":
            raise ValueError("must be null unless world is 'varied'")
        if value is not None and value[0] > value[1]:
            raise ValueError("must be [minimum, maximum], with the smaller number first")
        return value

    @field_validator("microservice_dir")
    @classmethod
    def _one_world(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("world") == "varied":
            raise ValueError("must be null unless world is 'standard'")
        return value

    @classmethod
    def parse(cls, values: Any) -> Self:
        if isinstance(values, dict) and values.get("briefing") == Briefing.TICKET:
            # The manifests determine the number of applications.
            if values.get("microservice_dir") is not None:
                values = {"world": "standard", **values}
            if values.get("world") == "standard":
                values = {"num_apps": None, **values}
        return super().parse(values)

    def defaults(self) -> Mapping[str, JsonValue]:
        own: dict[str, JsonValue] = {"max_iterations": None} if self.world == "varied" else {}
        return {**super().defaults(), **own}

    def shape(self) -> dict[str, JsonValue]:
        shape = super().shape()
        if self.num_apps is None:
            del shape["num_apps"]
        if self.microservice_dir is not None:
            shape["microservice_dir"] = {"sha256": digest_checkout(self.microservice_dir)}
        return shape
