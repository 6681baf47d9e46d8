"""Requirements of tests that not every machine meets, the order of tests, and shared fixtures.

    @pytest.mark.requires("landlock", "shared")
    def test_something(): ...

Within a test, the fixture ``requirement`` does the same: ``requirement("a2a03")``. If the machine
lacks a requirement, the test is skipped and the reason is printed. With
``NETARENA_REQUIRE=landlock,shared`` such a test fails instead (CI names all requirements that its
machine meets).
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The time of an example depends on the machine, so no deadline may fail a test. Parsers and
# evaluators that must withstand hostile input have more examples (tests/thorough.py).
settings.register_profile("netarena", deadline=None, max_examples=40)
# few examples with the second Python version, because the first one runs the usual number
settings.register_profile("brief", deadline=None, max_examples=15)
settings.load_profile("netarena")

ROOT = Path(__file__).parents[1]
#: Facts and samples next to the project on development machines; only tests read them.
SHARED_DATA = ROOT.parent / "shared" / "data"
#: Interpreter with version 0.3 of the A2A SDK; scripts/test makes its environment.
A2A03_PYTHON = ROOT / ".venv-a2a03" / "bin" / "python"

#: Interpreter with tools that read exports (Inspect, Harbor); scripts/test makes its environment.
READERS_PYTHON = ROOT / ".venv-readers" / "bin" / "python"

_SYS_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_CREATE_RULESET_VERSION = 1


def _lacks_landlock() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(
        _SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_CREATE_RULESET_VERSION
    )
    return "" if version >= 1 else f"the kernel has no landlock: {os.strerror(ctypes.get_errno())}"


def _lacks_seccomp() -> str:
    return (
        ""
        if Path("/proc/sys/kernel/seccomp/actions_avail").exists()
        else "the kernel has no seccomp filters"
    )


def _lacks_root() -> str:
    return "" if os.geteuid() == 0 else "only root may change the uid of a process"


def _lacks_shared() -> str:
    return "" if SHARED_DATA.is_dir() else "there is no ../shared/data next to the project"


def _make_environment(name: str) -> None:
    """Make or update ``.venv-NAME``, one process at a time; only within ``scripts/test``."""
    if os.environ.get("NETARENA_MAKE_ENVIRONMENTS"):
        script = ROOT / "scripts" / "test"
        with script.open() as locked:
            fcntl.flock(locked, fcntl.LOCK_EX)
            subprocess.run([script, "--environment", name], check=False)


def _lacks_a2a03() -> str:
    _make_environment("a2a03")
    return "" if A2A03_PYTHON.exists() else "there is no .venv-a2a03: scripts/test makes it"


def _lacks_readers() -> str:
    _make_environment("readers")
    return "" if READERS_PYTHON.exists() else "there is no .venv-readers: scripts/test makes it"


def _lacks_framework(name: str) -> str:
    """Return why the environment of a framework is missing; empty if it exists."""
    if name != "trl":
        _make_environment(name)
    made = (ROOT / f".venv-{name}" / "bin" / "python").exists()
    return "" if made else f"there is no .venv-{name}: scripts/venv .venv-{name} {name} makes it"


def _lacks_harbor() -> str:
    if lacking := _lacks_readers():
        return lacking
    found = next((ROOT / ".venv-readers" / "lib").glob("python*/site-packages/harbor"), None)
    return "" if found else "Harbor needs Python 3.12, and .venv-readers has an older one"


def _lacks_docker() -> str:
    docker = shutil.which("docker")
    if docker is None:
        return "there is no docker command"
    command = [docker, "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return "no Docker engine answers"
    return "" if done.returncode == 0 else "no Docker engine answers"


def _lacks_bwrap() -> str:
    from netarena.errors import EnvironmentFailed
    from netarena.sandbox import shell

    try:
        result = shell.run("true")
    except EnvironmentFailed as error:
        return str(error)
    return "" if result.exit == 0 else result.told


def _lacks_cell() -> str:
    from netarena.sandbox import cell

    return cell.lacking()


def _lacks_namespaces() -> str:
    """Return why the sandbox cannot use namespaces; empty if it can."""
    from netarena.sandbox import cell

    standing = cell.examine()
    return standing.lacking or standing.reduced


def _lacks_confinement() -> str:
    """Return why confinement without namespaces, with a recent landlock, is unavailable."""
    from netarena.sandbox import confinement, protection

    if lacking := confinement.lacking():
        return lacking
    version = protection.landlock_version()
    return "" if version >= protection.SCOPES_SINCE else f"landlock is of version {version}"


def _lacks_dataplane() -> str:
    from netarena_k8s.embedded.datapath import wired

    return wired.lacking()


def _lacks_episodes() -> str:
    """Return why episodes of routing cannot run; empty if all checks pass."""
    from netarena.model import Severity
    from netarena_route.diagnosis import DIAGNOSIS

    lacking = []
    # try twice, since attacks in tests that run at the same time may use up a probe's resources
    for _ in range(2):
        checks = DIAGNOSIS.diagnose()
        lacking = [check for check in checks if not check.ok and check.severity is Severity.RUN]
        if not lacking:
            break
        DIAGNOSIS.forget()
    return "; ".join(f"{check.name}: {check.detail}" for check in lacking)


def _lacks_netns() -> str:
    from netarena_network.real.client import lacking

    return lacking()


def _lacks_backbone() -> str:
    """Return why the router daemons of the backbone cannot run; empty if they can."""
    from netarena_backbone.real import frr
    from netarena_network.real.client import lacking

    return frr.missing() or lacking()


def _lacks_mininet() -> str:
    missing = [name for name in ("mnexec", "brctl", "ifconfig") if shutil.which(name) is None]
    return f"there is no {missing[0]} (apt-get install mininet)" if missing else ""


def _lacks_clients() -> str:
    """Return the first missing client program (curl, dig or logger); empty if all are installed."""
    missing = [name for name in ("curl", "dig", "logger") if shutil.which(name) is None]
    packages = "curl bind9-dnsutils bsdutils"
    return f"there is no {missing[0]} (apt-get install {packages})" if missing else ""


def _lacks_ipset() -> str:
    from netarena_network.real.ipset import lacking

    return lacking()


def _lacks_chromium() -> str:
    return "" if shutil.which("chromium") else "there is no chromium (apt-get install chromium)"


#: Kubeconfig of the cluster for tests. KUBECONFIG is unset, so that other tests, and the programs
#: that they start, do not use the cluster.
_ASIDE = "NETARENA_TEST_KUBECONFIG"  # worker processes of xdist inherit this variable
os.environ[_ASIDE] = os.environ.pop("KUBECONFIG", "") or os.environ.get(_ASIDE, "")
CLUSTER_KUBECONFIG = os.environ[_ASIDE]


def _lacks_cluster() -> str:
    from netarena.errors import ConfigError
    from netarena_k8s.real.context import current_context
    from netarena_k8s.real.diagnosis import examine

    if not CLUSTER_KUBECONFIG:
        return "KUBECONFIG names no cluster"
    os.environ["KUBECONFIG"] = CLUSTER_KUBECONFIG
    try:
        context = current_context(CLUSTER_KUBECONFIG)
        return "KUBECONFIG cannot be read" if context is None else examine(context, None)
    except ConfigError as error:
        return str(error)
    finally:
        del os.environ["KUBECONFIG"]


#: Requirement -> function that returns what the machine lacks, or an empty text.
REQUIREMENTS: dict[str, Callable[[], str]] = {
    "landlock": _lacks_landlock,
    "seccomp": _lacks_seccomp,
    "root": _lacks_root,
    "shared": _lacks_shared,
    "a2a03": _lacks_a2a03,
    "readers": _lacks_readers,
    **{
        name: partial(_lacks_framework, name)
        for name in ("gymnasium", "openenv", "trl", "verifiers", "ray")
    },
    "harbor": _lacks_harbor,
    "docker": _lacks_docker,
    "netns": _lacks_netns,
    "backbone": _lacks_backbone,
    "mininet": _lacks_mininet,
    "bwrap": _lacks_bwrap,
    "cell": _lacks_cell,
    "chromium": _lacks_chromium,
    "clients": _lacks_clients,
    "cluster": _lacks_cluster,
    "namespaces": _lacks_namespaces,
    "confinement": _lacks_confinement,
    "dataplane": _lacks_dataplane,
    "episodes": _lacks_episodes,
    "ipset": _lacks_ipset,
}


@cache
def lacking(name: str) -> str:
    """Return why the requirement ``name`` is not met; empty if it is met."""
    return REQUIREMENTS[name]()


def requirement(name: str) -> None:
    """Skip the running test unless ``name`` is met; fail it if ``NETARENA_REQUIRE`` names it."""
    if name not in REQUIREMENTS:
        pytest.fail(f"{name!r} is not one of {', '.join(REQUIREMENTS)}", pytrace=False)
    if reason := lacking(name):
        if name in _demanded():
            pytest.fail(f"NETARENA_REQUIRE names {name}, but {reason}", pytrace=False)
        pytest.skip(f"needs {name}: {reason}")


def _demanded() -> list[str]:
    return [name.strip() for name in os.environ.get("NETARENA_REQUIRE", "").split(",") if name]


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "of each module, only the first of every N tests: a look at another interpreter"
    parser.addoption("--every", type=int, default=1, metavar="N", help=text)


def pytest_configure(config: pytest.Config) -> None:
    if unknown := [name for name in _demanded() if name not in REQUIREMENTS]:
        message = f"NETARENA_REQUIRE: {unknown[0]!r} is not one of {', '.join(REQUIREMENTS)}"
        raise pytest.UsageError(message)
    if config.getoption("every") < 1:
        raise pytest.UsageError("--every: a whole number from 1 on")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Stop the additional tracing that pytest-cov 7.1 starts in each xdist worker.

    The results of this tracing are never read. The tracing would continue in addition to the
    worker's own tracing, even in tests that must not be traced.
    """
    control = _coverage(session.config)
    if control is not None and hasattr(session.config, "workerinput"):
        control.cov.stop()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep modules and test items out of the garbage collector.

    These objects exist until the process ends, and each full collection would visit a million of
    them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _coverage(config: pytest.Config) -> Any:
    """Return pytest-cov's controller, which starts and stops tracing; None without ``--cov``."""
    return getattr(config.pluginmanager.get_plugin("_cov"), "cov_controller", None)


