"""Process that owns the network namespaces (one pod network per episode) and runs probes.

    python -m netarena_k8s.embedded.datapath.plane DESCRIPTOR   serve a control socket
    python -m netarena_k8s.embedded.datapath.plane              print what this machine lacks

The process runs in its own user namespace. When it exits, the kernel removes all networks. Requests
are lines of JSON, such as ``{"number": 1, "do": "lay", "episode": 3, ...}``. The answer is
``{"number": 1, "ok": ...}`` or ``{"number": 1, "failed": text}``. The first line reports that the
process is ready, or names the missing feature of this machine.

A veth pair connects each pod's namespace to the node's namespace. In the node's namespace, the
nftables rules of module ``rule`` filter forwarded packets. Both ends of a veth pair have the same
hardware address and send no ARP requests, so the first packet needs no address resolution.
"""

from __future__ import annotations

import contextlib
import encodings.ascii
import encodings.idna
import encodings.latin_1  # noqa: F401 -- codecs load from files, later unreadable
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from netarena.sdk import entered, namespace
from netarena_k8s.embedded.datapath.rule import Pod, interface, ruleset, translation

#: next hop of the pods' default route, which is not the address of any interface
_GATEWAY = "169.254.1.1"
_BACKLOG = 512
_TOKEN = struct.Struct("=I")
_STREAM, _DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
_KINDS = {"TCP": _STREAM, "UDP": _DATAGRAM}
#: SO_LINGER value with which a socket closes without waiting for the other side
_LINGER = struct.pack("=ii", 1, 0)
_NFT_S = 30.0
_SETTLE_S = 10.0
_TICK_S = 0.005


