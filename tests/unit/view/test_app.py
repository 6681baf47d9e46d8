"""The served pages: access control, headers, and no active content from agents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from netarena.errors import ConfigError
from netarena.model import Claim, Refusal
from netarena.view.app import make_app
from netarena.view.index import Library
from netarena.view.site import Site
from netarena.view.static import write_episode, write_site
from tests.fake import gallery

PORT, TOKEN = 8123, "a-token"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("netarena.view.index.load", lambda name: gallery.Drawn())
        gallery.mixed(folder / "one")
        queries = [gallery.query(number) for number in range(2)]
        gallery.write_run(folder / "two", queries, map(gallery.solved, queries))
        library = Library([folder / "one", folder / "two"])
        library.catch_up()
        yield library


@pytest.fixture(scope="module")
def client(library: Library) -> TestClient:
    return TestClient(
        make_app(library, TOKEN, PORT), f"http://127.0.0.1:{PORT}", follow_redirects=False
    )


class Elements(HTMLParser):
    """Collects the elements and link targets of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: dict[str, int] = {}
        self.attributes: set[str] = set()
        self.targets: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names[tag] = self.names.get(tag, 0) + 1
        self.attributes |= {name for name, _ in attrs}
        self.targets |= {str(value) for name, value in attrs if name in {"href", "src", "action"}}


def test_request_with_the_token_and_the_right_host_is_served(client: TestClient) -> None:
    good = client.get(f"/{TOKEN}/index.html")
    assert good.status_code == 200
    policy = good.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert good.headers["referrer-policy"] == "no-referrer"
    for path in ("/", "/index.html", "/wrong/index.html", f"/{TOKEN}x/", "/é/state.json"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert "toy" not in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert client.get(f"/{TOKEN}").headers["location"] == f"/{TOKEN}/index.html"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (f"127.0.0.1:{PORT}", 200), (f"localhost:{PORT}", 200), ("evil.example", 421),
        (f"evil.example:{PORT}", 421), ("127.0.0.1:1", 421), ("127.0.0.1", 421), ("", 421),
    ],
)  # fmt: skip
def test_request_for_another_host_is_refused(client: TestClient, host: str, status: int) -> None:
    answer = client.get(f"/{TOKEN}/index.html", headers={"host": host})
    assert answer.status_code == status
    assert ("toy" in answer.text) == (status == 200)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_modifying_methods_are_refused(client: TestClient, method: str) -> None:
    assert client.request(method, f"/{TOKEN}/index.html").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "episode/one/nothing.html", "episode/three/toy-1-abc-7-0.html", "view.py", "../app.py",
        "..%2fapp.py", "template/list.html", "text/one/toy-1-abc-7-0/9-output.txt",
        "text/one/toy-1-abc-7-0/0-output.txt", "text/one/toy-1-abc-7-0/1-secret.txt",
    ],
)  # fmt: skip
def test_response_for_an_unknown_path_is_404(client: TestClient, path: str) -> None:
    answer = client.get(f"/{TOKEN}/{path}")
    assert answer.status_code == 404
    assert "Page not found" in answer.text or "netarena view printed" in answer.text


def test_chart_of_the_initial_state_and_each_changed_chart_are_drawn(
    client: TestClient, library: Library
) -> None:
    for entry in library.entries[:3]:
        page = client.get(f"/{TOKEN}/{entry.path}").text
        figures = re.findall(r'<figure class="chart">.*?</figure>', page, re.DOTALL)
        states = sum(step.state is not None for step in entry.run.read(entry).steps)
        assert [set(re.findall(r"v1: \d of 3 litres", one)) for one in figures] == [
            {f"v1: {2 + number} of 3 litres"} for number in range(states + 1)
        ]
        assert [one.count('<g class="wrong">') for one in figures] == [
            3 * (number > 1) for number in range(states + 1)
        ]


def test_every_page_of_every_kind_of_episode_is_served(
    client: TestClient, library: Library
) -> None:
    for path in Site(library, live=True).paths():
        assert client.get(f"/{TOKEN}/{path}").status_code == 200, path
    found = client.get(f"/{TOKEN}/episode/one/toy-1-abc-7-1.html").text
    for words in (
        "v2 was open and is closed now.", "still wrong", "v1 is closed", "broke 2", "side by side",
        "closed: v1", "safety violation", "pump · open v1", "wrong as before", "10.0.0.1/24",
    ):  # fmt: skip
        assert words in found, words


