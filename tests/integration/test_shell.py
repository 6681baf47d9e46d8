"""The shell sandbox with its processes: permissions of commands, limits, and cleanup."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from netarena.errors import EnvironmentFailed
from netarena.sandbox import shell
from netarena.sandbox.namespace import current_network, leave_network
from netarena.sandbox.shell import CommandResult, ShellLimits, run
from netarena.sandbox.syntax import REFUSED, STATUS
from netarena_network.real import guard
from netarena_network.real.guard import Guard

pytestmark = pytest.mark.requires("bwrap")

END_S = 60.0
SECRET = "correct-horse-battery-staple"


@pytest.fixture(name="netns", scope="module")
def _netns() -> Iterator[int]:
    """Yield a network namespace with both ends of a cable; only root can create the namespace
    here."""
    made: list[int] = []

    def make() -> None:  # a thread can have its own network namespace, which ends with the thread
        leave_network()
        made.append(current_network())

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not made:
        pytest.skip("only root may make a network namespace outside of a user namespace")
    result = run(
        "ip link set lo up; ip link add v0 type veth peer name v1; ip link set v0 up; "
        "ip link set v1 up; ip addr add 10.5.0.1/24 dev v0",
        netns=made[0],
    )
    assert result == CommandResult("", 0)
    yield made[0]
    os.close(made[0])


def processes_with(mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line and folder.name != str(os.getpid()):
                found.append(folder.name)
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.01)


def test_output_and_errors_and_status_are_returned_in_order() -> None:
    result = run("echo one; echo two >&2; echo thr\u00e9e; exit 3")
    assert result == CommandResult("one\ntwo\nthr\u00e9e\n", 3)


def test_command_can_have_many_lines() -> None:
    command = "for i in 1 2; do\n  cat <<END\n$i 'x' \"y\"\nEND\ndone | sort -r | tr 1 3"
    assert run(command).output == "2 'x' \"y\"\n3 'x' \"y\"\n"


def test_command_killed_by_a_signal_has_exit_status_128_plus_the_signal() -> None:
    assert run("kill -TERM $$").exit == 128 + signal.SIGTERM


def test_command_can_access_only_the_sandbox_and_not_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NETARENA_TEST_SECRET", SECRET)
    seen = run(
        "env; cat /proc/*/environ; ls -a / /etc /tmp /run /dev/shm /usr/local; hostname; "
        "ls -d /proc/[0-9]*; ls /proc/self/fd",
        hostname="p12_h1",
    ).output
    assert SECRET not in seen
    assert "p12_h1\n" in seen
    assert not {"root", "home", "sys", "var"} & set(seen.split())
    assert seen.count("/proc/") < 9
    assert seen.endswith("0\n1\n2\n3\n")


def test_kernel_wide_counters_are_masked() -> None:
    names = "loadavg stat softirqs interrupts schedstat vmstat pressure/cpu sys/fs/file-nr"
    seen = run(
        f"cd /proc; for n in {names}; do [ -e $n ] && cat $n; done | tr -d 'a-z \\n'; echo; "
        "uptime > /dev/null && free > /dev/null && ps ax > /dev/null && top -bn1 > /dev/null && "
        "nproc; cat /proc/schedstat > /tmp/x; echo 1 > /proc/loadavg"
    )
    shown, processors, *_ = seen.output.splitlines()
    assert int(processors) == len(os.sched_getaffinity(0))
    # the files contain only zeros, numbers of processors, and constants of their formats
    assert not re.search(r"[2-9]\d{2}", shown), shown
    assert seen.exit != 0


def test_command_without_a_network_has_only_loopback_and_no_capabilities() -> None:
    seen = run("ip -o link; grep CapEff /proc/self/status; ip link add v2 type bridge").output
    assert seen.count(": <") == 1
    assert "0000000000000000" in seen
    assert "not permitted" in seen
    assert run("sysctl -w net.ipv4.ip_forward=1").exit != 0


def test_command_in_a_given_network_has_two_capabilities(netns: int) -> None:
    result = run(
        "ip addr show dev v0 | grep -c 10.5.0.1; grep CapEff /proc/self/status; "
        "sysctl -w net.ipv4.ip_forward=1; iptables -A INPUT -j ACCEPT; iptables-legacy -S INPUT; "
        "tc qdisc add dev v1 root pfifo limit 3; ping -c 1 -W 1 10.5.0.1 | grep -c ' 0% packet'; "
        "nft list ruleset | grep -c 'hook input'",
        netns=netns,
    )
    assert result.exit == 0, result.told
    assert result.output.splitlines()[:3] == [
        "1",
        "CapEff:\t0000000000003000",
        "net.ipv4.ip_forward = 1",
    ]
    assert result.output.splitlines()[-2:] == ["1", "1"]
    # the test's own network has not changed
    assert (
        "10.5.0.1"
        not in subprocess.run(["ip", "addr"], capture_output=True, text=True, check=True).stdout
    )
    assert run("sysctl -w kernel.core_pattern=x || cat /tmp/x", netns=netns).exit != 0


def test_thread_leaves_the_namespace_after_an_exception(netns: int) -> None:
    before = Path("/proc/thread-self/ns/net").readlink()
    with suppress(ZeroDivisionError), shell.entered(netns):
        assert Path("/proc/thread-self/ns/net").readlink() != before
        raise ZeroDivisionError
    assert Path("/proc/thread-self/ns/net").readlink() == before


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("yes", "it wrote more than"),
        (
            "for i in 1 2 3 4 5 6; do head -c 60M /dev/zero | tail -n 1 | sleep 99 & done; wait",
            "it holds more than 256 MiB",
        ),
        (
            'python3 -c \'for i in range(10**7): open(f"/tmp/{i}", "w")\'',
            "it made more than 4096 files in /tmp",
        ),
    ],
)
def test_command_above_a_watched_limit_is_stopped_with_the_reason(command: str, why: str) -> None:
    result = run(command, limits=ShellLimits(wall_s=60))
    assert why in result.stopped
    assert (result.exit, result.timed_out) == (None, False)


def test_kernel_limits_bound_memory_processes_and_files() -> None:
    small = ShellLimits(
        wall_s=60,
        memory_bytes=64 << 20,
        processes=20,
        file_bytes=1 << 20,
        open_files=32,
    )
    assert "MemoryError" in run("python3 -c 'bytearray(99 << 20)'", limits=small).output
    bomb = "import os, time\nwhile True:\n    os.fork() or time.sleep(99)"
    # the limit of processes must apply first, so the memory limit is larger than twenty processes
    # need
    few = ShellLimits(wall_s=60, processes=20, memory_bytes=1 << 30)
    assert "Resource temporarily unavailable" in run(f"python3 -c '{bomb}'", limits=few).output
    sizes = run("head -c 2M /dev/zero > /tmp/x; stat -c %s /tmp/x", limits=small).output
    assert "1048576" in sizes
    assert run("head -c 2M /dev/zero > /dev/shm/x", limits=ShellLimits()).exit != 0
    kept = run("python3 -c 'x = [open(\"/dev/null\") for _ in [0] * 40]'", limits=small)
    assert "Too many open files" in kept.output


def test_process_above_its_cpu_time_ends_the_command_with_the_reason() -> None:
    few = ShellLimits(wall_s=60, cpu_s=0.2)
    result = run("echo begun; while :; do :; done & sleep 50", limits=few)
    assert result.told == "begun\n[stopped: a process used more than 0.2 s of CPU time]\n"
    assert (result.exit, result.timed_out) == (None, False)
    # the limit applies to each process, not to the total of all
    several = "for i in 1 2 3 4; do timeout -s KILL 0.1 bash -c 'while :; do :; done'; done"
    assert run(f"{several}; echo done", limits=few).output.endswith("done\n")


def test_expired_time_ends_the_command_with_all_its_processes() -> None:
    mark = f"mark-{os.getpid()}-time"
    result = run(
        f"trap '' TERM; echo begun; (exec -a {mark} sleep 999) & wait; sleep 999",
        limits=ShellLimits(wall_s=0.5),
    )
    assert (result.exit, result.timed_out) == (None, True)
    # on a busy machine the time may be over before the command prints
    assert result.told.removeprefix("begun\n") == "[stopped: it ran for 0.5 s]\n"
    assert processes_with(mark) == []


@pytest.fixture(name="over_at_a_word")
def _over_at_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time limit of commands expire as soon as they have written some output."""
    written = threading.Event()
    add, runs_out = shell.Kept.add, shell.Clock.runs_out
    deadline = time.monotonic() + END_S

    def heard(kept: shell.Kept, chunk: bytes) -> None:
        add(kept, chunk)
        written.set()

    def late(clock: shell.Clock) -> bool:
        return (written.is_set() or time.monotonic() > deadline) and runs_out(clock)

    monkeypatch.setattr(shell.Kept, "add", heard)
    monkeypatch.setattr(shell.Clock, "runs_out", late)


