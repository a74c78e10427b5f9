"""`tessera check`: is the gallery sound?"""

from __future__ import annotations

from typing import Annotated

import typer

from tessera.cli.options import DEFAULT_GALLERY, GalleryOption, JsonOption
from tessera.cli.output import counted, print_json

EXAMPLE = "Example: tessera check --repair -g photos.tessera"


def check(
    gallery: GalleryOption = DEFAULT_GALLERY,
    repair: Annotated[bool, typer.Option("--repair", help="Put right what can be.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every picture, too: finds edits that kept size and time.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Look for damage in the catalogue and the index, and for files that are gone. Exit code 1 if any is left."""
    from tessera.gallery.check import CheckReport, check_catalog_file
    from tessera.gallery.gallery import Gallery

    # As a file first: a catalogue that is badly damaged cannot even be opened.
    report = CheckReport(check_catalog_file(gallery, repair=repair))
    if report.ok:
        with Gallery(gallery, create=False) as opened:
            rest = opened.check(repair=repair, deep=deep)
        rest.findings[:0] = report.findings
        report = rest
    if json:
        print_json(report.to_json())
    else:
        for finding in report.findings:
            print(f"{finding.kind}{' (repaired)' if finding.repaired else ''}: {finding.message}")
        if report.ok:
            print(f"{gallery} is sound: {counted(report.images, 'image')}")
        elif not repair:
            print("`tessera check --repair` puts right what can be")
    if not report.ok:
        raise typer.Exit(1)
