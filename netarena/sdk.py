"""The public interface for applications: the only module of the core that they import.

    from netarena.sdk import Application, Environment, Execution, Judgement, Query

Tests of an application also import ``netarena.testing``. docs/extend.md shows complete
applications. ``_NAMES`` groups the names by purpose. A name is loaded on first use, so that helper
processes of an application load only the modules that they use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

#: Public names by module.
_NAMES = {
    # the interface of an application
    "netarena.task.application": "Application Drawer Drawn Environment Labelled",
    "netarena.task.reactive": "Reactive Repair broken size_of_world world_reader",
    "netarena.task.label": "COUNTED Catalogue EXTENDED FaultConfig JOINT kinds_of read_labels",
    "netarena.task.repair_order": "hasty_orders places safe_orders unmasked",
    "netarena.task.identity": "read_id",
    "netarena.config": "Briefing Config limits shapes",
    # records: queries, moves, states, judgements, episodes
    "netarena.model": (
        "Action Cause Check Claim Cleaned Episode Execution Failure FailureKind Finding "
        "JsonValue Judgement Move Outcome Outline Query Record Refusal Severity State Step"
    ),
    # errors, by the side at fault
    "netarena.errors": "ConfigError EnvironmentFailed NetArenaError ReplyRefused one_line suggest",
    # scripted agents, prompts, tickets and tools
    "netarena.task.baseline": "Baselines",
    "netarena.task.prompt": (
        "CommandLimits Example MAX_LOGGED_CHARS MAX_OUTPUT_CHARS MAX_TICKET_OUTPUT_CHARS "
        "PromptParts clip read_examples read_text tell_harm tell_turns"
    ),
    "netarena.task.ticket": (
        "MAX_CAUSES MAX_SYMPTOMS NO_CHANGE Sights Tickets check_causes read_change tell_ticket"
    ),
    "netarena.task.tool": "Parameter Tool Tools fence",
    # parsing of replies
    "netarena.task.reasoning": "Found ends_of is_kept read_answer",
    "netarena.task": "command_line",
    "netarena.task.simple_command": "SimpleCommand read_commands",
    # pictures of states for users
    "netarena.task.picture": (
        "Change Chart Column Difference Link Mark Matrix Node Picture Pictures Segment Topology"
    ),
    # evidence: data that an agent can read without sending a probe
    "netarena.task.evidence": "Candidate Evidence RULE relative",
    # sandboxes: commands and programs of agents, daemons, namespaces, warm processes
    "netarena.sandbox": "cell namespace shell",
    "netarena.sandbox.cell": "Admit CELL_LIMITS Cell Keep",
    "netarena.sandbox.shell": (
        "CommandResult Room SHELL_ENVIRONMENT ShellLimits command_environment entered "
        "user_namespace"
    ),
    "netarena.sandbox.python": (
        "PythonLimits PythonSandbox PythonStatus SandboxResult check_python_sandbox"
    ),
    "netarena.sandbox.daemon": "Confined family",
    "netarena.sandbox.namespace": (
        "NamespaceUnavailable current_network isolate lacking leave_network "
        "most_user_namespaces mount_memory network_files new_network process_files"
    ),
    "netarena.sandbox.child": "Forker Forking Talk program surroundings try_out",
    "netarena.sandbox.fork": "Forks",
    "netarena.sandbox.worker": "Servant",
    "netarena.sandbox.caller": "Caller",
    # helpers
    "netarena.aio": "Background finish",
    "netarena.cache": "Kept Memo",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_HOMES]  # noqa: PLE0604 -- a computed list of names

if TYPE_CHECKING:  # a test compares this with _NAMES
    # fmt: off
    # isort: off
    from netarena.task.application import (
        Application as Application, Drawer as Drawer, Drawn as Drawn,
        Environment as Environment, Labelled as Labelled,
    )
    from netarena.task.reactive import (
        Reactive as Reactive, Repair as Repair, broken as broken,
        size_of_world as size_of_world, world_reader as world_reader,
    )
    from netarena.task.label import (
        COUNTED as COUNTED, Catalogue as Catalogue, EXTENDED as EXTENDED,
        FaultConfig as FaultConfig, JOINT as JOINT, kinds_of as kinds_of,
        read_labels as read_labels,
    )
    from netarena.task.repair_order import (
        hasty_orders as hasty_orders, places as places, safe_orders as safe_orders,
        unmasked as unmasked,
    )
    from netarena.task.identity import read_id as read_id
    from netarena.config import (
        Briefing as Briefing, Config as Config, limits as limits, shapes as shapes,
    )
    from netarena.model import (
        Action as Action, Cause as Cause, Check as Check, Claim as Claim,
        Cleaned as Cleaned, Episode as Episode, Execution as Execution, Failure as Failure,
        FailureKind as FailureKind, Finding as Finding, JsonValue as JsonValue,
        Judgement as Judgement, Move as Move, Outcome as Outcome, Outline as Outline,
        Query as Query, Record as Record, Refusal as Refusal, Severity as Severity,
        State as State, Step as Step,
    )
    from netarena.errors import (
        ConfigError as ConfigError, EnvironmentFailed as EnvironmentFailed,
        NetArenaError as NetArenaError, ReplyRefused as ReplyRefused, one_line as one_line,
        suggest as suggest,
    )
    from netarena.task.baseline import Baselines as Baselines
    from netarena.task.prompt import (
        CommandLimits as CommandLimits, Example as Example,
        MAX_LOGGED_CHARS as MAX_LOGGED_CHARS, MAX_OUTPUT_CHARS as MAX_OUTPUT_CHARS,
        MAX_TICKET_OUTPUT_CHARS as MAX_TICKET_OUTPUT_CHARS, PromptParts as PromptParts,
        clip as clip, read_examples as read_examples, read_text as read_text,
        tell_harm as tell_harm, tell_turns as tell_turns,
    )
    from netarena.task.ticket import (
        MAX_CAUSES as MAX_CAUSES, MAX_SYMPTOMS as MAX_SYMPTOMS, NO_CHANGE as NO_CHANGE,
        Sights as Sights, Tickets as Tickets, check_causes as check_causes,
        read_change as read_change, tell_ticket as tell_ticket,
    )
    from netarena.task.tool import (
        Parameter as Parameter, Tool as Tool, Tools as Tools, fence as fence,
    )
    from netarena.task.reasoning import (
        Found as Found, ends_of as ends_of, is_kept as is_kept, read_answer as read_answer,
    )
    from netarena.task import command_line as command_line
    from netarena.task.simple_command import (
        SimpleCommand as SimpleCommand, read_commands as read_commands,
    )
    from netarena.task.picture import (
        Change as Change, Chart as Chart, Column as Column, Difference as Difference,
        Link as Link, Mark as Mark, Matrix as Matrix, Node as Node, Picture as Picture,
        Pictures as Pictures, Segment as Segment, Topology as Topology,
    )
    from netarena.task.evidence import (
        Candidate as Candidate, Evidence as Evidence, RULE as RULE, relative as relative,
    )
    from netarena.sandbox import cell as cell, namespace as namespace, shell as shell
    from netarena.sandbox.cell import (
        Admit as Admit, CELL_LIMITS as CELL_LIMITS, Cell as Cell, Keep as Keep,
    )
    from netarena.sandbox.shell import (
        CommandResult as CommandResult, Room as Room,
        SHELL_ENVIRONMENT as SHELL_ENVIRONMENT, ShellLimits as ShellLimits,
        command_environment as command_environment, entered as entered,
        user_namespace as user_namespace,
    )
    from netarena.sandbox.python import (
        PythonLimits as PythonLimits, PythonSandbox as PythonSandbox,
        PythonStatus as PythonStatus, SandboxResult as SandboxResult,
        check_python_sandbox as check_python_sandbox,
    )
    from netarena.sandbox.daemon import Confined as Confined, family as family
    from netarena.sandbox.namespace import (
        NamespaceUnavailable as NamespaceUnavailable, current_network as current_network,
        isolate as isolate, lacking as lacking, leave_network as leave_network,
        most_user_namespaces as most_user_namespaces, mount_memory as mount_memory,
        network_files as network_files, new_network as new_network,
        process_files as process_files,
    )
    from netarena.sandbox.child import (
        Forker as Forker, Forking as Forking, Talk as Talk, program as program,
        surroundings as surroundings, try_out as try_out,
    )
    from netarena.sandbox.fork import Forks as Forks
    from netarena.sandbox.worker import Servant as Servant
    from netarena.sandbox.caller import Caller as Caller
    from netarena.aio import Background as Background, finish as finish
    from netarena.cache import Kept as Kept, Memo as Memo
    # isort: on
    # fmt: on

else:  # with __getattr__, a type checker would treat every name as Any

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = import_module(_HOMES[name])
        if hasattr(home, "__path__"):  # a package: ``name`` is a submodule, which must be loaded
            import_module(f"{home.__name__}.{name}")
        found = globals()[name] = getattr(home, name)
        return found


def __dir__() -> list[str]:
    return __all__
