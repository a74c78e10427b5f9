"""Fit the synthetic descriptors of `bench search` to real ones: photos, their crops, a model.

Run it when the packaged model changes:  python -m tessera.bench.fitting PHOTOS [--model lite] [-o descriptors.json]
What groups there are is fitted to views of photos (`tessera.bench.views`) with --views.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from tessera.bench.synthesis import FIT_PATH, Fit, load_fit, save_fit
from tessera.bench.views import read_views
from tessera.errors import DataError

Float32s = npt.NDArray[np.float32]

_QUANTILES = 33
_ASKED, _MOST_VIEWS = 1000, 50_000
_SCENE_RANK = 40  # in the middle of the eighty images that `Synthesis` gives to a scene
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


def fit_descriptors(descriptors: Float32s, *, model: str, fingerprint: str) -> Fit:
    """What `Synthesis` needs to know of N D unit descriptors.

    The spectrum of few samples ends too early; beyond a third of their number it is continued as a power law.
    """
    count, dim = descriptors.shape
    if count < 100:
        raise DataError(f"{count} descriptors say too little about a spectrum. Give at least 100.")
    exact = descriptors.astype(np.float64)
    mean = exact.mean(axis=0)
    eigenvalues = np.linalg.eigvalsh(np.cov(exact.T))[::-1].clip(min=0)
    trusted = max(min(count // 3, dim), 8)
    if trusted < dim:
        at = np.arange(trusted // 2, trusted)
        slope, level = np.polyfit(np.log(at + 1), np.log(eigenvalues[at].clip(min=1e-12)), 1)
        rest = np.arange(trusted, dim)
        eigenvalues[rest] = np.exp(level + slope * np.log(rest + 1))
    eigenvalues = np.minimum.accumulate(eigenvalues)
    cosines = descriptors @ descriptors.T
    np.fill_diagonal(cosines, -1)
    quantiles = np.quantile(cosines.max(axis=1), np.linspace(0, 1, _QUANTILES))
    return Fit(
        model=model,
        fingerprint=fingerprint,
        count=count,
        mean_energy=round(float(mean @ mean), 6),
        eigenvalues=tuple(float(f"{value:.4g}") for value in eigenvalues / eigenvalues.sum()),
        neighbour_cosines=tuple(round(float(value), 5) for value in quantiles),
    )


def fit_groups(fit: Fit, descriptors: Float32s, photos: npt.NDArray[np.int64]) -> Fit:
    """The fit with what `Synthesis` needs to know of groups. photos: of N D views, which photo each is of."""
    chosen = np.random.default_rng(0).permutation(len(descriptors))[:_ASKED]
    together, apart = [], []
    for row in chosen:
        cosines = descriptors @ descriptors[row]
        same = photos == photos[row]
        apart.append(float(np.sort(cosines[~same])[-min(_SCENE_RANK, (~same).sum())]))
        same[row] = False
        together.extend(cosines[same].tolist())
    at = np.linspace(0, 1, _QUANTILES)
    group, scene = (tuple(np.quantile(values, at).round(5).tolist()) for values in (together, apart))
    return replace(fit, group_cosines=group, scene_cosines=scene)


def describe_crops(photos: Path, *, model: str, limit: int, size: int, seed: int = 0) -> tuple[Float32s, str]:
    """Descriptors of whole photos and of one random crop of each, at one scale; and the model's fingerprint."""
    from tessera.extract.extractor import Extractor

    extractor = Extractor(model, size=size, scales=(1.0,))
    found = [extractor.describe(pixels) for pixels in _crops(photos, limit, size, seed)]
    return np.stack(found), extractor.bundle.card.fingerprint


def _crops(photos: Path, limit: int, size: int, seed: int) -> Iterator[npt.NDArray[np.uint8]]:
    from tessera.data.images import load_photo

    rng = np.random.default_rng(seed)
    paths = sorted(path for path in photos.rglob("*") if path.suffix.lower() in _SUFFIXES)
    if not paths:
        raise DataError(f"There are no photos under {photos}.")
    for i in np.sort(rng.permutation(len(paths))[:limit]):
        whole = load_photo(paths[i], size=size)
        yield whole
        height, width = whole.shape[:2]
        share = rng.uniform(0.4, 0.9)
        high, wide = max(int(height * share), min(height, 32)), max(int(width * share), min(width, 32))
        top, left = int(rng.integers(0, height - high + 1)), int(rng.integers(0, width - wide + 1))
        yield np.ascontiguousarray(whole[top : top + high, left : left + wide])


def main(
    photos: Annotated[
        Path | None,
        typer.Argument(help="A folder of photographs, searched with its subfolders; else the packaged fit."),
    ] = None,
    views: Annotated[
        Path | None, typer.Option(help="A folder of `python -m tessera.bench.views`: fit the groups, too.")
    ] = None,
    model: Annotated[str, typer.Option(help="A packaged model's name, or the folder of a bundle.")] = "lite",
    limit: Annotated[int, typer.Option(min=50, help="Use at most so many photos.")] = 3000,
    size: Annotated[int, typer.Option(min=64, help="The longer side in pixels.")] = 256,
    output: Annotated[Path, typer.Option("-o", help="Where to write the fit.")] = FIT_PATH,
) -> None:
    """Describe photos and crops of them, and write what `tessera bench search` imitates.

    Example: python -m tessera.bench.fitting photos/ --model lite
    """
    fit = load_fit()
    if photos is not None:
        descriptors, fingerprint = describe_crops(photos, model=model, limit=limit, size=size)
        fit = fit_descriptors(descriptors, model=model, fingerprint=fingerprint)
    if views is not None:
        rows, of = read_views(views)
        fit = fit_groups(fit, rows[:_MOST_VIEWS].astype(np.float32), of[:_MOST_VIEWS])
    save_fit(fit, output)
    typer.echo(f"{fit.count} descriptors, energy of the mean {fit.mean_energy:.3f}: {output}")


if __name__ == "__main__":
    typer.run(main)