@pytest.mark.usefixtures("over_at_a_word")
@pytest.mark.parametrize(
    ("command", "output", "asked_first_s"),
    [
        ("trap 'echo asked; exit' INT; echo begun; sleep 99 & wait", "begun\nasked\n", END_S),
        (
            "trap '' INT; trap 'echo asked; exit' TERM; echo begun; sleep 99 & wait",
            "begun\nasked\n",
            0.1,
        ),
        # grep buffers 4 KiB of output before it writes to a pipe
        ("echo begun | (cat; sleep 99) | grep begun", "begun\n", END_S),
    ],
)
def test_command_whose_time_has_expired_is_interrupted_first_and_its_output_is_kept(
    command: str, output: str, asked_first_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a busy machine may be too slow for the usual half second
    first, last = (number for number, _ in shell.ASKS)
    monkeypatch.setattr(shell, "ASKS", ((first, asked_first_s), (last, END_S)))
    result = run(command, limits=ShellLimits(wall_s=0))
    assert result == CommandResult(output, None, timed_out=True, stopped="it ran for 0 s")


@pytest.mark.usefixtures("over_at_a_word")
def test_interrupted_ping_prints_its_statistics(netns: int) -> None:
    silent = "ip neigh replace 10.5.0.9 lladdr 02:00:00:00:00:09 nud permanent dev v0"
    command = f"{silent}; ping -c 2 10.5.0.9"
    # an immediate interrupt could come before ping handles the signal
    result = run(command, netns=netns, limits=ShellLimits(wall_s=0.5))
    assert result.output.startswith("PING 10.5.0.9")
    assert "0 received, 100% packet loss" in result.output
    assert result.timed_out


def test_daemon_that_a_command_started_ends_with_the_command() -> None:
    mark = f"mark-{os.getpid()}-daemon"
    result = run(
        f"(setsid nohup bash -c 'trap \"\" TERM HUP; exec -a {mark} sleep 999' "
        ">/dev/null 2>&1 < /dev/null &); sleep 999 & disown; echo done"
    )
    assert result == CommandResult("done\n", 0)
    assert processes_with(mark) == []


def test_command_and_its_background_processes_share_one_session() -> None:
    """The scheduler gives each session as much CPU time as any other."""
    of_session = "cut -d ' ' -f 6 /proc/self/stat"
    behind = f'(setsid bash -c "{of_session}; touch /tmp/told" &)'
    # only the command itself waits for its background processes
    told = "until [ -e /tmp/told ]; do sleep 0.01; done"
    result = run(f"{of_session}; {behind}; setsid setsid -w {of_session}; {told}; wait")
    assert len(set(result.output.split())) == 1
    assert result.output.count("\n") == 3


def test_files_of_a_command_are_removed_when_it_ends() -> None:
    run("echo evil > /tmp/x; echo evil > /run/x")
    assert run("cat /tmp/x /run/x 2> /dev/null | wc -c").output == "0\n"


def test_watcher_function_can_stop_the_command() -> None:
    seen: list[int] = []

    def watch(pid: int) -> str:
        seen.append(pid)
        return "enough" if len(seen) == 3 else ""

    result = run("sleep 999", watch=watch)
    assert result.told == "[stopped: enough]\n"
    assert len(set(seen)) == 1
    assert not Path(f"/proc/{seen[0]}").exists()


def test_long_output_keeps_its_beginning_and_end() -> None:
    result = run("seq 10000", limits=ShellLimits(output_bytes=1000))
    assert result.exit == 0
    assert result.output.startswith("1\n2\n3\n")
    assert result.output.endswith("9999\n10000\n")
    assert "lines left out" in result.output
    assert len(result.output) < 1100


def test_command_is_killed_when_its_caller_dies(tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}-orphan"
    program = (
        "from netarena.sandbox.shell import run\n"
        f"run('(setsid bash -c \"exec -a {mark} sleep 999\" &); exec -a {mark} sleep 999')"
    )
    caller = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path)
    try:
        wait_for(lambda: len(processes_with(f"{mark}\0999")) == 2)
    finally:
        caller.kill()
        caller.wait()
    wait_for(lambda: processes_with(f"{mark}\0999") == [])


