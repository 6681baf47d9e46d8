"""The viewer in a real browser: keys, widths, colours, hostile trajectories, and exported files."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from netarena.report.document import make_report
from netarena.report.entrant import read_entrants
from netarena.report.page import render_html
from netarena.run.journal import lock_folder
from netarena.view.app import make_app
from netarena.view.index import Library
from netarena.view.static import write_episode, write_site
from tests.fake import gallery

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.requires("chromium")

PHONE = {"width": 400, "height": 800}
WIDE = {"width": 1280, "height": 900}
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    gallery.mixed(folder / "one", 120)
    queries = [gallery.query(number) for number in range(4)]
    other = gallery.step([True, True, True], move={"machine": "pump", "command": "open v2"})
    steps = (gallery.step([False, True, True]), other)
    answers = [gallery.solved(queries[0]), gallery.solved(queries[1], steps=steps)]
    gallery.write_run(folder / "two", queries, answers)
    return folder


@pytest.fixture(scope="module")
def library(folder: Path) -> Iterator[Library]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("netarena.view.index.load", lambda name: gallery.Drawn())
        library = Library([folder], watch=True)
        library.catch_up()
        yield library


@pytest.fixture(scope="module")
def live(library: Library) -> Iterator[str]:
    """Serve the viewer; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener, library:
        port = listener.getsockname()[1]
        server = uvicorn.Server(
            uvicorn.Config(make_app(library, "token", port), log_level="warning")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{port}/token/"
        server.should_exit = True
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def files(library: Library, live: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the exported files from a plain file server; yield its address."""
    out = tmp_path_factory.mktemp("static") / "site"
    write_site(library, out)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(out))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Yield a function that opens pages.

    At the end, no page may have run foreign code, reported an error, or sent a request to another
    host.
    """
    contexts: list[Any] = []
    problems: list[str] = []

    def open_(url: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": WIDE, **options})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        host = url.split("/")[2]
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on(
            "request",
            lambda request: host in request.url or problems.append(request.url),
        )
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        for page in context.pages:
            assert page.evaluate("window.hacked") is None
        context.close()
    assert problems == []


def address(page: Page) -> str:
    return page.url.split("/token/")[-1]


def test_keyboard_keys_select_queries_and_steps(open_page, live: str) -> None:
    page = open_page(live)
    press = page.keyboard.press
    press("j")
    press("j")
    assert "toy-1-abc-7-1" in page.locator("tr.here").inner_text()
    press("k")
    press("n")
    press("n")
    press("p")
    press("Enter")
    page.wait_for_url("**/episode/one/toy-1-abc-7-1.html")
    press("j")  # selects the world
    press("j")
    assert page.locator(".step.here h3").inner_text() == "Step 1"
    assert address(page).endswith("#step-1")
    press("n")
    page.wait_for_url("**/toy-1-abc-7-2.html")
    press("p")
    page.wait_for_url("**/toy-1-abc-7-1.html")
    press("?")
    assert page.locator("#help").is_visible()
    press("Escape")
    page.locator("#help").wait_for(state="hidden")
    press("/")
    page.wait_for_url("**/index.html#search")
    page.keyboard.type("j7-11")  # in the search field, j is only a letter
    page.wait_for_url("**text=j7-11")
    page.locator(".empty").wait_for()
    press("Escape")
    press("Escape")
    page.wait_for_url("**/index.html")
    page.locator("tbody tr").nth(99).wait_for()
    page.go_back()
    page.locator(".empty").wait_for()
    assert page.locator("input[name=text]").input_value() == "j7-11"


def test_deep_link_marks_its_step_and_keeps_the_filter(open_page, live: str) -> None:
    page = open_page(f"{live}episode/one/toy-1-abc-7-5.html?label=flood#step-2")
    assert page.locator(".step.here h3").inner_text() == "Step 2"
    page.keyboard.press("n")
    page.wait_for_url("**/toy-1-abc-7-8.html?label=flood")
    page.keyboard.press("Escape")
    page.wait_for_url("**/index.html?label=flood")
    assert page.locator("select[name=label]").input_value() == "flood"


PAGES = (
    "index.html", "index.html?text=script", "index.html?text=nothing",
    "episode/one/toy-1-abc-7-1.html", "episode/one/~120.html", "same/one/toy-1-abc-7-1.html",
    "run/one.html", "runs.html",
)  # fmt: skip


def test_page_never_scrolls_sideways_and_has_a_dark_mode(open_page, live: str) -> None:
    page = open_page(live, viewport=PHONE, color_scheme="dark")
    for path in PAGES:
        page.goto(live + path)
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        for size in (PHONE, WIDE):
            page.set_viewport_size(size)
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], path
    # dark background, bright text
    ground, ink = (
        sum(map(int, page.evaluate(f"getComputedStyle(document.body).{name}")[4:-1].split(",")))
        for name in ("backgroundColor", "color")
    )
    assert ground < 150
    assert ink > 500


def test_hostile_trajectories_have_no_effect_on_the_page(open_page, live: str, files: str) -> None:
    for url in (live, files):
        page = open_page(f"{url}episode/one/~120.html")
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert page.locator("main").is_visible()  # hostile styles have no effect
        assert page.locator("main iframe, main img, main a[href^=javascript]").count() == 0
        page.locator("body").dispatch_event("mouseover")
        assert page.locator("#step-1 pre.asked").inner_text().startswith("</pre></title>")
        page.goto(f"{url}index.html?text=script&sort=-time")
        page.locator(".c-why", has_text="<script>window.hacked").first.wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE])