def test_previous_and_next_links_point_to_failed_episodes_of_the_selection(
    client: TestClient,
) -> None:
    def neighbours(search: str) -> list[str]:
        text = client.get(f"/{TOKEN}/episode/one/toy-1-abc-7-5.html{search}").text
        return re.findall(r'data-go="\w+" href="\.\./\.\./([^"]*)" (?:hidden)?', text)

    assert neighbours("") == ["episode/one/toy-1-abc-7-2.html", "episode/one/toy-1-abc-7-7.html"]
    assert neighbours("?label=flood") == [
        "episode/one/toy-1-abc-7-2.html?label=flood",
        "episode/one/toy-1-abc-7-8.html?label=flood",
    ]
    # an episode outside the selection has its neighbours in the full list
    assert neighbours("?label=leak")[0] == "episode/one/toy-1-abc-7-2.html?label=leak"


@pytest.mark.parametrize("page", ["index.html", "episode/one/~12.html", "same/one/~12.html"])
def test_text_written_by_an_agent_is_escaped(
    client: TestClient, library: Library, page: str
) -> None:
    text = client.get(f"/{TOKEN}/{page}").text
    tame = client.get(f"/{TOKEN}/{page.replace('~12', 'toy-1-abc-7-1')}").text
    assert "window.hacked" in text
    assert "{{ 7*191 }}" in text
    found, expected = Elements(text), Elements(tame)
    assert found.names.keys() - {"p"} <= expected.names.keys() | {"ul", "li", "noscript"}
    assert found.names.get("script") == found.names.get("style", 1) == 1
    assert not {name for name in found.attributes if name.startswith("on") or name == "style"}
    ours = re.compile(r"(\.\./)*(index|runs?|episode|same|text|view|icon|#|$)[\w./~?=&%#-]*")
    assert all(ours.fullmatch(target) for target in found.targets), found.targets
    for sign in "\x1b\x07\u202e\u200b\ufeff\U000e0041":
        assert sign not in text
    assert "⟨ESC⟩[31m" in text


def test_long_text_is_shortened_and_available_in_full(client: TestClient) -> None:
    page = client.get(f"/{TOKEN}/episode/one/~12.html").text
    assert len(page) < 400_000
    (path,) = re.findall(r'href="\.\./\.\./(text/one/~12/2-output\.txt)" data-more', page)
    assert f"show all {len(gallery.LONG + gallery.HOSTILE):,} characters" in page
    whole = client.get(f"/{TOKEN}/{path}")
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert whole.text.startswith(gallery.LONG)
    assert "\x1b" not in whole.text


def test_written_files_equal_the_served_pages(library: Library, tmp_path: Path) -> None:
    told: list[int] = []
    write_site(library, tmp_path / "site", expect=told.append, told=lambda: told.append(1))
    assert sum(told[1:]) == told[0]
    site = Site(library, live=False)
    files = {str(path.relative_to(tmp_path / "site")): path.read_bytes()
             for path in (tmp_path / "site").rglob("*") if path.is_file()}  # fmt: skip
    assert files == {path: site.page(path, {}).content for path in files}
    # each link of each page points to an exported file
    for path, content in files.items():
        if path.endswith(".html"):
            for target in Elements(content.decode()).targets:
                name = re.sub(r"[?#].*", "", target)
                place = (tmp_path / "site" / path).parent / name
                assert name in {"", "../../"} or place.resolve().is_file(), (path, target)
    with pytest.raises(ConfigError, match="give a new folder"):
        write_site(library, tmp_path / "site")


def test_public_site_has_no_ground_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netarena.view.index.load", lambda name: gallery.Drawn())
    queries = [gallery.query(number, id=f"toy-1-0123abcd-7-{number}") for number in range(4)]
    kinds = (gallery.declared, gallery.lost, gallery.invalid, gallery.silent)
    episodes = [make(query) for make, query in zip(kinds, queries, strict=True)]
    episodes[0] = gallery.declared(queries[0], noted=("leftover_fault",))
    folders = [
        gallery.write_run(tmp_path / "seed-7", queries, episodes),
        gallery.write_run(tmp_path / "other", queries, map(gallery.solved, queries)),
    ]
    library = Library(folders, public=True)
    write_site(library, tmp_path / "site")
    secrets = (
        "toy-1-0123abcd-7", "seed-7", "v2 was open", "closed: v1", "is closed", "the pump broke",
        "leftover_fault", "of them, ", "Ground truth", "<figure", "Evidence", "&#34;v1&#34;",
        "&#34;seed&#34;: 7",
    )  # fmt: skip
    for path in (tmp_path / "site").rglob("*.*"):
        text = path.read_text()
        for secret in secrets:
            assert secret not in text, (path, secret)
            assert secret not in str(path.relative_to(tmp_path / "site"))
    # prompts, replies and verdicts remain
    first = library.entries[0]
    page = (tmp_path / "site" / first.path).read_text()
    for words in ("What do you do?", "open v1, please", "wrong declaration", "false claim"):
        assert words in page, words
    # the answers of both runs are on one page under the sealed id
    assert (tmp_path / "site" / "same" / "run-1" / f"{first.name}.html").is_file()
    assert f">{first.outline.query_id}</a>" in (tmp_path / "site" / "entries.json").read_text()
    # the page can also be found by the query's open id
    only = Library(folders[:1], public=True)
    only.catch_up()
    assert only.find_episode(queries[0].id).name == first.name


