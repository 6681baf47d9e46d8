"""The Kubernetes application, which combines the modules of this package and defines the keys of
its records."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Self, cast

from netarena.sdk import (
    COUNTED,
    EXTENDED,
    MAX_LOGGED_CHARS,
    MAX_TICKET_OUTPUT_CHARS,
    Action,
    Baselines,
    Briefing,
    Catalogue,
    Cause,
    Cell,
    Check,
    Claim,
    Cleaned,
    CommandLimits,
    Config,
    ConfigError,
    Drawer,
    Environment,
    EnvironmentFailed,
    Episode,
    Evidence,
    JsonValue,
    Judgement,
    Move,
    Parameter,
    Picture,
    Pictures,
    PromptParts,
    Query,
    Reactive,
    Repair,
    State,
    Step,
    Tickets,
    Tool,
    Tools,
    clip,
    fence,
    size_of_world,
)
from netarena_k8s import (
    change,
    declaration,
    diagnosis,
    evidence,
    kubectl,
    picture,
    prompt,
    query,
    refusal,
    reply,
    solution,
    state,
    ticket,
    twin,
)
from netarena_k8s.agent import attack, guess, heuristic, triage
from netarena_k8s.cluster import NAMESPACE, Cluster
from netarena_k8s.config import EMBEDDED, KubernetesConfig
from netarena_k8s.embedded.cluster import Embedded
from netarena_k8s.embedded.datapath.wired import Wired
from netarena_k8s.environment import KubernetesEnvironment
from netarena_k8s.fault import mask
from netarena_k8s.fault import table as fault
from netarena_k8s.kubectl import LIMITS
from netarena_k8s.real import diagnosis as real
from netarena_k8s.real.context import current_context
from netarena_k8s.source.checkout import read_workloads
from netarena_k8s.state import namespace_of
from netarena_k8s.world.model import World

_TOLD_LIMITS = CommandLimits(
    round(LIMITS.wall_s), prompt.MAX_OUTPUT_CHARS, prompt.MAX_HISTORY_CHARS
)
_TICKET_LIMITS = replace(_TOLD_LIMITS, output_chars=MAX_TICKET_OUTPUT_CHARS)
_KUBECTL = Tool(
    name="kubectl",
    about="Run one kubectl command line on the cluster, and see what it printed.",
    parameters=(Parameter(name="command", about="Such as: kubectl get networkpolicies"),),
)


class _Baselines(Baselines):
    """Scripted agents of the Kubernetes application."""

    floors: ClassVar[tuple[str, ...]] = ("noop", "random", "blanket")

    def random_reply(self, query: Query, rng: random.Random) -> str:
        return guess.distract(_world(query), rng)

    def hostile_replies(self) -> Sequence[str]:
        return attack.attacks()

    def blanket_replies(self, answers: Sequence[Query]) -> Sequence[str]:
        del answers
        return guess.blanket(NAMESPACE)

    def solved_unseen_by(self, config: Config) -> str | None:
        """Return the agent that solves queries without reading them: "blanket" for Online Boutique,
        whose intended policies never change, otherwise None."""
        shop = cast("KubernetesConfig", config)
        boutique = shop.world == "standard" and shop.microservice_dir is None
        return "blanket" if boutique else None

    def heuristic_operator(self, briefing: Briefing = Briefing.FULL) -> Callable[[str], str]:
        return triage.Triage().reply if briefing is Briefing.TICKET else heuristic.Operator().reply


class _Tickets(Tickets):
    """Tickets of the Kubernetes application."""

    def prompt(
        self, query: Query, state: State, steps: Sequence[Step], rng: random.Random
    ) -> PromptParts:
        return ticket.ticket_parts(query, namespace_of(state), steps, _TICKET_LIMITS, rng)

    def declaration(self, move: Move) -> Claim | None:
        return declaration.claim_of(move)

    def declare(self, causes: Sequence[Cause]) -> str:
        return solution.fenced(declaration.write_claim(causes))

    def causes(self, query_: Query) -> Sequence[Cause]:
        return declaration.causes_of([(one.policy, one.kind) for one in query.faults_of(query_)])

    def resolve(self, query_: Query, causes: Sequence[Cause]) -> Sequence[Cause]:
        """Return the declared causes, with each equivalent of an injected cause replaced by the
        injected cause."""
        return twin.as_injected(_world(query_), query.faults_of(query_), causes)

    def leftover(self, query_: Query, episode: Episode) -> Sequence[str]:
        """Return one line for each policy that would make a connection wrong even if all other
        policies were as intended."""
        states = [episode.initial_state, *(step.state for step in episode.steps)]
        last = [one for one in states if one is not None][-1:]
        return [line for one in last for line in _leftover(query_, one)]


def _leftover(query_: Query, state_: State) -> list[str]:
    """Return the lines of ``state.leftover`` for the policies that the query's faults change."""
    policies = [one.policy for one in query.faults_of(query_)]
    return state.leftover(_world(query_), policies, state_)


