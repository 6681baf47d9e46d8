"""How fast the card answers while episodes run: p50, p95 and the longest of one probe every 50 ms.

python benchmarks/bench_health.py [--queries 240] [--concurrency 8] [--agent oracle]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

import httpx
from bench_end_to_end import request, started

PAUSE_S = 0.05


async def probe(url: str, times: list[float]) -> None:
    while True:
        async with httpx.AsyncClient() as http:  # a new connection, as a health check makes it
            begin = time.perf_counter()
            (await http.get(f"{url}.well-known/agent-card.json")).raise_for_status()
            times.append(time.perf_counter() - begin)
        await asyncio.sleep(PAUSE_S)


async def measure(green: str, purple: str, config: dict[str, object]) -> list[float]:
    times: list[float] = []
    probing = asyncio.create_task(probe(green, times))
    await request(green, purple, config)
    probing.cancel()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=240)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--agent", default="oracle")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, started(arguments, Path(folder)) as run:
        times = sorted(asyncio.run(measure(run.green, run.purple, run.config)))
    print(json.dumps({
        "probes": len(times),
        "p50_ms": round(1e3 * statistics.median(times), 1),
        "p95_ms": round(1e3 * times[int(0.95 * len(times))], 1),
        "longest_ms": round(1e3 * times[-1], 1),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