def test_episode_is_written_as_one_file(library: Library, tmp_path: Path) -> None:
    out = tmp_path / "sub" / "episode.html"
    write_episode(library, "toy-1-abc-7-4", out)
    with pytest.raises(ConfigError, match="give a new file"):
        write_episode(library, "toy-1-abc-7-4", out)
    with pytest.raises(ConfigError, match="no run here"):
        write_episode(library, "toy-1-abc-7-4~2", out)
    with pytest.raises(ConfigError, match=r"several runs \(one, two\)"):
        write_episode(library, "toy-1-abc-7-1", out)
    text = Site(library, live=False).bundle(library.find_episode("~12")).decode()
    found = Elements(text)
    assert all(target.startswith("#") for target in found.targets)
    assert found.names["style"] == 1
    assert not {"script", "img", "iframe", "link"} & found.names.keys()
    # long texts are complete
    assert gallery.LONG in text


def test_declaration_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netarena.view.index.load", lambda name: gallery.Drawn())
    asked = gallery.query(0)
    library = Library([gallery.write_run(tmp_path / "run", [asked], [gallery.declared(asked)])])
    library.catch_up()
    page = Site(library, live=True).page(library.entries[0].path, {}).content.decode()
    for words in ("wrong declaration", "Causes: v3 (rust).", "recall 0.0 %", "false claim"):
        assert words in page, words


@pytest.mark.parametrize(("right", "word"), [(True, "correct"), (False, "wrong")])
def test_refused_changes_and_the_verdict_on_them_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: bool, word: str
) -> None:
    monkeypatch.setattr("netarena.view.index.load", lambda name: gallery.Drawn())
    asked = gallery.query(0)
    refused = (Refusal(change=2, because="<rust>"), Refusal(change=4, because="no_valve"))
    # the world is correct, so only the refused changes decide
    last = gallery.step([True, True, True], claim=Claim(refused=refused))
    told = gallery.declared(asked, steps=(last,), claim_right=right)
    library = Library([gallery.write_run(tmp_path / "run", [asked], [told])])
    library.catch_up()
    page = Site(library, live=True).page(library.entries[0].path, {}).content.decode()
    assert "the task is done. Refused changes: 2 (&lt;rust&gt;), 4 (no_valve).</p>" in page
    assert f">{word} declaration</span>" in page


def test_episodes_of_an_application_without_pictures_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netarena.view.index.load", lambda name: gallery.Toy())
    library = Library([gallery.mixed(tmp_path / "run", 2)])
    library.catch_up()
    page = Site(library, live=True).page("episode/run/toy-1-abc-7-1.html", {})
    assert page.found
    assert b"v2 was open and is closed now." in page.content
    assert b"<figure" not in page.content


def test_side_by_side_view_compares_the_same_query_and_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netarena.view.index.load", lambda name: gallery.Drawn())
    asked = gallery.query(0)
    for name, answers in (("good", gallery.solved), ("bad", gallery.lost)):
        episodes = [answers(asked, repeat=1), gallery.lost(asked, repeat=2)]
        gallery.write_run(tmp_path / name, [asked], episodes, repeats=2)
    gallery.write_run(tmp_path / "other", [asked], [gallery.solved(asked)])
    library = Library([tmp_path / name for name in ("good", "bad", "other")])
    library.catch_up()
    site = Site(library, live=True)
    assert [path for path in site.paths() if path.startswith("same")] == [
        "same/good/toy-1-abc-7-0.html", "same/good/toy-1-abc-7-0~2.html",
        "same/good,bad/toy-1-abc-7-0.html", "same/other,bad/toy-1-abc-7-0.html",
    ]  # fmt: skip
    for path, titles in (
        ("good/toy-1-abc-7-0", ["good", "bad", "other"]),
        ("good/toy-1-abc-7-0~2", ["good", "bad"]),
        # in a pair, the run that solved the query comes first
        ("other,bad/toy-1-abc-7-0", ["other", "bad"]),
    ):
        page = site.page(f"same/{path}.html", {}).content.decode()
        assert re.findall(r"<h2><a [^>]*>(\w+)</a>", page) == titles
    assert not site.page("same/nobody,bad/toy-1-abc-7-0.html", {}).found
    page = site.page("episode/bad/toy-1-abc-7-0~2.html", {}).content.decode()
    assert 'href="../../same/good/toy-1-abc-7-0~2.html"' in page
    assert 'href="../../episode/bad/toy-1-abc-7-0.html">1</a>' in page
