"""`tessera embed`: images to descriptors in a file."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import Annotated

import typer


def embed(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Image files, in the order of the output.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.npz", help="Where the descriptors go.")],
    model: Annotated[str, typer.Option(help="A packaged model's name, or the folder of a bundle.")] = "lite",
    size: Annotated[
        int | None, typer.Option(help="Longer side in pixels; never enlarged. The model's own by default.")
    ] = None,
    scales: Annotated[
        str | None, typer.Option(help="Scales, in words such as 1/sqrt2,1,sqrt2. The model's own by default.")
    ] = None,
    runtime: Annotated[str, typer.Option(help="onnx or torch.")] = "onnx",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Say what was written as JSON on stdout.")] = False,
) -> None:
    """Turn images into descriptors: arrays `paths` and `descriptors` (N x D, unit norm), in order, in an .npz file.

    Every image must be readable: with one that is not, nothing is written.

    Example: tessera embed a.jpg b.jpg -o descriptors.npz --size 1024 --scales 1/sqrt2,1,sqrt2
    """
    import numpy as np

    from tessera.data.images import printable
    from tessera.errors import ImageError, UsageError
    from tessera.extract.extractor import Extractor
    from tessera.extract.progress import extraction_progress
    from tessera.extract.scales import parse_scales
    from tessera.storage import atomic_path

    if output.is_dir():
        raise UsageError(f"{output} is a folder. Give the name of a file: -o {output / 'descriptors.npz'}")
    parsed = parse_scales(scales) if scales is not None else None
    extractor = Extractor(model, runtime=runtime, device=device, size=size, scales=parsed)
    descriptors = np.empty((len(images), extractor.dim), dtype=np.float32)
    failures = []
    with extraction_progress(len(images)) as progress:
        for i, extraction in enumerate(extractor.extract(images, progress=progress)):
            if extraction.descriptor is None:
                failures.append(str(extraction.error))
            else:
                descriptors[i] = extraction.descriptor
    if failures:
        for failure in failures[:-1]:
            print(f"error: {failure}", file=sys.stderr)
        raise ImageError(f"{failures[-1]} Nothing was written: {len(failures)} of {len(images)} could not be read.")
    with atomic_path(output) as temporary, temporary.open("wb") as file:
        np.savez(file, paths=np.array(images), descriptors=descriptors)
    summary = {
        "output": printable(output),
        "count": len(images),
        "dim": extractor.dim,
        "model": extractor.bundle.card.name,
        "fingerprint": extractor.fingerprint,
        "size": extractor.size,
        "scales": list(extractor.scales),
    }
    if json:
        print(json_module.dumps(summary))
    else:
        noun = "descriptor" if len(images) == 1 else "descriptors"
        print(f"{len(images)} {noun} of {extractor.dim} numbers -> {printable(output)}")