#: Order of the folders: tests that wait most run first, and the many fast tests run last.
_FOLDERS = ("integration", "e2e", "contract", "unit", "")
#: Seconds of processor time for which the tests of a function are traced, over all its parameters.
#: Setup and call count separately.
_TRACED_S = 0.8
#: Seconds for which a test is traced after the tests of the same function have used up theirs.
_LEAST_TRACED_S = 0.15
#: Phase and function -> seconds for which its next tests may be traced.
_traced_left_s: dict[tuple[str, str], float] = {}
_NARROW_SCOPES = ("function", "session")


@pytest.hookimpl(tryfirst=True)  # must run before xdist, which reads groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose which tests are traced, and the process that runs each test (``--dist loadgroup``).

    Tracing makes Python three times as slow, so only fast tests are traced. Tests of one module
    run in one process, so that shared fixtures and queries are made only once. Tests that share
    more, such as the kernel's neighbour table or processor time, have a named group.
    """
    if (every := config.getoption("every")) > 1:
        modules: dict[Path, list[pytest.Item]] = {}
        for item in items:
            modules.setdefault(item.path, []).append(item)
        kept = {item for those in modules.values() for item in those[::every]}
        kept |= {item for item in items if item.get_closest_marker("every_python")}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    items.sort(key=_place)
    for item in filter(_folder, items):
        fast = _folder(item) in {"unit", "contract"}
        if not fast or item.get_closest_marker("slow"):
            item.add_marker("no_cover")
        if not item.get_closest_marker("xdist_group") and (fast or _shares_a_fixture(item)):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def _folder(item: pytest.Item) -> str:
    """Return the test's folder below tests/; empty for a test file that another test wrote."""
    return next((one for one in item.path.parts if one in _FOLDERS), "")


