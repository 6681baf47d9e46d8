"""Reports about machines with missing features, and configs refused there."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import Severity
from netarena.sandbox.namespace import NamespaceUnavailable
from netarena.sandbox.shell import CommandResult
from netarena_backbone.config import BackboneConfig
from netarena_backbone.diagnosis import DIAGNOSIS as BACKBONE
from netarena_network import diagnosis
from netarena_network.diagnosis import INSTALL, PACKAGES, Need
from netarena_route.config import RouteConfig
from netarena_route.diagnosis import DIAGNOSIS
from netarena_route.fault.table import PAPER_KINDS, one_of_each
from netarena_route.world.model import standard, varied
from netarena_route.world.path import Plan

Lack = Callable[..., None]
ROOT = Path(__file__).parents[3]


@pytest.fixture(name="lack")
def _lack(monkeypatch: pytest.MonkeyPatch) -> Lack:
    """Make these requirements fail on this machine."""

    def lack(**failed: str) -> None:
        found = {name.replace("_", " "): why for name, why in failed.items()}
        for one in (DIAGNOSIS, BACKBONE):
            monkeypatch.setattr(one, "_found", found)

    lack()
    return lack


def test_fully_equipped_machine_passes_all_checks(lack: Lack) -> None:
    checks = DIAGNOSIS.diagnose()
    assert all(check.ok and not check.remedy for check in checks)
    assert {"namespaces", "bubblewrap", "netem", "mininet"} <= {check.name for check in checks}
    for emulator in ("mininet", "netns"):
        DIAGNOSIS.check(RouteConfig(emulator=emulator, netem=True, error_types=("extended",)))


def test_missing_privileges_are_reported_with_the_docker_flags(lack: Lack) -> None:
    lack(namespaces="unshare: Operation not permitted")
    _, first, *rest = DIAGNOSIS.diagnose()
    assert (first.ok, first.severity) == (False, Severity.RUN)
    assert "docker run --privileged" in first.remedy
    assert not rest
    with pytest.raises(ConfigError) as caught:
        DIAGNOSIS.check(RouteConfig())
    said = str(caught.value)
    assert "unshare: Operation not permitted" in said
    assert "docker run --privileged" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("name", "needs_it", "does_without", "field"),
    [
        ("user_namespaces", {}, None, ""),
        ("bubblewrap", {}, None, ""),
        ("iptables", {}, None, ""),
        ("netem", {"netem": True}, {}, "netem"),
        ("mininet", {}, {"emulator": "netns"}, "emulator"),
        ("nft", {"error_types": ["extended"]}, {}, "error_types"),
        # settings that isolate reserve machines may be of any fault kind, so every kind must work
        ("nft", {"world": "varied"}, {"error_types": ["remove_ip"]}, "error_types"),
        (
            "iptables_extensions",
            {"error_types": ["disable_routing", "remove_ip+stray_route"]},
            {"error_types": ["disable_routing", "disable_interface+remove_ip"]},
            "error_types",
        ),
    ],
)
def test_machine_without_a_feature_is_refused_only_for_configs_that_need_it(
    name: str,
    needs_it: dict[str, Any],
    does_without: dict[str, Any] | None,
    field: str,
    lack: Lack,
) -> None:
    lack(**{name: "not here"})
    with pytest.raises(ConfigError, match="not here") as caught:
        DIAGNOSIS.check(RouteConfig.model_validate(needs_it))
    assert caught.value.field == field
    if does_without is not None:
        DIAGNOSIS.check(RouteConfig.model_validate(does_without))
    (found,) = (check for check in DIAGNOSIS.diagnose() if not check.ok)
    assert found.detail == "not here"
    assert found.remedy


def test_machine_without_routing_daemons_is_refused_for_backbones_only(lack: Lack) -> None:
    lack(FRR="not here")
    with pytest.raises(
        ConfigError, match="this machine does not support FRR: not here; apt-get"
    ) as caught:
        BACKBONE.check(BackboneConfig(emulator="netns"))
    assert caught.value.field == "world"
    (found,) = (check for check in BACKBONE.diagnose() if not check.ok)
    assert (found.name, found.severity) == ("FRR", Severity.RUN)
    DIAGNOSIS.check(RouteConfig())
    assert all(check.ok for check in DIAGNOSIS.diagnose())


def test_missing_programs_are_reported_with_one_install_command(lack: Lack) -> None:
    lack(programs="not installed: ip, tc", bubblewrap="no", mininet="no")
    *_, programs = DIAGNOSIS.diagnose()
    # programs that could not be tried are not reported as ok
    assert (programs.name, programs.ok, programs.severity) == ("programs", False, Severity.RUN)
    assert programs.remedy == INSTALL
    with pytest.raises(ConfigError, match="not installed: ip, tc; apt-get update && apt-get inst"):
        DIAGNOSIS.check(RouteConfig())
    # programs are not reported as ok either if the sandbox does not work
    lack(bubblewrap="the sandbox could not be started: no rights")
    names = [each.name for each in DIAGNOSIS.diagnose()]
    assert names == ["user namespaces", "namespaces", "bubblewrap"]


def test_too_low_limit_of_user_namespaces_is_reported_with_the_sysctl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnosis, "most_user_namespaces", lambda: 1031)
    assert DIAGNOSIS.few() == {
        "user namespaces": "user.max_user_namespaces is 1031; the largest network needs 1032"
    }
    monkeypatch.setattr(diagnosis, "most_user_namespaces", lambda: 1032)
    assert not DIAGNOSIS.few()


def test_machine_with_too_few_user_namespaces_is_refused_in_one_line(lack: Lack) -> None:
    lack(user_namespaces="user.max_user_namespaces is 0; the largest network needs 1032")
    first, _ = DIAGNOSIS.diagnose()
    assert first.remedy == "sysctl -w user.max_user_namespaces=65536 on the host"
    with pytest.raises(ConfigError, match="is 0; the largest network needs 1032; sysctl"):
        DIAGNOSIS.check(RouteConfig())


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        ("nft add table: bash: line 1: nft: command not found", INSTALL),
        ("nft add table: Operation not supported", "use a kernel with nf_tables"),
    ],
)
def test_remedy_matches_the_failed_check(why: str, remedy: str, lack: Lack) -> None:
    lack(nft=why)
    (found,) = (each for each in DIAGNOSIS.diagnose() if not each.ok)
    assert found.remedy == remedy
    with pytest.raises(ConfigError) as caught:
        DIAGNOSIS.check(RouteConfig(world="varied", num_switches=3))
    assert str(caught.value).endswith(f"; {remedy}")


def test_missing_agent_tools_are_reported_only_as_a_note(
    lack: Lack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: None if name in {"jq", "ip"} else name)
    assert DIAGNOSIS.absent() == {
        "programs": "not installed: ip",
        "agents' tools": "not installed: jq",
    }
    lack(**{"agents' tools": "not installed: jq"})
    (found,) = (each for each in DIAGNOSIS.diagnose() if not each.ok)
    assert (found.severity, found.remedy) == (Severity.NOTE, INSTALL)
    DIAGNOSIS.check(RouteConfig())


def test_listed_packages_equal_those_of_the_image_and_the_documentation() -> None:
    packages = (ROOT / "requirements" / "route.debian").read_text().split()
    assert list(PACKAGES) == packages
    for page in ("README.md", "docs/route.md"):
        assert f"\n{INSTALL}\n" in (ROOT / page).read_text(), page


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        (json.dumps({"netem": "no"}).encode(), {"netem": "no"}),
        (b"Traceback", {"namespaces": "the test failed: Expecting value"}),
    ],
)
def test_output_of_the_trial_process_is_parsed(
    printed: bytes, found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    DIAGNOSIS.forget()
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess((), 0, printed)
    )
    try:
        got = DIAGNOSIS.failures()
        assert got.keys() == found.keys()
        assert all(got[name].startswith(found[name]) for name in found)
    finally:
        DIAGNOSIS.forget()


@pytest.mark.parametrize(
    ("inside", "found"),
    [
        ([("netem", "unknown")], {"netem": "unknown"}),
        (NamespaceUnavailable("no view of processes"), {"namespaces": "no view of processes"}),
        (
            SystemExit(0),
            {"namespaces": "a process in new namespaces ends immediately"},
        ),
    ],
)
def test_results_of_the_isolated_trial_are_returned(
    inside: Any, found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def isolate() -> int:
        if pid := os.fork():
            return pid
        if isinstance(inside, NamespaceUnavailable):
            raise inside
        if isinstance(inside, SystemExit):
            os._exit(0)
        return -1

    monkeypatch.setattr(diagnosis, "isolate", isolate)
    monkeypatch.setattr(DIAGNOSIS, "try_inside", lambda: inside)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    assert DIAGNOSIS.try_all() == found


def test_missing_namespace_privilege_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def isolate() -> int:
        raise NamespaceUnavailable("unshare: Operation not permitted")

    monkeypatch.setattr(diagnosis, "isolate", isolate)
    assert DIAGNOSIS.try_all() == {"namespaces": "unshare: Operation not permitted"}


#: features in a command that a kernel may lack: matches, targets and tables of iptables, hooks and
#: families of nftables, queue disciplines, policy rules
_FEATURE = re.compile(
    r" -[mjt] \w+|--(?:ctstate|length|icmp-type|[sd]port)\b|nft add table \w+|hook \w+|root \w+"
    r"|^ip rule"
)


@pytest.mark.parametrize("seed", range(3))
def test_every_kernel_feature_that_a_fault_needs_is_tried(seed: int) -> None:
    tried: dict[str, set[str]] = {"": set()}
    for need in DIAGNOSIS._needs:
        for command in need.commands:
            tried.setdefault(need.key, set()).update(_FEATURE.findall(command))
    for make in (standard, varied):
        world = make(3, 2, random.Random(seed))
        entries = [f"iptables {entry}" for entry in world.router.filters]
        entries += ["ip rule"] * bool(world.router.rules)
        found = {"": {name for entry in entries for name in _FEATURE.findall(entry)}}
        for fault in one_of_each(Plan(world), random.Random(seed)):
            key = "" if fault.kind in PAPER_KINDS else "error_types"
            for order in fault.inject:
                found.setdefault(key, set()).update(_FEATURE.findall(order.command))
        assert found[""] <= tried[""]
        assert found["error_types"] <= tried[""] | tried["error_types"]
        assert {" -j DROP", "root tbf"} <= found[""]
        assert {" -m conntrack", "nft add table netdev"} <= found["error_types"]


@pytest.mark.requires("bwrap", "root")
def test_each_need_is_tried_in_a_separate_network_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = [
        Need("bridge", ("ip link add t9 type bridge", "ip link show t9"), ""),
        Need("another", ("ip link show t9",), ""),
    ]
    monkeypatch.setattr(DIAGNOSIS, "_needs", needs)
    found: dict[str, str] = {}
    # a thread has its own network namespaces
    thread = threading.Thread(target=lambda: found.update(DIAGNOSIS.try_inside()))
    thread.start()
    thread.join()
    assert found.keys() == {"another"}
    assert "does not exist" in found["another"]


@pytest.mark.parametrize(
    "ends",
    [EnvironmentFailed("not started: no rights"), CommandResult("not started: no rights", 1)],
)
def test_broken_sandbox_is_reported(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> CommandResult:
        if isinstance(ends, Exception):
            raise ends
        return ends

    monkeypatch.setattr(diagnosis.shell, "run", run)
    ((name, why),) = DIAGNOSIS.try_inside()
    assert name == "bubblewrap"
    assert "no rights" in why


@pytest.mark.requires("episodes")
def test_doctor_passes_on_this_machine() -> None:
    assert not [
        check for check in DIAGNOSIS.diagnose() if not check.ok and check.severity is Severity.RUN
    ]
