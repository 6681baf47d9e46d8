"""Response time of the agent card while episodes run: p50, p95 and maximum, probed every 50 ms.

python benchmarks/bench_health.py [--queries 240] [--concurrency 8] [--agent oracle]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
from bench_end_to_end import request, started

PAUSE_S = 0.05


PROBE = """
import http.client, json, sys, time
host, pause_s, times = sys.argv[1], float(sys.argv[2]), []
sys.stdin.close()
try:
    while True:
        begin = time.perf_counter()
        connection = http.client.HTTPConnection(host, timeout=10)  # as a health check: a new one
        connection.request("GET", "/.well-known/agent-card.json")
        assert connection.getresponse().read()
        connection.close()
        times.append(time.perf_counter() - begin)
        time.sleep(pause_s)
except KeyboardInterrupt:
    print(json.dumps(times))
"""


def measure(green: str, purple: str, config: dict[str, object]) -> list[float]:
    """Return response times of the card in s; a separate process measures them during a run."""
    command = [sys.executable, "-c", PROBE, httpx.URL(green).netloc.decode(), str(PAUSE_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as probe:
        asyncio.run(request(green, purple, config))
        probe.send_signal(signal.SIGINT)
        output, _ = probe.communicate()
    times: list[float] = json.loads(output)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=240)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--agent", default="oracle")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, started(arguments, Path(folder)) as run:
        times = sorted(measure(run.green, run.purple, run.config))
    print(json.dumps({
        "probes": len(times),
        "p50_ms": round(1e3 * statistics.median(times), 1),
        "p95_ms": round(1e3 * times[int(0.95 * len(times))], 1),
        "longest_ms": round(1e3 * times[-1], 1),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
