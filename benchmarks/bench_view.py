"""Time of the viewer for a journal of many episodes: indexing, first paint, a filter.

    python benchmarks/bench_view.py RUN [RUN...] [--episodes 10000] [--browser PROGRAM]

The episodes of the given runs are repeated under other ids. With a browser (Debian's chromium), the
times are from the request to the painted page. Without a browser, only the server is measured.
Processor times (server and client together) do not depend on other programs on the machine. The
exit status is 1 if a first paint takes more than 1 s, or a filter more than 200 ms.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from netarena.run.archive import find_participants
from netarena.run.assessment import QUERIES_NAME
from netarena.run.journal import JOURNAL_NAME
from netarena.view.app import make_app
from netarena.view.index import Library

MOST_PAINT_MS, MOST_FILTER_MS = 1000, 200
SAMPLES = 7
#: Query strings of filters; the slowest filter counts.
FILTERS = ("show=lost", "text=step+3", "safe=no&sort=-turns", "level=level2&sort=id", "text=zzz")


def make_run(source: Path, folder: Path, episodes: int) -> None:
    """Write a run with this number of episodes, which repeats the episodes of ``source``."""
    home, places = find_participants(source)
    with (home / QUERIES_NAME).open() as lines:
        queries = {query["id"]: query for query in map(json.loads, lines)}
    with (places[0] / JOURNAL_NAME).open() as lines:
        events = list(map(json.loads, lines))
    graded = [event["episode"] for event in events if event["event"] == "episode"]
    folder.mkdir(parents=True)
    with (folder / JOURNAL_NAME).open("w") as journal, (folder / QUERIES_NAME).open("w") as asked:
        journal.write(json.dumps(events[0]) + "\n")
        for number, episode in zip(range(episodes), cycle(graded), strict=False):
            name = f"{episode['query_id']}{number:06}"
            asked.write(json.dumps(queries[episode["query_id"]] | {"id": name}) + "\n")
            event = {"event": "episode", "episode": episode | {"query_id": name}}
            journal.write(json.dumps(event) + "\n")


@contextmanager
def served(library: Library) -> Iterator[str]:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = uvicorn.Server(
            uvicorn.Config(make_app(library, "token", port), log_level="warning")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/token/index.html"
        finally:
            server.should_exit = True
            thread.join()


def median_ms(act: Callable[[], Any]) -> tuple[float, float]:
    """Return the median duration, and the median processor time of this process, in ms."""
    times, used = [], []
    for _ in range(SAMPLES):
        start, began = time.perf_counter(), time.process_time()
        act()
        times.append(1000 * (time.perf_counter() - start))
        used.append(1000 * (time.process_time() - began))
    return statistics.median(times), statistics.median(used)


def in_browser(program: str, url: str) -> tuple[float, float]:
    """Return the times, in ms, of the first paint and of the slowest filter.

    A filter's time is from the last key press until the filtered rows are shown.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        page.goto(url)  # not timed: starts the browser's processes

        paints = []
        for _ in range(SAMPLES):
            page.goto(url)
            page.wait_for_function(f"() => performance.getEntriesByType('paint').length && {paint}")
            paints.append(float(page.evaluate(paint)))
        filters = [
            page.evaluate(
                """async (search) => {
                  const start = performance.now();
                  await go(search);
                  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
                  return performance.now() - start;
                }""",
                f"?{search}",
            )
            for search in FILTERS
            for _ in range(3)
        ]
        browser.close()
    slowest = max(statistics.median(filters[at : at + 3]) for at in range(0, len(filters), 3))
    return statistics.median(paints), slowest


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--browser", default=shutil.which("chromium"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / f"{place}-{run.name}" for place, run in enumerate(arguments.runs)]
        for run, place in zip(arguments.runs, places, strict=True):
            make_run(run, place, arguments.episodes // len(places))
        size = sum((place / JOURNAL_NAME).stat().st_size for place in places)
        print(f"{arguments.episodes} episodes, journals of {size / 1e6:.0f} MB")

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        library = Library(places)
        with served(library) as url:
            start, began = time.perf_counter(), time.process_time()
            with library:
                first = httpx.get(url, trust_env=False, timeout=60)
                first.raise_for_status()
                at_once = 1000 * (time.perf_counter() - start)
                told = "Reading the journals" in first.text
                while library.progress[0] < library.progress[1]:
                    time.sleep(0.01)
                indexed, used = time.perf_counter() - start, time.process_time() - began
                after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                print(f"page while indexing: {at_once:.0f} ms (shows progress: {told})")
                more = (after - before) / 1024
                print(f"index: {indexed:.1f} s (processor {used:.1f} s), memory {more:.0f} MB more")
                with httpx.Client(trust_env=False, timeout=60) as client:
                    paint, paint_cpu = median_ms(lambda: client.get(url))
                    filtered, filtered_cpu = max(
                        median_ms(lambda search=search: client.get(f"{url}?{search}"))
                        for search in FILTERS
                    )
                    entry = library.entries[len(library.entries) // 2]
                    episode_url = url.replace("index.html", entry.path)
                    episode, episode_cpu = median_ms(lambda: client.get(episode_url))
                print(
                    f"server: list {paint:.0f} ms (processor {paint_cpu:.0f} ms), "
                    f"slowest filter {filtered:.0f} ms ({filtered_cpu:.0f} ms), "
                    f"episode {episode:.0f} ms ({episode_cpu:.0f} ms)"
                )
                if arguments.browser:
                    paint, filtered = in_browser(arguments.browser, url)
                    print(f"browser: first paint {paint:.0f} ms, slowest filter {filtered:.0f} ms")
    return int(paint > MOST_PAINT_MS or filtered > MOST_FILTER_MS)


if __name__ == "__main__":
    sys.exit(main())