def test_report_is_readable_and_harmless(
    browser: Browser, folder: Path, tmp_path: Path, size: Any, scheme: Any
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("netarena.run.archive.load", lambda name: gallery.Drawn())
        entrants = read_entrants([folder / "one", folder / "two"])
    path = tmp_path / "report.html"
    path.write_text(render_html(make_report(entrants)))
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    narrowest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('.wide th:first-child')]"
        ".map((one) => one.offsetWidth))"
    )
    assert narrowest >= 80, "the column of names is too narrow"
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light is (scheme == "light")
    # limited to figures and tables of each participant, regardless of the number of failures
    assert page.evaluate("document.documentElement.scrollHeight") < 60_000
    assert page.evaluate("window.hacked") is None
    assert asked == [path.as_uri()]
    context.close()


def test_line_of_a_megabyte_does_not_freeze_the_page(open_page, live: str) -> None:
    page = open_page(f"{live}episode/one/~120.html")
    box = page.locator("#step-2 pre.output")
    assert len(box.inner_text()) < 10_000
    page.locator("#step-2 a[data-more]").first.click()
    page.locator("#step-2 pre.output div").first.wait_for()
    # the output is split into pieces, and only visible pieces are laid out
    pieces = page.locator("#step-2 pre.output div")
    sizes = pieces.evaluate_all("(pieces) => pieces.map((piece) => piece.textContent.length)")
    assert max(sizes) <= 8193
    assert pieces.first.evaluate("(one) => getComputedStyle(one).contentVisibility") == "auto"
    assert len(box.evaluate("(box) => box.textContent")) > len(gallery.LONG)


def test_page_of_an_exported_episode_sends_no_requests(
    browser: Browser, library: Library, tmp_path: Path
) -> None:
    path = tmp_path / "episode.html"
    write_episode(library, "~120", path)
    context = browser.new_context(viewport=PHONE)
    page = context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda line: complaints.append(line.text))
    page.goto(path.as_uri())
    # the page has its own style, without hostile styles
    assert page.evaluate("getComputedStyle(document.querySelector('.step')).borderRadius") == "8px"
    assert page.locator("main").is_visible()
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("window.hacked") is None
    assert (asked, complaints) == ([path.as_uri()], [])
    context.close()


SEARCHES = (
    "?show=lost", "?safe=no&sort=-id", "?text=the+pump", "?label=leak&level=level2&sort=turns",
    "?run=one&sort=outcome&page=2", "?show=invalid", "?text=nothing", "?kind=safety+violation",
    "?sort=-label&page=2", "?pair=two%2Cone", "?text=OPEN+v2&sort=-tokens",
)  # fmt: skip


