"""`tessera index`: put pictures into a gallery."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from tessera.cli.options import DEFAULT_GALLERY, CodecOption, DeviceOption, GalleryOption, JsonOption, ModelOption
from tessera.cli.output import counted, print_json, progress_bar, say

if TYPE_CHECKING:
    from tessera.gallery.results import IndexProgress, IndexReport

_HOST_PORT = re.compile(r"[\w.\-\[\]:]+:\d+$")
EXAMPLE = "Example: tessera index photos/ more/*.png labels.csv -g photos.tessera --prune"
_SHOWN = 20


class IndexCommand(TyperCommand):
    """`--ray` takes an address or none, for which Typer has no option: without one it means this machine."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        for i, word in enumerate(given):
            follower = given[i + 1] if i + 1 < len(given) else ""
            is_address = follower in {"auto", "local"} or "://" in follower or _HOST_PORT.match(follower)
            if word == "--ray" and not is_address:
                given[i] = "--ray=local"
        return super().parse_args(ctx, given)


COMMAND_CLASS = IndexCommand


def index(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...",
            help="Folders, globs, pictures, CSV or Parquet files with a column 'path', or .txt lists; for a remote "
            "catalogue also tars, and URLs of folders, tars and Parquet files.",
        ),
    ] = None,
    gallery: GalleryOption = DEFAULT_GALLERY,
    model: ModelOption = None,
    codec: CodecOption = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="faiss|milvus:URI", help="What searches.", show_default="faiss")
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(
            "--catalog",
            metavar="local|remote",
            help="Where the records are: in the gallery's folder, or in Milvus and --storage, for many machines.",
            show_default="local",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="URL", help="Where a remote catalogue's shards are: a folder, s3://, gs://."),
    ] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Take out images whose files are gone.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make the index anew, and every descriptor if the model is another.")
    ] = False,
    device: DeviceOption = "auto",
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray", metavar="[ADDRESS]", help="Describe on a Ray cluster; without an address, on this machine."
        ),
    ] = None,
    local: Annotated[
        str | None,
        typer.Option(
            "--local",
            metavar="SYSTEM",
            help="Store local features too, for --rerank: sift, xfeat, disk, hesaff-rsift, dsm, a bundle or a system.",
        ),
    ] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Take videos, too: one frame a scene; hits carry the time.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Index pictures. Run it again at any time: it goes on where it stopped and skips what has not changed.

    Pictures that cannot be read are written down with the reason, and tried again when their files change.
    """
    from tessera.errors import TesseraError
    from tessera.gallery.gallery import Gallery
    from tessera.gallery.gallery_folder import discard_empty
    from tessera.gallery.ingest.sources import refuse_missing, resolve_source
    from tessera.gallery.remote.work_units import is_handed_out

    if not Path(gallery).exists():  # what is mistyped makes no gallery
        for source in sources or []:
            if catalog != "remote" or not is_handed_out(source):
                refuse_missing(resolve_source(source))
    is_new = not Path(gallery).exists()
    # Ray writes what becomes of its workers to stdout, which is for data.
    away = contextlib.nullcontext() if ray is None else contextlib.redirect_stdout(sys.stderr)
    try:
        with (
            Gallery(gallery, model, codec, engine, device=device, catalog=catalog, storage=storage) as opened,
            progress_bar("indexing") as bar,
            away,
        ):

            def progress(at: IndexProgress) -> None:
                if bar is not None:
                    bar(at.done, at.total, at.failed)

            report = opened.index(
                *(sources or []), prune=prune, rebuild=rebuild, progress=progress, ray=ray, local=local, video=video
            )
    except KeyboardInterrupt:
        say("what was stored stays; the same command goes on from there")
        raise
    except TesseraError:
        if is_new:  # what could not even begin makes no gallery
            discard_empty(Path(gallery))
        raise
    say_problems(report, sought=bool(sources), takes_videos=video)
    if json:
        print_json(report.to_json())
    else:
        print(f"{summary(report)} in {report.seconds:.1f} s -> {gallery}: {counted(report.images, 'image')}")
    if is_new and report.images and sys.stderr.isatty():
        _say_what_next(gallery)
    if report.local is not None:
        _say_local(report.local)
    if sources and _came_to_nothing(report):
        raise typer.Exit(1)


def _say_what_next(gallery: Path) -> None:
    """To whoever has just made a gallery by hand."""
    where = "" if gallery == DEFAULT_GALLERY else f" -g {shlex.quote(str(gallery))}"
    say(f"now: tessera search PICTURE{where}   or, in the browser: tessera serve{where}")


def _others(report: IndexReport, takes_videos: bool) -> list[str]:
    """What lay beside the pictures and a person may expect to find."""
    from tessera.data.photos.video import VIDEO_SUFFIXES

    said = []
    for are_videos in (False, True):
        counts = {one: count for one, count in sorted(report.others.items()) if (one in VIDEO_SUFFIXES) == are_videos}
        if not counts or (are_videos and takes_videos):
            continue
        files = counted(sum(counts.values()), "video" if are_videos else "file")
        advice = "--video takes a frame of each scene" if are_videos else "they are not read; convert them to have them"
        said.append(f"passed over {files} ({', '.join(counts)}): {advice}")
    return said


def say_problems(report: IndexReport, *, sought: bool, takes_videos: bool = False) -> None:
    from tessera.gallery.catalog.paths import printable

    for problem in report.problems[:_SHOWN]:
        say(f"{printable(problem.path)}: {printable(problem.reason)}")
    more = report.failed + report.passed_over + report.remarks - min(len(report.problems), _SHOWN)
    if more > 0:
        say(f"... and {more} more; `tessera stats --failed` lists what could not be read")
    if report.failed_before:
        say(f"{counted(report.failed_before, 'picture')} could not be read before, unchanged since")
    for text in _others(report, takes_videos) if sought else ():
        say(text)
    if report.ignored:
        say(f"{report.ignored} were removed before and stay away; name a picture or its folder itself to have it back")
    if report.vanished > report.pruned:
        gone = counted(report.vanished - report.pruned, "image")
        say(f"{gone} of the gallery without a file; --prune takes out what is gone")
    if sought and report.found == 0 and report.vanished == 0 and report.passed_over == 0:
        say("no pictures were found: looked for JPEG, PNG, WebP, TIFF, GIF, BMP, AVIF and HEIC files")


def _say_local(local: dict[str, Any]) -> None:
    from tessera.gallery.catalog.paths import printable

    for path, reason in list(local["problems"].items())[:_SHOWN]:
        say(f"{printable(path)}: {printable(reason)}")
    each = local["bytes"] // max(local["images"], 1)
    say(f"local features ({local['extractor']}): {local['made']} made, {local['images']} stored, {each} bytes an image")


def summary(report: IndexReport) -> str:
    counts = {
        "added": report.added,
        "changed": report.changed,
        "moved": report.moved,
        "described anew": report.redescribed,
        "unchanged": report.unchanged,
        "not readable": report.failed + report.failed_before,
        "removed": report.pruned,
    }
    parts = [f"{count} {name}" for name, count in counts.items() if count or name == "added"]
    if report.reused:
        parts[0] += f" ({counted(report.reused, 'copy', 'copies')} of known content)"
    origins = {"in their files": report.metadata_read, "given": report.metadata_given}
    told = [f"{count} {origin}" for origin, count in origins.items() if count]
    return ", ".join(parts) + (f"; with metadata: {', '.join(told)}" if told else "")


def _came_to_nothing(report: IndexReport) -> bool:
    """Whether nothing that was named could be used: a script should hear of that."""
    return report.found == report.failed + report.failed_before and report.vanished == 0
