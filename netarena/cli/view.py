"""``netarena view``: serve or write pages for the trajectories of stored runs."""

from __future__ import annotations

import socket
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from netarena.cli.screen import Meter
from netarena.cli.terminal import open_log
from netarena.errors import ConfigError

if TYPE_CHECKING:
    from netarena.view.index import Library


@click.command("view")
@click.argument(
    "directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Port on 127.0.0.1.  [default: a free port]",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--static",
    "out",
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="Write the pages to a new folder for a web server, then exit.",
)
@click.option(
    "--episode",
    metavar="ID",
    help="With --static: write only this episode, to the HTML file OUT; ID~K is its K-th "
    "repetition.",
)
@click.option("--public", is_flag=True, help="Omit ground truth and everything that reveals it.")
def command(  # noqa: PLR0913 -- one argument per option
    *,
    directories: tuple[Path, ...],
    port: int,
    opens: bool,
    out: Path | None,
    episode: str | None,
    public: bool,
) -> None:
    """Serve pages with the trajectories of the runs in each DIR, until Ctrl-C.

    Each DIR is the folder of a run, of one of its participants, or of several runs. The pages
    are updated during a run, and include runs that begin later in DIR. The printed URL contains a
    token, which is required to read the pages. The pages contain ground truth unless --public is
    given.
    """
    try:
        import netarena.view.site  # noqa: F401 -- imported to detect a missing extra early
    except ModuleNotFoundError as error:
        raise ConfigError(
            "view", f'needs {error.name}, which is not installed: pip install "netarena[view]"'
        ) from None
    from netarena.view.index import Library

    if episode is not None and out is None:
        raise ConfigError("--episode", "requires --static OUT, the file to write")
    library = Library(directories, watch=out is None, public=public)
    if out is not None:
        if not public:
            click.echo(
                "netarena: warning: the pages contain ground truth; --public omits it", err=True
            )
        _write(library, out, episode)
    else:
        _serve(library, port, opens=opens)


def _write(library: Library, out: Path, episode: str | None) -> None:
    from netarena.view.static import write_episode, write_site

    if episode is not None:
        write_episode(library, episode, out)
        click.echo(out)
        return
    with Meter("view") as meter:
        write_site(library, out, expect=meter.expect, told=lambda: meter.advance("written"))
    click.echo(out / "index.html")


def _serve(library: Library, port: int, *, opens: bool) -> None:
    from netarena.view.app import make_app, make_token, serve_app

    open_log("%(levelname)s %(name)s: %(message)s")
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConfigError("--port", f"{port} cannot be used: {error.strerror}") from None
    with listener, library:
        port, token = listener.getsockname()[1], make_token()
        url = f"http://127.0.0.1:{port}/{token}/"
        click.echo(url)
        click.echo("netarena: press Ctrl-C to stop", err=True)
        if opens:
            webbrowser.open(url)
        serve_app(make_app(library, token, port), listener)
