"""`tessera duplicates`: exact and near copies."""

from __future__ import annotations

from pathlib import Path
from shlex import join
from typing import Annotated

import typer

from tessera.cli.options import DEFAULT_GALLERY, GalleryOption, JsonOption, WhereOption
from tessera.cli.output import counted, link_to, print_json, progress_bar, say, write_csv

EXAMPLE = "Example: tessera duplicates -g photos.tessera --html copies.html"


def duplicates(
    gallery: GalleryOption = DEFAULT_GALLERY,
    where: WhereOption = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write a row for each picture instead; - is stdout.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page to look through.")] = None,
    move_to: Annotated[
        Path | None, typer.Option("--move-to", metavar="DIR", help="Move all but the kept ones into this folder.")
    ] = None,
    undo: Annotated[
        Path | None, typer.Option("--undo", metavar="DIR", help="Bring back what --move-to moved into this folder.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find exact copies and near ones: resized, recompressed, cropped, turned, with a border or text on it.

    Near copies are laid over each other and compared pixel by pixel, so that two photos of one facade are none. Of each
    group it says which picture to keep, and why. Nothing is ever deleted; --move-to moves, and --undo moves back.
    """
    from tessera.errors import UsageError
    from tessera.gallery.gallery import Gallery
    from tessera.gallery.organise.moving import move_copies, undo_moves
    from tessera.gallery.organise.review import write_review

    if undo is not None and (move_to or html or csv):
        raise UsageError("--undo goes alone.")
    with Gallery(gallery, create=False) as opened:
        if undo is not None:
            back = undo_moves(opened, undo)
            if json:
                print_json({"restored": [entry.to_json() for entry in back]})
            else:
                print(f"{len(back)} brought back")
            return
        with progress_bar("comparing", "pairs") as bar:
            groups = opened.duplicates(where=where, progress=lambda done, total: bar(done, total, 0) if bar else None)
        if html is not None:
            write_review(groups, html)
            say(f"{html} written")
        moved = move_copies(opened, groups, move_to) if move_to is not None else []
    if csv is not None:
        rows = []
        for number, group in enumerate(groups, start=1):
            rows.append([number, "keep", group.keep.path, group.reason, ""])
            rows += [
                [number, "exact" if copy.exact else "near", copy.record.path, "", f"{copy.agreement:.3f}"]
                for copy in group.copies
            ]
        write_csv(csv, ("group", "kind", "path", "reason", "agreement"), rows)
    if json:
        answer = {"groups": [group.to_json() for group in groups]}
        print_json(answer if move_to is None else {**answer, "moved": [entry.to_json() for entry in moved]})
        return
    for group in [] if csv is not None else groups:
        print(f"{'keep':<6} {link_to(group.keep.path)}  ({group.reason})")
        for copy in group.copies:
            print(f"{'exact' if copy.exact else 'near':<6} {link_to(copy.record.path)}")
        print()
    copies = sum(len(group.copies) for group in groups)
    say(f"{counted(copies, 'copy', 'copies')} in {counted(len(groups), 'group')}")
    if move_to is not None:
        words = ["tessera", "duplicates", "-g", str(gallery), "--undo", str(move_to)]
        say(f"{len(moved)} moved to {move_to}; `{join(words)}` brings them back")
