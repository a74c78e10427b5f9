"""`tessera watch`: keep a gallery in step with folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tessera.cli.options import DEFAULT_GALLERY, DeviceOption, GalleryOption, JsonOption, ModelOption
from tessera.cli.output import counted, print_json, say

if TYPE_CHECKING:
    from tessera.gallery.results import IndexReport

EXAMPLE = "Example: tessera watch photos/ -g photos.tessera"


def watch(
    folders: Annotated[list[str], typer.Argument(metavar="DIR...", help="Folders to follow, with all below them.")],
    gallery: GalleryOption = DEFAULT_GALLERY,
    model: ModelOption = None,
    poll: Annotated[
        float | None,
        typer.Option("--poll", min=0.1, metavar="SECONDS", help="Look so often instead of waiting for the system."),
    ] = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Index folders and follow them: new, changed, moved and deleted pictures. Searches go on. Ends with Ctrl-C.

    A watched folder that vanishes keeps its pictures in the gallery until it is back: a disk may have been taken out.
    """
    from tessera.cli.index import say_problems, summary
    from tessera.errors import TesseraError
    from tessera.gallery.gallery import Gallery
    from tessera.gallery.gallery_folder import discard_empty
    from tessera.gallery.ingest.watching import WatchConfig, Watcher
    from tessera.gallery.remote.remote_store import refuse_remote

    def told(report: IndexReport) -> None:
        if json:
            print_json(report.to_json())
        else:
            say_problems(report, sought=False)
            print(f"{summary(report)} in {report.seconds:.1f} s: {counted(report.images, 'image')}", flush=True)

    refuse_remote(Path(gallery), "`watch`")
    is_new = not Path(gallery).exists()
    config = WatchConfig() if poll is None else WatchConfig(poll_s=poll, events=False)
    try:
        with Gallery(gallery, model, device=device) as opened:
            watcher = Watcher(opened, folders, say=say, told=told, config=config)
            say(f"watching {', '.join(str(folder) for folder in watcher.folders)} (stop with Ctrl-C)")
            watcher.run()
    except TesseraError:
        if is_new:
            discard_empty(Path(gallery))
        raise
