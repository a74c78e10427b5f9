"""`tessera convert`: the released files of the paper and of the systems compared, as bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tessera.cli.options import JsonOption
from tessera.cli.output import print_json, say

EXAMPLE = "Example: tessera convert token_r101.pth -o bundles/token-r101"


def convert(
    checkpoint: Annotated[
        Path, typer.Argument(help="A .pth, .pt, .pkl or .safetensors file, or the folder of a Hugging Face model.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="BUNDLE", help="The folder to write.")],
    name: Annotated[str | None, typer.Option("--name", help="On the model's card; the folder's by default.")] = None,
    whitening: Annotated[
        str | None,
        typer.Option(
            "--whitening", metavar="DATA/ss|ms", help="A learned whitening in a cirtorch file, as last layer."
        ),
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling",
            metavar="cls|gem|both",
            help="Of a foundation model: its own vector, GeM of its patches, or both.",
            show_default="cls",
        ),
    ] = None,
    heads: Annotated[
        int | None, typer.Option("--heads", help="Of a transformer, where no config.json beside the file tells it.")
    ] = None,
    activation: Annotated[
        str | None,
        typer.Option(
            "--activation", metavar="gelu|quick_gelu", help="Of a CLIP, where no config.json beside the file tells it."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Turn a checkpoint into a bundle.

    Recognised by their keys: the Token authors' network (both versions), their DELG, SOLAR, NetVLAD and R-MAC; SOLAR;
    HOW; cirtorch (GeM, MAC, SPoC, R-MAC, regional and local whitening); with ResNet-18, 34, 50, 101 or 152. And
    foundation models of any size, from Hugging Face or as their authors gave them: DINOv2, with registers or without;
    DINOv3, ViT and ConvNeXt; CLIP and OpenCLIP; SigLIP and SigLIP 2. Only weights and plain data are read from the
    file, never code.
    """
    from tessera.errors import MissingExtraError

    try:
        from tessera.models.convert import convert_checkpoint
    except ModuleNotFoundError as error:
        if error.name in ("torch", "safetensors"):
            raise MissingExtraError("tessera convert", "train") from error
        raise
    bundle = convert_checkpoint(
        checkpoint, output, name=name, whitening=whitening, pooling=pooling, heads=heads, activation=activation
    )
    card = bundle.card
    if json:
        answer = {"bundle": str(bundle.path), "kind": card.kind, "dim": card.dim, "num_tokens": card.num_tokens}
        answer |= {"format": card.provenance["format"], "architecture": card.architecture}
        print_json({**answer, "fingerprint": card.fingerprint})
        return
    backbone = card.architecture["config"]["backbone"]
    say(f"{checkpoint.name} is {card.provenance['format']} on {backbone}: {card.kind}, {card.dim} numbers.")
    if whitening is None and (known := card.provenance.get("whitenings")):
        say(f"it also holds learned whitenings, which were left out: --whitening {' or '.join(known)} adds one.")
    if assumed := card.provenance.get("assumed"):
        told = ", ".join(f"{key} {value}" for key, value in assumed.items())
        say(f"assumed, since no config.json beside it tells: {told}. The options of these names set others.")
    print(bundle.path)
