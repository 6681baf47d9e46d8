"""Time of processes from start to first output, and from SIGTERM to exit.

python benchmarks/bench_process.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time

COMMAND = [sys.executable, "-m", "netarena"]


def help_s() -> float:
    """Return the time of ``netarena --help`` in s."""
    begun = time.perf_counter()
    subprocess.run([*COMMAND, "--help"], check=True, capture_output=True)
    return time.perf_counter() - begun


def serve_s(app: str) -> tuple[float, float]:
    """Return the times of an idle green agent until it prints its URL, and from SIGTERM to exit."""
    with tempfile.TemporaryDirectory() as out:
        begun = time.perf_counter()
        with subprocess.Popen(
            [*COMMAND, "serve", app, "--port", "0", "--out", out],
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stderr is not None
            while b"listens" not in process.stderr.readline():
                assert process.poll() is None, "the service does not start"
            ready = time.perf_counter()
            process.send_signal(signal.SIGTERM)
            process.wait()
            return ready - begun, time.perf_counter() - ready


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = range(parser.parse_args().rounds)
    print(f"{'command':32} {'minimum':>7} {'maximum':>7}   in s, {len(rounds)} rounds")
    helps = [help_s() for _ in rounds]
    rows = {"netarena --help": helps}
    for app in ("malt", "route", "k8s"):
        pairs = [serve_s(app) for _ in rounds]
        rows[f"serve {app}: ready"] = [ready for ready, _ in pairs]
        rows[f"serve {app}: SIGTERM to end"] = [end for _, end in pairs]
    for what, times in rows.items():
        print(f"{what:32} {min(times):7.3f} {max(times):7.3f}")


if __name__ == "__main__":
    main()