def test_filters_of_exported_files_work_like_those_of_the_server(
    open_page, live: str, files: str
) -> None:
    """Compare rows, counts, rates and links, for an initial filter and for one set in the page."""
    server, page = open_page(f"{live}index.html"), open_page(f"{files}index.html")
    read = """() => [
      [...document.querySelectorAll("#rows tbody tr")].map((row) => row.innerText),
      [...document.querySelectorAll("#rows tbody a, #rows th a, .pager a:not([hidden])")]
        .map((link) => [link.getAttribute("href"), link.closest("th")?.ariaSort]),
      document.querySelector("#tally").innerText,
      [...document.querySelectorAll("#filters select, #filters input")].map((one) => one.value),
      [...document.querySelectorAll("#tally rect")].map((bar) => bar.outerHTML),
    ]"""
    for search in SEARCHES:
        shown = [
            one.evaluate(f"async (search) => {{ await go(search); return ({read})(); }}", search)
            for one in (server, page)
        ]
        for expected, found in zip(*shown, strict=True):
            assert found == expected, search
    page.goto(f"{files}index.html{SEARCHES[0]}")
    page.wait_for_function("document.body.dataset.shown === '?show=lost'")
    server.goto(f"{live}index.html{SEARCHES[0]}")
    assert page.evaluate(read) == server.evaluate(read)


def test_query_with_different_results_is_shown_side_by_side(
    open_page, live: str, files: str
) -> None:
    for url in (live, files):
        page = open_page(f"{url}index.html")
        page.select_option("select[name=pair]", "two,one")
        page.wait_for_url("**/index.html?pair=two%2Cone")
        page.locator("tbody tr").nth(1).wait_for(state="detached")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/same/*/toy-1-abc-7-1.html?pair=two%2Cone")
        assert page.locator(".lane").count() == 2
        page.locator("#parts a").click()
        assert (
            page.locator(".step.here h3").inner_text()
            == page.locator("#parts a").inner_text().capitalize()
        )
        assert page.locator(".step.here.apart").count() == 1
        assert page.locator(".step.apart mark").count() > 0
        page.keyboard.press("Escape")
        page.wait_for_url("**/index.html?pair=two%2Cone")


def test_exported_files_can_be_browsed_with_the_keyboard(open_page, files: str) -> None:
    page = open_page(f"{files}index.html")
    page.select_option("select[name=label]", "flood")
    page.wait_for_url("**/index.html?label=flood")
    page.locator("tbody tr").nth(40).wait_for(state="detached")
    page.keyboard.press("n")
    page.keyboard.press("Enter")
    page.wait_for_url("**/toy-1-abc-7-2.html?label=flood")
    page.locator("[data-go=after][href*='7-5.html?label']").wait_for()
    page.keyboard.press("n")
    page.wait_for_url("**/toy-1-abc-7-5.html?label=flood")
    page.keyboard.press("Escape")
    page.wait_for_url("**/index.html?label=flood")


# this test is the last one, because it changes the served data
def test_page_of_a_run_in_progress_is_updated(open_page, live: str, folder: Path) -> None:
    page = open_page(f"{live}index.html?run=two")
    page.keyboard.press("j")
    assert page.locator("tbody tr").count() == 2
    assert page.locator("#runs .going").count() == 0
    with lock_folder(folder / "two"):
        gallery.add(folder / "two", gallery.lost(gallery.query(2)))
        page.locator("tbody tr").nth(2).wait_for()
        assert page.locator("[data-slot=lost]").inner_text() == "1"
        page.locator("#runs .going", has_text="3 of 4").wait_for()
        # the row is still selected
        assert "toy-1-abc-7-0" in page.locator("tr.here").inner_text()
    page.locator("#runs .going").wait_for(state="detached")
    # a run that starts later appears
    gallery.mixed(folder / "three", 1)
    page.locator("#runs", has_text="3 runs").wait_for()
    assert "three" in page.locator("select[name=run]").inner_text()
