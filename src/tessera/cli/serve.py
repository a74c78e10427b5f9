"""`tessera serve`: the HTTP API and the page of one gallery."""

from __future__ import annotations

import contextlib
import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "Example: tessera serve -g photos.tessera, then open http://127.0.0.1:8642"


def serve(
    context: typer.Context,
    gallery: Annotated[
        Path, typer.Option("-g", "--gallery", envvar="TESSERA_GALLERY", help="The gallery's folder.")
    ] = Path("gallery.tessera"),
    host: Annotated[
        str, typer.Option(help="Address to listen on; other than loopback, a key is needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8642,
    key: Annotated[str | None, typer.Option(envvar="TESSERA_KEY", help="Key that every request must give.")] = None,
    writer_key: Annotated[
        str | None,
        typer.Option(envvar="TESSERA_WRITER_KEY", help="Key for adding and removing; without it, nobody can."),
    ] = None,
    max_mb: Annotated[int, typer.Option(help="Largest picture to accept, in MiB.", min=1)] = 32,
    max_k: Annotated[int, typer.Option(help="Most results a request may ask for.", min=1)] = 200,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request is given up.", min=0.1)] = 30.0,
    max_in_flight: Annotated[int, typer.Option(help="Requests answered at once; more get 429.", min=1)] = 64,
    root_path: Annotated[
        str, typer.Option(metavar="/PREFIX", help="The path that a proxy serves it under.", show_default="none")
    ] = "",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    watch: Annotated[
        list[Path] | None,
        typer.Option("--watch", metavar="DIR", help="Follow this folder: its pictures are indexed. May be repeated."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in this machine's browser.")] = False,
) -> None:
    """Open the gallery to a browser: a page to look through and search with, and an API under /api (/openapi.json)."""
    # Searches run side by side, so their small products must not each ask for all cores (before numpy is loaded).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from tessera.errors import GalleryLockedError, UsageError
    from tessera.gallery.gallery import Gallery
    from tessera.gallery.remote.remote_store import refuse_remote
    from tessera.serve.banner import describe_addresses, page_urls
    from tessera.serve.observing.logs import log_to_stderr
    from tessera.serve.server import listen, make_server
    from tessera.serve.settings import Settings

    settings = Settings(
        gallery_path=gallery.absolute(),
        host=host,
        port=port,
        key=key,
        writer_key=writer_key,
        max_bytes=max_mb << 20,
        max_k=max_k,
        timeout_s=timeout,
        max_in_flight=max_in_flight,
        root_path=root_path,
        device=device,
        watch=tuple(folder.absolute() for folder in watch or ()),
    )
    for folder in settings.watch:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder. Name folders to watch.")
    refuse_remote(settings.gallery_path, "`serve`")
    with listen(settings) as listener:  # a port that is taken ends the command before a gallery is made
        is_new = not gallery.exists()
        with contextlib.suppress(GalleryLockedError), Gallery(settings.gallery_path):
            pass  # what is no gallery ends the command here, not in the service's log
        log_to_stderr(context.obj or ("warning" if sys.stderr.isatty() else "info"))
        if is_new and not watch:
            typer.echo(f"{gallery} is new and empty: fill it with `tessera index PHOTOS -g {gallery}`", err=True)
        port = listener.getsockname()[1]
        typer.echo(describe_addresses(settings, port, for_a_terminal=sys.stderr.isatty()), err=True)
        if open_page:  # who asks is answered as soon as the service runs: its address is taken already
            webbrowser.open(page_urls(settings, port)[0])
        with contextlib.suppress(KeyboardInterrupt):
            make_server(settings).run([listener])
