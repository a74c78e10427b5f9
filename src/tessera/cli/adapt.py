"""`tessera adapt`: a token head over any bundle's backbone, fitted to one's own photos."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tessera.cli.options import JsonOption
from tessera.cli.output import counted, print_json, progress_bar, say

EXAMPLE = "Example: tessera adapt bundles/dinov2-b14 photos/ -o bundles/dinov2-mine"


def adapt(
    model: Annotated[str, typer.Argument(metavar="BUNDLE", help="A packaged model's name, or a bundle's folder.")],
    photos: Annotated[Path, typer.Argument(help="A folder of your photos; labels are not needed.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="ADAPTED", help="The folder to write.")],
    name: Annotated[str | None, typer.Option("--name", help="On the model's card; the folder's by default.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, max=64, help="Visual tokens of an image.")] = 4,
    dim: Annotated[
        int, typer.Option("--dim", min=1, help="Numbers of a descriptor, at most the map's channels.")
    ] = 1024,
    most: Annotated[int, typer.Option("--most", min=1, help="Photos to fit to; of more, evenly spaced ones.")] = 2000,
    pairs: Annotated[bool, typer.Option(help="Join photos that geometry verifies (with OpenCV).")] = True,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    json: JsonOption = False,
) -> None:
    """Fit a head of visual tokens to your own photos, over the map of any converted network.

    The tokenizer is fitted by EM to local features, the projection by whitening what changes between views of a photo
    and between photos that geometry verifies. No labels, no training: minutes on a CPU. Explanations work with the
    result. It also says how often a part of a photo finds its whole, before and after, among photos it was not
    fitted to: a first sign, so try some searches of your own before you keep it.
    """
    from tessera.errors import MissingExtraError
    from tessera.models.bundle import Bundle

    try:
        from tessera.train.adapt import AdaptSettings
        from tessera.train.adapt import adapt as fit
    except ModuleNotFoundError as error:
        if error.name in ("torch", "safetensors"):
            raise MissingExtraError("tessera adapt", "train") from error
        raise
    settings = AdaptSettings(num_tokens=tokens, dim=dim, most=most, pairs=pairs, seed=seed)
    with progress_bar("reading") as bar:
        bundle = fit(Bundle.open(model), photos, output, settings, name=name, progress=bar)
    card = bundle.card
    (figures,) = card.figures.values()
    fitted, verified = card.provenance["photos"], card.provenance["verified_pairs"]
    if json:
        answer = {"bundle": str(bundle.path), "dim": card.dim, "num_tokens": card.num_tokens, "photos": fitted}
        print_json({**answer, "verified_pairs": verified, "recall": figures, "fingerprint": card.fingerprint})
        return
    say(f"{counted(fitted, 'photo')}, {counted(verified, 'verified pair')}.")
    say(f"a part finds its whole: {figures['before']:.0%} before, {figures['after']:.0%} now (photos not fitted to).")
    print(bundle.path)
