"""Pages: links and anchors have targets, and required contents are present."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from netarena.report.markdown import replace_section
from netarena.task.application import load

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EVIDENCE = DOCS / "evidence"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
#: sections that programs write, by page of evidence
SECTIONS = {
    "malt": ["audit malt", "draw malt", "language malt", "readings malt"],
    "malt-planning": ["planning malt", "blocking malt"],
    "route": ["audit route", "agents"],
    "k8s": ["audit k8s", "agents"],
}
#: maximum number of words of a page for users without its code blocks: ten minutes of reading
USE_WORDS = 1500
#: folders whose remedies, docstrings and comments may name pages
SOURCES = ("netarena", "apps", "a2a_purple", "benchmarks", "scripts", "scenarios", "tests", "docs")

FENCED = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
#: a word between spaces; the lines of tables are not words
WORD = re.compile(r"\S*\w\S*")
NAMED = re.compile(r"\bdocs/[\w./-]+\.md\b")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """Return GitHub's anchors of a page's headings: joined by hyphens, with numbers if repeated."""
    found: list[str] = []
    for heading in HEADING.findall(prose(page)):
        text = LINK.sub("]", heading).lower()
        found.append(re.sub(r"[^\w -]", "", text).strip().replace(" ", "-"))
    return {
        slug if (times := found[:place].count(slug)) == 0 else f"{slug}-{times}"
        for place, slug in enumerate(found)
    }


def astray(page: Path) -> list[str]:
    """Return the links of a page whose targets do not exist."""
    lost = []
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if ":" in path:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    return lost


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_and_anchor_has_a_target(page: Path) -> None:
    assert not astray(page)


def test_broken_link_is_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Where `it` is, now\n## Twice\n## Twice\n```\n# no heading\n[no](link.md)\n```\n"
        "[a](#where-it-is-now) [b](#twice-1) [c](page.md#twice) [d](https://example.org/x.md)\n"
        "[e](#no-heading) [f](#twice-2) [g](other.md) [h](page.md#where)\n"
    )
    assert astray(page) == ["#no-heading", "#twice-2", "other.md", "page.md#where"]


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=_name)
def test_page_for_users_has_a_limited_number_of_words(page: Path) -> None:
    assert len(WORD.findall(prose(page))) <= USE_WORDS


def test_every_page_is_listed() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in LINK.findall(prose(PAGES[0]))}
    assert not {_name(page) for page in DOCS.glob("*.md") if page not in linked}
    index = EVIDENCE / "README.md"
    assert index in linked
    listed = {(EVIDENCE / link).resolve() for link in LINK.findall(prose(index))} | {index}
    assert set(EVIDENCE.glob("*.md")) <= listed


def test_every_page_that_the_sources_name_exists() -> None:
    """Remedies, docstrings and commands name pages, which may be moved."""
    files = [
        path
        for path in [*ROOT.glob("*"), *(p for name in SOURCES for p in (ROOT / name).rglob("*"))]
        if path.suffix in {".py", ".md", ".toml", ".json5", ".route", ".malt", ".k8s", ""}
        and path.is_file()
        and path.name != "CHANGELOG.md"
    ]
    named = {
        (name, _name(path))
        for path in files
        for name in NAMED.findall(path.read_text(encoding="utf-8", errors="replace"))
    }
    assert ("docs/cluster.md", "apps/netarena_k8s/real/workload_set.py") in named
    assert not [pair for pair in named if not (ROOT / pair[0]).exists()]


def test_changelog_lists_the_release_and_has_one_short_line_per_entry() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    releases = [line.split()[1] for line in lines if line.startswith("## ")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert releases == ["Unreleased", project["version"], "0.1.0"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {project['version']}\n" in citation
    kinds = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert not [line for line in lines if line.startswith("- ") and len(line.split()) > 21]
    assert len(lines) <= 150


def test_architecture_page_names_every_module_of_the_core() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    core = ROOT / "netarena"
    modules = {path.stem for path in core.glob("[!_]*.py")}
    modules |= {path.parent.name for path in core.glob("[!_]*/__init__.py")}
    rows = "".join(line for line in page.splitlines() if line.startswith("| "))
    assert modules == modules & set(re.findall(r"`(\w+)`", rows))


@pytest.mark.parametrize("name", SECTIONS)
def test_programs_replace_sections_of_evidence_pages(name: str) -> None:
    page = (EVIDENCE / f"{name}.md").read_text(encoding="utf-8")
    for section in SECTIONS[name]:
        assert len(replace_section(page, section, ())) < len(page)
    use = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert "<!--" not in use
    assert f"evidence/{name}.md" in use


@pytest.mark.parametrize("printed", ["role: by solved safely\n#  agent \n1  oracle\n\nmore\n", ""])
def test_demo_writes_its_first_table_into_the_page(tmp_path: Path, printed: str) -> None:
    page = tmp_path / "README.md"
    page.write_text("# Here\n<!-- demo -->\n\n```\nold\n```\n\n<!-- /demo -->\nthe end\n")
    command = [sys.executable, str(ROOT / "benchmarks" / "readme_table.py"), str(page)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, input=printed.encode(), check=False, capture_output=True, env=environment
    )
    assert done.returncode == (0 if printed else 1), done.stderr
    table = "role: by solved safely\n#  agent\n1  oracle" if printed else "old"
    assert page.read_text() == (
        f"# Here\n<!-- demo -->\n\n```\n{table}\n```\n\n<!-- /demo -->\nthe end\n"
    )


def test_readme_table_has_the_format_of_the_demo() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("<!-- demo -->\n\n```\n")[2].partition("```")[0]
    title, head, *rows = table.splitlines()
    assert title == "malt_operator: ranked by the rate solved safely"
    demo = (ROOT / "scripts" / "demo").read_text(encoding="utf-8")
    agents = re.search(r"malt\) agents=\((.*?)\) queries=(\d+)", demo)
    assert agents is not None
    malt = load("malt")
    asked = str(int(agents[2]) * len(malt.labels(malt.config_type.parse({}))))
    # agents that solve equally many queries are ranked by time
    assert sorted(row.split()[1] for row in rows) == sorted(agents[1].split())
    graded = head.index("graded")
    assert {row[graded:].split()[0] for row in rows} == {asked}


@pytest.mark.parametrize(
    ("script", "status", "between"),
    [
        (
            "import sys; print('warming up'); print('| a |'); print(f'| {sys.argv[1]} |')",
            0,
            r"`python \S+bench\.py 7`, \d+ processors, load \d+( to \d+)?:\n\n\| a \|\n\| 7 \|",
        ),
        ("print('| a |'); raise SystemExit(3)", 3, "old"),
        ("print('nothing')", 1, "old"),
    ],
)
def test_benchmark_writes_its_table_into_a_page(
    tmp_path: Path, script: str, status: int, between: str
) -> None:
    bench, page = tmp_path / "bench.py", tmp_path / "page.md"
    bench.write_text(script)
    page.write_text("# Here\n<!-- speed -->\n\nold\n\n<!-- /speed -->\nthe end\n")
    program = ROOT / "benchmarks" / "into_page.py"
    command = [sys.executable, str(program), str(page), "speed", str(bench), "7"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, timeout=60, env=environment)
    assert done.returncode == status, done.stderr
    text = f"# Here\n<!-- speed -->\n\n{between}\n\n<!-- /speed -->\nthe end\n"
    assert re.fullmatch(text, page.read_text())
