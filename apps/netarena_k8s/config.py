"""Config keys of k8s, in addition to those of every application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, StrictBool, StrictInt, ValidationInfo, field_validator

from netarena.config import Briefing, shapes
from netarena.model import JsonValue
from netarena.task.label import FaultConfig
from netarena_k8s.source.checkout import digest_checkout

#: no context of a kubeconfig, but the cluster that comes with this application
EMBEDDED: Final = "embedded"
#: applications of a large shop
MIN_LARGE, MAX_LARGE = 20, 60
#: in a ticket: shops too large to be read whole
TICKET_LARGE = 40
_Size = Annotated[StrictInt, Field(ge=MIN_LARGE, le=MAX_LARGE)]


class KubernetesConfig(FaultConfig):
    """Keys of k8s; see the outside contract's table."""

    BUILT_IN: ClassVar[Mapping[str, str]] = {"microservice_dir": "/microservices-demo"}
    IN_TICKETS: ClassVar = {
        **FaultConfig.IN_TICKETS,
        "world": "varied",
        "num_apps": [TICKET_LARGE, MAX_LARGE],
    }

    #: Online Boutique, or a shop that is drawn from the seed
    world: Literal["standard", "varied"] = shapes(default="standard")
    #: of a drawn shop, at least and at most: a large one of teams and roles; none: a small one
    num_apps: tuple[_Size, _Size] | None = shapes(default=None)
    #: ``embedded``, or the context of a kubeconfig
    cluster: str = EMBEDDED
    #: refuses the embedded cluster
    require_cluster: StrictBool = False
    #: on a real cluster: one that all episodes take turns in; none: one for each episode
    namespace: str | None = Field(default=None, pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    #: on a real cluster: what runs in the pods, stand-ins or Online Boutique itself
    images: Literal["standin", "boutique"] = "standin"
    #: on the embedded cluster: how connections are measured
    datapath: Literal["evaluator", "netns"] = "evaluator"
    #: on the embedded cluster: whether a command that is one patch goes through kubectl, or to the
    #: API server at once, with the same result and output
    patches: Literal["kubectl", "direct"] = "kubectl"
    #: a folder of manifests that replaces Online Boutique; what they say shapes the queries
    microservice_dir: str | None = None

    @field_validator("num_apps", mode="before")
    @classmethod
    def _one_size(cls, value: Any) -> Any:
        return [value, value] if isinstance(value, int) else value

    @field_validator("num_apps")
    @classmethod
    def _sizes(cls, value: tuple[int, int] | None, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("world") == "standard":
            raise ValueError("only with world=varied")
        if value is not None and value[0] > value[1]:
            raise ValueError("the least first, then the most")
        return value

    @field_validator("microservice_dir")
    @classmethod
    def _one_world(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("world") == "varied":
            raise ValueError("only with world=standard, which it replaces")
        return value

    @classmethod
    def parse(cls, values: Any) -> Self:
        if isinstance(values, dict) and values.get("briefing") == Briefing.TICKET:
            # a shop that is given has the size that it has
            if values.get("microservice_dir") is not None:
                values = {"world": "standard", **values}
            if values.get("world") == "standard":
                values = {"num_apps": None, **values}
        return super().parse(values)

    def shape(self) -> dict[str, JsonValue]:
        shape = super().shape()
        if self.num_apps is None:
            del shape["num_apps"]
        if self.microservice_dir is not None:
            shape["microservice_dir"] = {"sha256": digest_checkout(self.microservice_dir)}
        return shape
