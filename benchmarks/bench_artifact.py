"""Cost of an artifact with many records, sent through the real server and client.

    python benchmarks/bench_artifact.py [--records 500 1000 2000 5000] [--bytes 3000]

For each number of records, prints the number of events and the growth of resident memory. It also
prints the wall time and the CPU time in s from the request to the last event at a streaming client.
Service and client run in one process. The records are words drawn at random, which compress like an
agent's code. Each number of records runs in a separate process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / path) for path in (".", "tests/unit", "tests/toy")]

import httpx  # noqa: E402 -- needs the path above
from a2a.client import ClientConfig, create_client  # noqa: E402
from a2a.helpers import new_text_message  # noqa: E402
from a2a.types.a2a_pb2 import Role, SendMessageRequest  # noqa: E402
from netarena_toy import Toy  # noqa: E402
from peer import FakeConduct  # noqa: E402

from netarena.a2a.server import create_app  # noqa: E402
from netarena.a2a.service import listen, serving  # noqa: E402

REQUEST = json.dumps({"participants": {"toy_operator": "http://127.0.0.1:1/"}, "config": {}})


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def words(index: int, size: int) -> str:
    draw = random.Random(index)
    vocabulary = [f"{draw.getrandbits(28):x}" for _ in range(200)]
    return " ".join(draw.choices(vocabulary, k=size // 8))


async def measure(records: int, size: int) -> None:
    conduct = FakeConduct(records)
    texts = [words(index, size) for index in range(records)]
    conduct.text = texts.__getitem__
    with tempfile.TemporaryDirectory() as root:
        app = create_app(Toy(), out=Path(root), conduct=conduct)
        before = resident_mb()
        async with (
            serving(app, listen("127.0.0.1", 0)) as url,
            httpx.AsyncClient(timeout=600) as http,
        ):
            client = await create_client(url, ClientConfig(httpx_client=http))
            message = new_text_message(REQUEST, role=Role.ROLE_USER)
            begun, used = time.perf_counter(), time.process_time()
            events = 0
            async for _ in client.send_message(SendMessageRequest(message=message)):
                events += 1
            took_s, used_s = time.perf_counter() - begun, time.process_time() - used
            growth = resident_mb() - before
    print(f"| {records:,} | {events} | {took_s:.1f} | {used_s:.1f} | {growth:+.0f} |", flush=True)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--records", type=int, nargs="+", default=[500, 1000, 2000, 5000])
parser.add_argument("--bytes", type=int, default=3000)
arguments = parser.parse_args()
if len(arguments.records) == 1:
    asyncio.run(measure(arguments.records[0], arguments.bytes))
else:
    print(
        "| records | events | s | CPU s | MiB |\n| ---: | ---: | ---: | ---: | ---: |", flush=True
    )
    for number in arguments.records:
        one = ["--records", str(number), "--bytes", str(arguments.bytes)]
        subprocess.run([sys.executable, __file__, *one], check=True)
