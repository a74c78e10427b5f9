"""`tessera system`: build and show systems of local features."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from tessera.cli.commands import CommandGroup
from tessera.cli.options import JsonOption
from tessera.cli.output import say

system = typer.Typer(
    name="system",
    cls=CommandGroup,
    help="Systems of local features (ASMK*, VLAD): build one from pictures; it then stands where a bundle may.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@system.command(
    "build",
    epilog="Example: tessera system build photos/ -o sift-asmk --extractor sift --kind asmk --words 4096",
)
def build(
    images: Annotated[Path, typer.Argument(help="A folder of pictures to fit the words to; never the test set.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The system's folder.")],
    recipe: Annotated[
        str | None,
        typer.Option(help="A .toml with the system's keys, or a packaged system's name; options are laid over it."),
    ] = None,
    extractor: Annotated[
        str | None, typer.Option(help="sift, hesaff-rsift, xfeat, disk, or the folder of a local bundle.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="asmk, rasmk or vlad.")] = None,
    words: Annotated[int | None, typer.Option(help="Words of the codebook.")] = None,
    count: Annotated[int | None, typer.Option(help="Local features of an image.")] = None,
    size: Annotated[int | None, typer.Option(help="Longer side in pixels.")] = None,
    regions: Annotated[str | None, typer.Option(help="rasmk: a JSON of boxes, or a model with tokens.")] = None,
    seed: Annotated[int, typer.Option(help="Of the order of pictures and of k-means.")] = 0,
    json: JsonOption = False,
) -> None:
    """Fit the words of a system to a folder of pictures and write it."""
    import numpy as np

    from tessera.config import find_config, from_mapping, to_mapping
    from tessera.data.sets.folder import list_images
    from tessera.errors import UsageError
    from tessera.local.system import SystemConfig, build_system, read_config

    files = list_images(images) if images.is_dir() else []
    if not files:
        raise UsageError(f"{images} is not a folder with pictures.")
    given = {"extractor": extractor, "kind": kind, "words": words, "count": count, "size": size, "regions": regions}
    base = {} if recipe is None else to_mapping(read_config(find_config("systems", recipe)))
    values = {**base, "name": output.name, **{key: value for key, value in given.items() if value is not None}}
    order = np.random.default_rng(seed).permutation(len(files))
    made = build_system(
        from_mapping(SystemConfig, values), (images / files[i] for i in order), output, seed=seed, say=say
    )
    if json:
        print(json_module.dumps({"system": str(output), "fingerprint": made.fingerprint, **to_mapping(made.config)}))
    else:
        print(f"{output}: {made.config.kind} over {made.extractor.name}, {made.config.words} words")


@system.command(
    "train",
    epilog="Example: tessera system train gldv2/ -o xfeat-tokens --recipe xfeat-tokens --role train",
)
def train(
    data: Annotated[Path, typer.Argument(help="Class folders, a CSV with path,label, or a folder in GLDv2's layout.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The system's folder.")],
    recipe: Annotated[
        str, typer.Option(help="A .toml with the system's keys, or a packaged system's name; of the kind tokens.")
    ],
    extractor: Annotated[str | None, typer.Option(help="An extractor's name or the folder of a local bundle.")] = None,
    role: Annotated[list[str] | None, typer.Option(help="GLDv2 layout: landmarks of this role of roles.csv.")] = None,
    json: JsonOption = False,
) -> None:
    """Train tokens over local features with image labels, and write them as a system."""
    import numpy as np

    from tessera.config import find_config, from_mapping, to_mapping
    from tessera.data.sets.leave_one_out import load_labelled_source
    from tessera.errors import MissingExtraError
    from tessera.local.system import SystemConfig, read_config

    values = {**to_mapping(read_config(find_config("systems", recipe))), "name": output.name}
    config = from_mapping(SystemConfig, values if extractor is None else {**values, "extractor": extractor})
    images = load_labelled_source(data, roles=role or ())
    try:
        from tessera.local.token_training import train_token_system
    except ImportError as error:
        raise MissingExtraError("training tokens over local features", "train") from error
    paths = [images.path(i) for i in range(len(images))]
    labels = np.unique(np.asarray(images.labels), return_inverse=True)[1].astype(np.int64)
    made = train_token_system(config, paths, labels, output, say=say)
    if json:
        print(json_module.dumps({"system": str(output), "fingerprint": made.fingerprint, **to_mapping(made.config)}))
    else:
        print(f"{output}: tokens over {made.extractor.name}, learnt from {len(paths)} images")