def guarded(netns: int, command: str) -> tuple[CommandResult, str]:
    one = Guard(netns, neighbours=3)
    result = run(command, netns=netns, limits=ShellLimits(wall_s=60), watch=one.watch)
    return result, one.calm()


def neighbours(netns: int) -> int:
    return int(run("ip neigh | grep -vc PERMANENT", netns=netns).output)


def test_packet_flood_is_stopped_regardless_of_the_command(netns: int) -> None:
    send = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nwhile True: "
    result, note = guarded(netns, f'python3 -c \'{send}s.sendto(b"", ("10.5.0.1", 9))\'')
    assert result.stopped == "it sent more than 1000 packets per second"
    assert note == ""


def test_diagnostic_traffic_is_not_a_flood(netns: int) -> None:
    result, note = guarded(netns, "for i in $(seq 20); do ping -c 9 -i 0.002 10.5.0.1; done")
    assert (result.exit, result.stopped, note) == (0, "", "")


def test_arp_table_is_limited_and_flushed(netns: int) -> None:
    guarded(netns, "ip neigh add 10.5.0.9 lladdr 02:00:00:00:00:09 nud permanent dev v0")
    add = "neigh replace 10.5.1.$i lladdr 02:00:00:00:00:01 nud reachable dev v0"
    lines = f"for i in $(seq 250); do echo {add}; done > /tmp/b"
    result, note = guarded(netns, f"{lines}; ip -batch /tmp/b; sleep 999")
    assert result.stopped == "its machine has more than 134 ARP table entries"
    assert note == "the ARP table was flushed"
    assert neighbours(netns) == 0
    result, note = guarded(netns, f"{lines}; head -n 50 /tmp/b | ip -batch -")
    assert (result.exit, note) == (0, "")
    assert neighbours(netns) == 50
    assert "10.5.0.9" in run("ip neigh", netns=netns).output


