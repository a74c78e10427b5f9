"""`tessera embed`: images to descriptors in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tessera.cli.options import DeviceOption, JsonOption, ModelOption
from tessera.cli.output import counted, print_json, progress_bar, say

EXAMPLE = "Example: tessera embed a.jpg b.jpg -o descriptors.npz --size 1024 --scales 1/sqrt2,1,sqrt2"


def embed(
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE...", help="Image files and folders, in the order of the output.")
    ],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.npz", help="Where the descriptors go.")],
    model: ModelOption = None,
    size: Annotated[
        int | None, typer.Option(help="Longer side in pixels; never enlarged. The model's own by default.")
    ] = None,
    scales: Annotated[
        str | None, typer.Option(help="Scales, in words such as 1/sqrt2,1,sqrt2. The model's own by default.")
    ] = None,
    runtime: Annotated[str, typer.Option(metavar="onnx|torch|openvino", help="What runs the network.")] = "onnx",
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Turn images into descriptors: arrays `paths` and `descriptors` (N x D, unit norm), in order, in an .npz file.

    Every image must be readable: with one that is not, nothing is written.
    """
    import numpy as np

    from tessera.data.images import printable
    from tessera.errors import ImageError, UsageError
    from tessera.extract.extractor import Extractor
    from tessera.extract.scales import parse_scales
    from tessera.models.bundle import DEFAULT_MODEL
    from tessera.storage import atomic_path

    if output.is_dir():
        raise UsageError(f"{output} is a folder. Give the name of a file: -o {output / 'descriptors.npz'}")
    parsed = parse_scales(scales) if scales is not None else None
    images = list(_files(images))
    if not images:
        raise UsageError("No pictures were found in the folders that were named.")
    extractor = Extractor(model or DEFAULT_MODEL, runtime=runtime, device=device, size=size, scales=parsed)
    descriptors = np.empty((len(images), extractor.dim), dtype=np.float32)
    failures = []
    with progress_bar("describing") as bar:
        for i, extraction in enumerate(extractor.extract(images)):
            if extraction.descriptor is None:
                failures.append(str(extraction.error))
            else:
                descriptors[i] = extraction.descriptor
            if bar is not None:
                bar(i + 1, len(images), len(failures))
    if failures:
        for failure in failures[:-1]:
            say(f"error: {failure}")
        raise ImageError(f"{failures[-1]} Nothing was written: {len(failures)} of {len(images)} could not be read.")
    with atomic_path(output) as temporary, temporary.open("wb") as file:
        np.savez(file, paths=np.array(images), descriptors=descriptors)
    if json:
        print_json(
            {
                "output": printable(output),
                "count": len(images),
                "dim": extractor.dim,
                "model": extractor.bundle.card.name,
                "fingerprint": extractor.fingerprint,
                "size": extractor.size,
                "scales": list(extractor.scales),
            }
        )
    else:
        print(f"{counted(len(images), 'descriptor')} of {extractor.dim} numbers -> {printable(output)}")


def _files(named: list[str]) -> Iterator[str]:
    """The pictures that were named, folders replaced by all pictures below them."""
    from tessera.gallery.catalog.paths import from_blob
    from tessera.gallery.ingest.sources import find_files, resolve_source

    for name in named:
        if Path(name).is_dir():
            found = find_files([resolve_source(name)], lambda path, reason: say(f"{from_blob(path)}: {reason}"))
            yield from (
                os.path.relpath(from_blob(file.path)) if not Path(name).is_absolute() else from_blob(file.path)
                for file in found
            )
        else:
            yield name
