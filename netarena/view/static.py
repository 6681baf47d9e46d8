"""Static site for a web server: all pages of the viewer, rendered in advance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from netarena.errors import ConfigError
from netarena.view.index import Library
from netarena.view.site import LIST, Site


def write_site(
    library: Library,
    out: Path,
    *,
    expect: Callable[[int], None] = lambda _: None,
    told: Callable[[], None] = lambda: None,
) -> None:
    """Write all pages below ``out``, which must be empty or missing.

    ``expect`` is called once with the number of pages, and ``told`` is called after each page.
    Raises ConfigError and OSError.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("--static", f"{out} already exists: give a new folder name")
    library.catch_up()
    site = Site(library, live=False)
    paths = list(site.paths())
    expect(len(paths))
    # The list page is written last, so that all its links work as soon as it exists.
    for path in [*(path for path in paths if path != LIST), LIST]:
        page = site.page(path, {})
        _write(out / path, page.content)
        for text in page.texts:
            _write(out / text, site.page(text, {}).content)
        told()


def write_episode(library: Library, name: str, out: Path) -> None:
    """Write an episode as a new HTML file. ``name`` is as in ``Library.find_episode``.

    Raises ConfigError and OSError.
    """
    library.catch_up()
    content = Site(library, live=False).bundle(library.find_episode(name))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise ConfigError("--static", f"{out} already exists: give a new file name") from None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
