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
        Path,
        typer.Argument(
            help="A .pth, .pt, .pkl, .safetensors or .onnx file, a Hugging Face model's folder, or `timm:NAME`."
        ),
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
            help="Of a foundation model: its own vector, GeM of its patches, or both. Of ONNX: cls or gem.",
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
    mean: Annotated[
        str | None,
        typer.Option("--mean", metavar="R,G,B", help="Of an ONNX file: taken from pixels in 0..1 (ImageNet's)."),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option("--std", metavar="R,G,B", help="Of an ONNX file: what they are divided by (ImageNet's)."),
    ] = None,
    size: Annotated[int | None, typer.Option("--size", help="Longer side that pictures are brought to.")] = None,
    tensor: Annotated[
        str | None, typer.Option("--tensor", metavar="NAME", help="Which output of an ONNX file, where it has several.")
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Of a bundle (give its folder): another one, its matrices in eight bits.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Turn a checkpoint into a bundle.

    Recognised by their keys: the Token authors' network (both versions), their DELG, SOLAR, NetVLAD and R-MAC; SOLAR;
    HOW; cirtorch (GeM, MAC, SPoC, R-MAC, regional and local whitening); with ResNet-18, 34, 50, 101 or 152. And
    foundation models of any size, from Hugging Face or as their authors gave them: DINOv2, with registers or without;
    DINOv3, ViT and ConvNeXt; CLIP and OpenCLIP; SigLIP and SigLIP 2. Only weights and plain data are read from the
    file, never code.

    Any ONNX file that gives a vector, a map or patches for an image becomes a bundle, too. It is run at several sizes
    and in batches first; one that takes a single size is given pictures stretched to it.
    """
    from tessera.errors import MissingExtraError, UsageError

    try:
        from tessera.models.convert import convert_checkpoint, convert_timm
        from tessera.models.convert.onnx_graph import convert_onnx
    except ModuleNotFoundError as error:
        if error.name in ("torch", "safetensors"):
            raise MissingExtraError("tessera convert", "train") from error
        raise
    if int8:
        from tessera.models.bundle import Bundle
        from tessera.models.quantised import quantise_bundle

        if whitening or pooling or heads or activation or mean or std or size or tensor:
            raise UsageError("--int8 takes a bundle as it is: beside it only --name can be set.")
        bundle = quantise_bundle(Bundle.open(checkpoint), output, name=name)
    elif str(checkpoint).startswith("timm:"):
        if whitening or heads or activation or mean or std or tensor:
            raise UsageError("of a model of timm only --name, --pooling and --size can be set.")
        bundle = convert_timm(str(checkpoint), output, name=name, pooling=pooling, size=size)
    elif checkpoint.suffix == ".onnx":
        if whitening or heads or activation:
            raise UsageError("--whitening, --heads and --activation are for checkpoints: an ONNX file has its own.")
        given = {key: parse_triple(text, key) for key, text in (("mean", mean), ("std", std)) if text is not None}
        bundle = convert_onnx(checkpoint, output, name=name, size=size, tensor=tensor, pooling=pooling, **given)
    else:
        if mean or std or tensor:
            raise UsageError("--mean, --std and --tensor are for ONNX files: a checkpoint brings its own.")
        bundle = convert_checkpoint(
            checkpoint,
            output,
            name=name,
            whitening=whitening,
            pooling=pooling,
            heads=heads,
            activation=activation,
            size=size,
        )
    card = bundle.card
    if json:
        answer = {"bundle": str(bundle.path), "kind": card.kind, "dim": card.dim, "num_tokens": card.num_tokens}
        answer |= {"format": card.provenance["format"], "architecture": card.architecture}
        print_json({**answer, "fingerprint": card.fingerprint})
        return
    config = card.architecture["config"]
    on = f" on {config['backbone']}" if "backbone" in config else ""
    say(f"{checkpoint.name} is {card.provenance['format']}{on}: {card.kind}, {card.dim} numbers.")
    if sides := config.get("sides"):
        say(f"it has one size: every picture is stretched to {sides[1]} x {sides[0]}.")
    if whitening is None and (known := card.provenance.get("whitenings")):
        say(f"it also holds learned whitenings, which were left out: --whitening {' or '.join(known)} adds one.")
    if assumed := card.provenance.get("assumed"):
        told = ", ".join(f"{key} {value}" for key, value in assumed.items())
        say(f"assumed, since no config.json beside it tells: {told}. The options of these names set others.")
    print(bundle.path)


def parse_triple(text: str, what: str) -> tuple[float, ...]:
    """Three numbers, or one for all three."""
    from tessera.errors import UsageError

    try:
        numbers = tuple(float(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 3):
        raise UsageError(f"--{what} needs one number or three, such as 0.485,0.456,0.406, not '{text}'.")
    return numbers * 3 if len(numbers) == 1 else numbers