class Network:
    """The pods of one episode, each in a network namespace. The kernel removes a namespace when its
    descriptor is closed.

    ``listen`` has, for each pod, the (protocol, port) tuples on which the pod listens. ``services``
    are as in ``rule.translation``.
    """

    def __init__(
        self,
        pods: Sequence[Pod],
        listen: Sequence[Sequence[tuple[str, int]]],
        services: Sequence[tuple[str, str, int, str, int]],
        namespaces: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._pods = pods
        self._namespaces = namespaces
        self._rules = ""
        self._descriptors: list[int] = []
        self._spaces: list[int] = []
        #: descriptor of a listening socket -> (socket, pod, port)
        self._listening: dict[int, tuple[socket.socket, int, int]] = {}
        before = namespace.current_network()
        try:
            self._node = self._new(before)
            for pod, ports in zip(pods, listen, strict=True):
                space = self._new(before)
                self._spaces.append(space)
                with entered(space):
                    namespace.raise_loopback()
                    self._refuse_at_once()
                    for protocol, port in ports:
                        self._listen(len(self._spaces) - 1, protocol, port)
                del pod
            with entered(self._node):
                self._refuse_at_once()
                Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
                self._connect()
                _nft(translation(services))
        except BaseException:
            self.close()
            raise
        finally:
            os.close(before)

    def _new(self, before: int) -> int:
        with entered(before):
            namespace.leave_network()
            space = namespace.current_network()
        self._descriptors.append(space)
        return space

    @staticmethod
    def _refuse_at_once() -> None:
        """Remove the rate limit for ICMP errors in the thread's network namespace, so that refused
        packets are reported immediately."""
        for name, value in (("icmp_ratelimit", 0), ("icmp_msgs_per_sec", 1 << 20)):
            with contextlib.suppress(OSError):  # Older kernels have only a global limit.
                Path("/proc/sys/net/ipv4", name).write_text(f"{value}", encoding="ascii")

    def _listen(self, place: int, protocol: str, port: int) -> None:
        one = socket.socket(socket.AF_INET, _KINDS[protocol] | socket.SOCK_NONBLOCK)
        one.bind(("0.0.0.0", port))  # noqa: S104 -- all addresses of the pod's own namespace
        if protocol == "TCP":
            one.listen(_BACKLOG)
        self._listening[one.fileno()] = one, place, port

    def _connect(self) -> None:
        with IPRoute() as node:
            for place, space in enumerate(self._spaces):
                node.link(
                    "add",
                    ifname=interface(place),
                    kind="veth",
                    address=_hardware(place),
                    peer={"ifname": "eth0", "net_ns_fd": space, "address": _hardware(place)},
                )
                index = socket.if_nametoindex(interface(place))
                node.link("set", index=index, state="up", arp=False)
                node.route("add", dst=f"{self._pods[place].ip}/32", oif=index)
        places = range(len(self._spaces))
        for place, space in enumerate(self._spaces):
            with entered(space), IPRoute() as pod:
                index = socket.if_nametoindex("eth0")
                pod.link("set", index=index, state="up", arp=False)
                pod.addr("add", index=index, address=self._pods[place].ip, prefixlen=32)
                pod.route("add", dst=f"{_GATEWAY}/32", oif=index, scope=253)
                pod.route("add", dst="default", gateway=_GATEWAY, oif=index)
                _settle(pod, [index])
        with IPRoute() as node:
            _settle(node, [socket.if_nametoindex(interface(place)) for place in places])

    def close(self) -> None:
        for one, _, _ in self._listening.values():
            one.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._listening, self._descriptors = {}, []

    def load(self, policies: Sequence[Mapping[str, Any]]) -> None:
        """Apply these policies. They are in force when the method returns. Raises OSError."""
        rules = ruleset(self._pods, policies, self._namespaces)
        if rules != self._rules:
            self._rules = ""  # The rules in force are unknown until nft has accepted the new ones.
            with entered(self._node):
                _nft(rules)
            self._rules = rules

    def probe(self, targets: Sequence[tuple[int, str, str, int, int]], wait_s: float) -> list[bool]:
        """Test all ``targets`` (source, protocol, address, port, expected pod) at the same time.

        Each test sends a token through a new connection, or in a datagram from a port not used
        before. A test succeeds if the expected pod received the token and the pod's reply arrived.
        ``wait_s`` limits the wait for packets that get neither a reply nor a refusal.
        """
        return _Round(self._spaces, self._listening, targets).run(wait_s)


class _Round:
    def __init__(
        self,
        spaces: Sequence[int],
        listening: Mapping[int, tuple[socket.socket, int, int]],
        targets: Sequence[tuple[int, str, str, int, int]],
    ) -> None:
        self._listening = listening
        self._targets = targets
        self._met = [False] * len(targets)
        self._answered = [False] * len(targets)
        self._poll = select.epoll()
        #: descriptor -> (socket, index of the target)
        self._asking: dict[int, tuple[socket.socket, int]] = {}
        #: descriptor -> (accepted socket, pod)
        self._accepted: dict[int, tuple[socket.socket, int]] = {}
        for descriptor in listening:
            self._poll.register(descriptor, select.EPOLLIN)
        by_source: dict[int, list[int]] = {}
        for number, (source, *_) in enumerate(targets):
            by_source.setdefault(source, []).append(number)
        for source, numbers in by_source.items():
            with entered(spaces[source]):
                for number in numbers:
                    self._ask(number)

    def _ask(self, number: int) -> None:
        _, protocol, address, port, _ = self._targets[number]
        one = socket.socket(socket.AF_INET, _KINDS[protocol] | socket.SOCK_NONBLOCK)
        self._asking[one.fileno()] = one, number
        try:
            one.connect((address, port))
        except BlockingIOError:
            pass
        except OSError:
            self._forget(one.fileno())
            return
        self._poll.register(one.fileno(), select.EPOLLOUT)

    def run(self, wait_s: float) -> list[bool]:
        deadline = time.monotonic() + wait_s
        try:
            while self._asking:
                late = time.monotonic() >= deadline
                events = self._poll.poll(0 if late else deadline - time.monotonic())
                # Events that have already arrived are processed even after the deadline.
                if not events and late:
                    break
                for descriptor, event in events:
                    self._attend(descriptor, event)
        finally:
            for one, _ in [*self._asking.values(), *self._accepted.values()]:
                one.close()
            self._poll.close()
            self._drain()
        return [met and answered for met, answered in zip(self._met, self._answered, strict=True)]

    def _attend(self, descriptor: int, event: int) -> None:
        try:
            if descriptor in self._listening:
                self._hear(descriptor)
            elif descriptor in self._accepted:
                self._answer(descriptor)
            elif descriptor in self._asking:
                self._proceed(descriptor, event)
        except BlockingIOError:
            return
        except OSError:  # The kernel or the receiver refused the packet.
            self._forget(descriptor)

    def _hear(self, descriptor: int) -> None:
        one, place, _ = self._listening[descriptor]
        if one.type == _DATAGRAM:
            token, sender = one.recvfrom(_TOKEN.size)
            self._meet(token, place)
            one.sendto(token, sender)
        else:
            accepted, _ = one.accept()
            accepted.setblocking(False)
            self._accepted[accepted.fileno()] = accepted, place
            self._poll.register(accepted.fileno(), select.EPOLLIN)

    def _answer(self, descriptor: int) -> None:
        one, place = self._accepted[descriptor]
        token = one.recv(_TOKEN.size)
        self._meet(token, place)
        one.sendall(token)
        if not token:
            self._forget(descriptor)

    def _meet(self, token: bytes, place: int) -> None:
        if len(token) == _TOKEN.size:
            (number,) = _TOKEN.unpack(token)
            if number < len(self._targets) and self._targets[number][4] == place:
                self._met[number] = True

    def _proceed(self, descriptor: int, event: int) -> None:
        one, number = self._asking[descriptor]
        token = _TOKEN.pack(number)
        if event & select.EPOLLOUT and not event & (select.EPOLLERR | select.EPOLLHUP):
            one.send(token)
            self._poll.modify(descriptor, select.EPOLLIN)
            return
        self._answered[number] = one.recv(_TOKEN.size) == token
        self._forget(descriptor)

    def _forget(self, descriptor: int) -> None:
        ours = self._asking if descriptor in self._asking else self._accepted
        one, _ = ours.pop(descriptor)
        if one.type == _STREAM:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        one.close()

    def _drain(self) -> None:
        """Discard the remaining packets and connections of this round, so that the next round does
        not count them."""
        for one, _, _ in self._listening.values():
            with contextlib.suppress(BlockingIOError):
                while True:
                    if one.type == _DATAGRAM:
                        one.recv(_TOKEN.size)
                    else:
                        one.accept()[0].close()


class Planes:
    """The networks of all episodes. Only one request is executed at a time."""

    def __init__(self) -> None:
        self._networks: dict[int, Network] = {}

    def do(self, order: dict[str, Any]) -> object:
        episode = order["episode"]
        match order["do"]:
            case "lay":
                self._networks[episode] = Network(
                    [_pod(one) for one in order["pods"]],
                    order["listen"],
                    order["services"],
                    order["namespaces"],
                )
                return True
            case "measure":
                network = self._networks[episode]
                network.load(order["policies"])
                return network.probe(order["targets"], order["wait_s"])
            case "close":
                if (network_ := self._networks.pop(episode, None)) is not None:
                    network_.close()
                return True
            case unknown:
                raise ValueError(f"unknown command: {unknown!r}")


def _pod(told: dict[str, Any]) -> Pod:
    named = {(name, protocol): number for name, protocol, number in told["named"]}
    return Pod(told["ip"], told["namespace"], told["labels"], named)


def _settle(route: IPRoute, links: Sequence[int]) -> None:
    """Wait until the kernel has processed the change of carrier (link up) of these interfaces.

    Until then, for up to a second, the kernel drops packets that the interfaces send. From Linux
    6.4 on, querying an interface triggers the processing. Raises OSError.
    """
    deadline = time.monotonic() + _SETTLE_S
    for index in links:
        while route.link("get", index=index)[0].get_attr("IFLA_OPERSTATE") != "UP":
            if time.monotonic() > deadline:
                raise OSError(f"a link of the data plane did not come up within {_SETTLE_S:g} s")
            time.sleep(_TICK_S)


def _hardware(place: int) -> str:
    return f"02:00:00:00:{place >> 8:02x}:{place & 0xFF:02x}"


def _nft(text: str) -> None:
    """Run nftables commands in the thread's namespace, in one transaction. Raises OSError."""
    done = subprocess.run(
        ["nft", "-f", "-"],  # noqa: S607 -- found in the PATH that the service set
        input=text.encode(),
        capture_output=True,
        timeout=_NFT_S,
        check=False,
    )
    if done.returncode:
        raise OSError(f"nft: {done.stderr.decode(errors='replace').strip()[:500]}")


def _try() -> str:
    """Return the reason why this process cannot measure in its own namespaces, or "" if it can."""
    pods = [Pod(f"10.244.0.{number}", "shop", {"app": str(number)}) for number in (2, 3)]
    closed = {
        "metadata": {"namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"app": "3"}}},
    }
    targets = [(0, "TCP", "10.96.0.2", 80, 1), (0, "UDP", "10.244.0.3", 8080, 1)]
    listen = [[], [("TCP", 8080), ("UDP", 8080)]]
    try:
        network = Network(
            pods, listen, [("TCP", "10.96.0.2", 80, "10.244.0.3", 8080)], {"shop": {}}
        )
        try:
            for policies in ([], [closed]):
                network.load(policies)
                found = network.probe(targets, 1.0)
                if found != [not policies] * 2:
                    return f"a new network namespace does not work as expected: {found}"
        finally:
            network.close()
    except Exception as error:  # noqa: BLE001 -- every error is reported as the reason
        return f"no network namespace could be created: {error}"
    return ""


def _orders(control: socket.socket) -> Iterator[dict[str, Any]]:
    with control.makefile("rb") as lines:
        for line in lines:
            yield json.loads(line)


def _serve(control: socket.socket) -> None:
    def tell(answer: dict[str, Any]) -> None:
        control.sendall(json.dumps(answer).encode() + b"\n")

    planes = Planes()
    if problem := _try():
        tell({"failed": problem})
        return
    tell({"ready": True})
    for order in _orders(control):
        try:
            answer = {"number": order["number"], "ok": planes.do(order)}
        except Exception as error:  # noqa: BLE001 -- reported to the caller
            answer = {"number": order["number"], "failed": f"{type(error).__name__}: {error}"}
        tell(answer)


def main() -> None:
    """Run the process as described in the module's docstring."""
    control = socket.socket(fileno=int(sys.argv[1])) if len(sys.argv) > 1 else None
    os.chdir("/")
    problem = namespace.lacking()
    if not problem:
        try:
            inner = namespace.isolate()
        except namespace.NamespaceUnavailable as error:
            problem = str(error)
        else:
            if inner < 0:
                with contextlib.suppress(OSError):  # The service has closed the socket.
                    _live_apart(control)
                os._exit(0)
            if control is not None:
                control.close()
            os.waitpid(inner, 0)
            os._exit(0)
    if control is None:
        sys.stdout.write(problem)
    else:
        control.sendall(json.dumps({"failed": problem}).encode() + b"\n")


def _live_apart(control: socket.socket | None) -> None:
    if control is None:
        sys.stdout.write(_try())
        sys.stdout.flush()
    else:
        _serve(control)


if __name__ == "__main__":
    main()