def test_broadcast_storm_is_stopped(netns: int) -> None:
    build = (
        "for b in 1 2; do ip link add bridge$b type bridge; ip link set bridge$b up; done; "
        "for v in 1 2; do ip link add x$v type veth peer name y$v; "
        "ip link set x$v master bridge1; ip link set y$v master bridge2; "
        "ip link set x$v up; ip link set y$v up; done; ip addr add 10.77.0.1/24 dev bridge1; "
        "sleep 0.2; ping -c 1 -W 0.1 10.77.0.9; true"
    )
    one = Guard(netns, neighbours=3)
    run(build, netns=netns)
    # the storm may pause while it is observed, if other processes use the processors
    wait_for(lambda: "because of a packet storm" in one.calm(), 100)
    wait_for(lambda: Guard(netns, neighbours=3).calm() == "", 100)
    run("ip link del bridge1; ip link del bridge2; ip link del x1; ip link del x2", netns=netns)


def test_number_of_nftables_rules_is_limited_over_all_commands(netns: int) -> None:
    room = "nft add table ip t; nft add set ip t s{} '{{ type ipv4_addr; size 700000; }}'"
    result, note = guarded(netns, room.format(1))
    assert (result.exit, result.stopped, note) == (0, "", "")
    result, note = guarded(netns, f"{room.format(2)}; sleep 999")
    assert result.stopped == "its machine has more than 1048576 bytes of nftables rules"
    assert note == "all nftables rules were flushed"
    assert run("nft list ruleset", netns=netns).output == ""