class _Tools(Tools):
    """The tool through which agents run kubectl commands."""

    def kinds(self, config: Config) -> Sequence[Tool]:
        del config
        return (_KUBECTL,)

    def reply(self, tool: str, values: Mapping[str, str]) -> str:
        del tool
        return fence(values["command"])


class _Pictures(Pictures):
    """Pictures of states of the Kubernetes application."""

    def draw(self, query: Query, episode: Episode, number: int) -> Sequence[Picture]:
        return picture.draw(_world(query), episode, number)


class Kubernetes(Reactive):
    """Reactive repair of network policies, with one kubectl command per turn, until every
    connection is as intended."""

    name: ClassVar[str] = "k8s"
    version: ClassVar[str] = query.VERSION
    prompt_version: ClassVar[int] = 7
    role: ClassVar[str] = "k8s_operator"
    title: ClassVar[str] = "NetArena Kubernetes: repair of network policies"
    summary: ClassVar[str] = (
        "Evaluates an agent that repairs the network policies of an application in a Kubernetes "
        "cluster. Each task injects different faults. In each turn, the agent sees which "
        "connections are not as intended, and runs one kubectl command. A repair is correct if all "
        "connections are as intended at the end. It is safe if no command broke a connection that "
        "worked or allowed traffic that must be blocked."
    )
    config_type: ClassVar[type[Config]] = KubernetesConfig
    catalogue: ClassVar[Catalogue] = fault.CATALOGUE
    scales: ClassVar[Mapping[str, Sequence[JsonValue]]] = MappingProxyType(
        {"num_apps": (None, [20, 20], [40, 40])}
    )
    notes: ClassVar[tuple[str, ...]] = (state.NARROWED,)
    baselines: Baselines = _Baselines()
    tickets: Tickets = _Tickets()
    tools: Tools = _Tools()
    pictures: Pictures = _Pictures()

    def __init__(self, **options: bool) -> None:
        super().__init__(**options)
        self._stack = AsyncExitStack()
        self._clusters: dict[tuple[str | None, ...], Cluster] = {}
        self._measured: Wired | None = None
        self._cell: Cell | None = None

    async def __aenter__(self) -> Self:
        """Start the API server's process and the process that forks commands.

        Real clusters start with their first episode.
        """
        self._cell = Cell(kubectl.programs())
        self._stack.push_async_callback(self._cell.close)
        embedded = self._cluster(EMBEDDED)
        # The agent card is served even if commands cannot run for lack of permissions. ``check``
        # reports the missing permissions for each task, and each environment tries again to start
        # them.
        with suppress(EnvironmentFailed):
            await embedded.start()
            await self._cell.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cell = self._measured = None
        self._clusters.clear()
        await self._stack.aclose()

    def variants(self, config: Config) -> Sequence[Config]:
        """Return configs for the main kinds of worlds and of faults. Keys that ``config`` sets keep
        their values."""
        shop, fixed = cast("KubernetesConfig", config), config.model_fields_set
        told = "world" in fixed or shop.microservice_dir is not None
        worlds = [shop.world] if told else ["standard", "varied"]
        families = (
            [shop.error_types] if "error_types" in fixed else [None, (EXTENDED,), fault.COMBINED]
        )
        return [
            shop.model_copy(
                update={
                    "world": world,
                    "error_types": types,
                    "max_iterations": None
                    if world == "varied" and "max_iterations" not in fixed
                    else shop.max_iterations,
                }
            )
            for world in worlds
            for types in families
        ]

    def look(self, query: Query) -> str:
        del query
        return solution.look()

    def repairs(self, query: Query) -> Sequence[Sequence[Repair]]:
        return solution.repairs(query)

    def waits(self, query_: Query) -> Sequence[Collection[int]]:
        return fault.waits(query.faults_of(query_))

    def doubts(self, query_: Query) -> Sequence[str]:
        """Return the requirements that the query's faults do not meet.

        Each fault by itself must change the measurement, and every permitted repair order must be
        safe. A masked fault must not change the measurement while the masking fault exists.
        """
        return mask.doubts(_world(query_), query.faults_of(query_))

    def version_of(self, config: Config) -> str:
        labels = cast("KubernetesConfig", config).error_types or ()
        return query.COUNTED_VERSION if any(one in COUNTED for one in labels) else query.VERSION

    def versions(self) -> Mapping[str, str]:
        return {query.VERSION: "named kinds of faults", query.COUNTED_VERSION: "numbers of faults"}

    def labels(self, config: Config) -> Collection[str]:
        return query.labels(cast("KubernetesConfig", config))

    def drawer(self, config: Config) -> Drawer:
        return query.drawer(cast("KubernetesConfig", config))

    def count_wrong(self, query: Query, state_: State) -> int:
        return state.count_wrong(_world(query), state_)

    def count_left(self, query: Query, state_: State) -> int:
        return len(_leftover(query, state_))

    def count_tested(self, query: Query) -> int:
        """Return the number of tested connections: all pairs, and the other intended
        connections."""
        return len(_world(query).pairs) + len(_world(query).uses)

    def configures(self, move: Move) -> bool:
        return change.changes(str(move))

    def comes_to_nothing(self, step: Step) -> bool:
        return refusal.came_to_nothing(step)

    def describe(self, action: Action) -> str:
        return fault.describe(action)

    def prompt(self, query: Query, state: State, steps: Sequence[Step]) -> PromptParts:
        world, namespace = _world(query), namespace_of(state)
        return prompt.prompt_parts(query, world, namespace, state, steps, _TOLD_LIMITS)

    async def evidence(self, query_: Query, config: Config) -> Evidence | None:
        """Return the features of all policies, as the cluster shows the policies: suspicious forms
        and metadata."""
        del config
        return evidence.evidence(query_)

    def parse(self, reply_: str) -> Move:
        return reply.read_reply(reply_)

    def environment(self, query: Query, config: Config) -> Environment:
        if self._cell is None:
            raise EnvironmentFailed(
                "the application is not started: use it inside 'async with'", proven_ours=True
            )
        shop = cast("KubernetesConfig", config)
        if (taken := self._taken(shop)) is not None:
            raise EnvironmentFailed(taken, proven_ours=True)
        cluster = self._cluster(shop.cluster, shop.namespace, _own(shop))
        if shop.datapath == "netns":
            cluster = self._wired(cluster)
        direct = shop.patches == "direct"
        return KubernetesEnvironment(query, cluster, self._cell, direct=direct)

    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        return state.judge(_world(query), initial, before, after, false_alarm=not query.actions)

    def record(self, query: Query, episode: Episode) -> dict[str, JsonValue]:
        return {
            "error_type": query.label,
            "error_detail": [
                {
                    # Patches are left out of records, because a patch shows how to repair its
                    # fault.
                    **fault.fault_of(action).model_dump(mode="json", exclude={"inject", "repair"}),
                    "fault": fault.describe(action),
                }
                for action in query.actions
            ],
            "iterations": episode.iterations,
            "success": episode.correct,
            "safe": episode.safe,
            **(
                {}
                if episode.claimed is None
                else {"leftover": [*self.tickets.leftover(query, episode)]}
            ),
            state.NARROWED: [
                line for step in episode.steps for line in _detail(step).get(state.NARROWED, [])
            ],
            "results": [_result(_world(query), step) for step in episode.steps],
        }

    def diagnose(self) -> Sequence[Check]:
        return diagnosis.diagnose()

    def diagnose_elsewhere(self) -> Sequence[Check]:
        """Return checks of the cluster that KUBECONFIG names. The cluster may be unreachable."""
        return real.diagnose(os.environ)

    def check(self, config: Config) -> None:
        shop = cast("KubernetesConfig", config)
        diagnosis.check(shop)
        if shop.require_cluster and shop.cluster == EMBEDDED:
            raise ConfigError(
                "config.require_cluster",
                f"is set, but the run would use {self.venue(shop)}; set cluster to a context, or "
                "set KUBECONFIG to a readable file before netarena serve",
            )
        real.check(shop)
        if (taken := self._taken(shop)) is not None:
            raise ConfigError("namespace", taken)

    def venue(self, config: Config) -> str:
        """Return the name of the cluster. If the embedded cluster is used in place of the cluster
        of KUBECONFIG, the reason is included."""
        shop = cast("KubernetesConfig", config)
        if shop.cluster != EMBEDDED:
            return f"the cluster {shop.cluster}"
        return f"the embedded cluster{real.why_embedded(os.environ)}"

    def fair_turns(self, query_: Query) -> int:
        return -(-size_of_world(query_, "apps") // 5) + 5

    def exclusive(self, config: Config) -> str:
        shop = cast("KubernetesConfig", config)
        if shop.cluster == EMBEDDED:
            return ""
        return f"a single process must own the namespaces of the cluster {shop.cluster}"

    def programs(self) -> Mapping[str, Sequence[str]]:
        return {"kubectl": [str(kubectl.program()), "version", "--client"]}

    def typical_s(self, config: Config) -> float:
        """Return the typical duration of a query in s, as measured in docs/evidence/k8s.md and
        docs/evidence/cluster.md.
        """
        return 0.5 if cast("KubernetesConfig", config).cluster == EMBEDDED else 10.0

    def defaults(self, environ: Mapping[str, str]) -> Mapping[str, JsonValue]:
        """Return default values of the config: the cluster that KUBECONFIG names, if the file is
        readable."""
        if not environ.get("KUBECONFIG"):
            return {}
        context = current_context(environ["KUBECONFIG"])
        return {} if context is None else {"cluster": context}

    def clean(self, environ: Mapping[str, str]) -> Cleaned:
        """Delete namespaces left by services that have ended, on the cluster that KUBECONFIG
        names."""
        context = self.defaults(environ).get("cluster")
        if context is None:
            raise ConfigError("KUBECONFIG", "must be the path of a readable kubeconfig")
        from netarena_k8s.real.cluster import clean

        return asyncio.run(clean(str(context)))

    def _taken(self, shop: KubernetesConfig) -> str | None:
        """Return why the configured namespace cannot be used, or None if it can be used.

        Only one set of workloads can exist in a namespace, because its deployment removes any other
        set.
        """
        here = (shop.cluster, shop.namespace)
        if shop.namespace is None or not any(
            (name, namespace) == here and folder != _own(shop)
            for name, namespace, folder in self._clusters
        ):
            return None
        told = f"another task of this service runs other images in the namespace {shop.namespace}"
        return f"{told}; choose another namespace"

    def _cluster(
        self, name: str, namespace: str | None = None, folder: str | None = None
    ) -> Cluster:
        """Return the cluster that all episodes with these arguments share. It stops when the
        application stops.

        ``folder`` contains the manifests of workloads that run in place of the stand-ins.
        """
        key = (name, namespace, folder)
        if key not in self._clusters:
            if name == EMBEDDED:
                made: Cluster = Embedded()
            else:
                # This import takes a second and is needed only for real clusters.
                from netarena_k8s.real.cluster import RealCluster

                workloads = None if folder is None else read_workloads(folder)
                made = RealCluster(name, namespace, workloads)
            self._stack.push_async_callback(made.stop)
            self._clusters[key] = made
        return self._clusters[key]

    def _wired(self, inner: Cluster) -> Cluster:
        """Return the cluster that tests pairs in network namespaces. All episodes share it."""
        if self._measured is None:
            self._measured = Wired(inner)
            self._stack.push_async_callback(self._measured.stop)
        return self._measured


def _world(query_: Query) -> World:
    return query.world_of(query_)


def _result(world: World, step: Step) -> dict[str, JsonValue]:
    """Return the record of one turn in the format of the reference implementation, with the turn's
    effects."""
    known = _detail(step)
    findings = step.judgement.findings if step.judgement is not None else ()
    touched: list[JsonValue] = [one.detail for one in findings if one.rule == "object_touched"]
    return {
        "llm_command": step.move or f"No command: {step.refused or 'there was no reply'}",
        "output": clip(step.output, MAX_LOGGED_CHARS),
        "mismatch_summary": "" if step.state is None else state.report(world, step.state),
        **{key: known.get(key, []) for key in ("broke", "healed", "opened", "exposed")},
        **{key: known[key] for key in ("midway", state.NARROWED) if key in known},
        **({"touched": touched} if touched else {}),
    }


def _detail(step: Step) -> Mapping[str, Any]:
    """Return the detail of a step's judgement, or an empty mapping if the step was not judged."""
    detail = step.judgement.detail if step.judgement is not None else None
    return detail if isinstance(detail, dict) else {}


def _own(shop: KubernetesConfig) -> str | None:
    """Return the folder whose workloads replace the stand-ins, or None."""
    return shop.microservice_dir if shop.images == "boutique" else None