def _place(item: pytest.Item) -> tuple[int, bool, int]:
    # tests of the core run whole assessments, so they must not start at the end
    depth = len(item.path.parts)
    return _FOLDERS.index(_folder(item)), not item.get_closest_marker("slow"), depth


def _shares_a_fixture(item: pytest.Item) -> bool:
    info = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs.values() if info is not None else ()
    return any(each[-1].scope not in _NARROW_SCOPES for each in definitions if each)


@contextmanager
def _traced_briefly(item: pytest.Item, phase: str) -> Iterator[None]:
    """Context manager: stop tracing a test or its fixtures after a limited processor time.

    Tracing doubles the processor time of the whole run, mostly in loops of a few tests. Tests reach
    most of their lines early, and tests with other parameters reach mostly the same lines.
    """
    control = _coverage(item.config)
    if control is None or not control.started:
        yield
        return

    def stop_tracing(_signal: int, _frame: object) -> None:
        if control.started:
            control.pause()

    function = phase, item.nodeid.partition("[")[0]
    left_s = _traced_left_s.get(function, _TRACED_S)
    allowed_s = max(left_s, _LEAST_TRACED_S)
    before = signal.signal(signal.SIGPROF, stop_tracing)
    signal.setitimer(signal.ITIMER_PROF, allowed_s)
    try:
        yield
    finally:
        unused_s, _ = signal.setitimer(signal.ITIMER_PROF, 0)
        _traced_left_s[function] = left_s - (allowed_s - unused_s)
        signal.signal(signal.SIGPROF, before)
        if not control.started:
            control.resume()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _traced_briefly(item, "call"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _traced_briefly(item, "setup"):
        for marker in item.iter_markers("requires"):
            for name in marker.args:
                requirement(name)
        return (yield)


@pytest.fixture(name="requirement", scope="session")
def _requirement() -> Callable[[str], None]:
    return requirement


@pytest.fixture(name="lacking", scope="session")
def _lacking() -> Callable[[str], str]:
    return lacking


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder ../shared/data; skip the test if it is missing."""
    requirement("shared")
    return SHARED_DATA


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> str:
    """Set KUBECONFIG to the real cluster for this test; return the name of its context."""
    from netarena_k8s.real.context import current_context

    requirement("cluster")
    monkeypatch.setenv("KUBECONFIG", CLUSTER_KUBECONFIG)
    context = current_context(CLUSTER_KUBECONFIG)
    assert context is not None
    return context


@pytest.fixture(scope="session")
def a2a03_python() -> Path:
    """Return the interpreter of the environment with version 0.3 of the A2A SDK."""
    requirement("a2a03")
    return A2A03_PYTHON


@pytest.fixture(scope="session")
def readers_python() -> Path:
    """Return the interpreter of the environment with the tools that read exports."""
    requirement("readers")
    return READERS_PYTHON


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests only with asyncio, since the code does not support trio."""
    return "asyncio"