@pytest.mark.parametrize(
    ("what", "entry"),
    [
        ("nexthops", "nexthop add id {n} blackhole"),
        ("permanent ARP entries", "neigh add 10.5.0.{n} lladdr 02:00:00:00:00:01 dev k"),
        ("NOARP entries", "neigh add 10.5.0.{n} lladdr 02:00:00:00:00:01 dev k nud noarp"),
    ],
)
def test_number_of_objects_without_a_kernel_limit_is_limited(
    netns: int, monkeypatch: pytest.MonkeyPatch, what: str, entry: str
) -> None:
    monkeypatch.setattr(guard, "_MOST", {**guard._MOST, what: 20})
    run("ip neigh flush nud all; ip link add k type bridge; ip link set k up", netns=netns)
    add = f"for n in $(seq {{}}); do echo {entry.format(n='$n')}; done | ip -batch -"
    # the kernel's own entries count too, so fewer than 20 are added
    assert guarded(netns, f"{add.format(15)}; sleep 0.2")[0].exit == 0
    result, _ = guarded(netns, f"{add.replace('$n', '$((n+20))').format(20)}; sleep 999")
    run("ip link del k; ip nexthop flush", netns=netns)
    assert result.stopped == f"its machine has more than 20 {what}"


def test_command_is_not_charged_for_objects_that_existed_before(
    netns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_MOST", {**guard._MOST, "interfaces": 1, "policy rules": 1})
    assert guarded(netns, "sleep 0.1; ip rule; ip link")[0].exit == 0
    added, _ = guarded(netns, "ip link add more type bridge; sleep 999")
    assert added.stopped == "its machine has more than 1 interfaces"
    assert guarded(netns, "sleep 0.1; ip link del more")[0].exit == 0
    ruled, _ = guarded(netns, "ip rule add pref 9 prohibit to 10.9.9.9; sleep 999")
    assert ruled.stopped == "its machine has more than 1 policy rules"
    assert guarded(netns, "ip rule del pref 9")[0].exit == 0


def test_guard_of_an_ended_process_reports_nothing(netns: int) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert Guard(netns, neighbours=3).watch(ended.pid) == ""


def test_process_that_does_not_die_is_an_environment_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that the kernel does not kill can only be reported."""
    monkeypatch.setattr(shell, "END_S", 0.0)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)
    with pytest.raises(EnvironmentFailed, match="did not end after SIGKILL"):
        run("sleep 999", watch=lambda _: "enough")


def test_no_part_of_a_command_with_an_unclosed_construct_runs(netns: int) -> None:
    result = run("ip link set v0 down\nfor i in 1 2; do", netns=netns)
    assert result.output.startswith(REFUSED)
    assert (result.exit, result.stopped) == (STATUS, "")
    assert "state UP" in run("ip link show v0", netns=netns).output
    assert run("for i in 1; do\n  ip -br link show v0\ndone", netns=netns).output.startswith("v0")


def test_parsing_of_a_hostile_command_is_limited() -> None:
    """A hostile command can crash the parser, but not the sandbox."""
    command = "echo ran\n" + "$(" * 40_000
    result = run(command, limits=ShellLimits(wall_s=5.0, memory_bytes=64 << 20))
    assert "ran\n" not in result.output
    assert result.exit == STATUS or result.stopped
