"""Synthetic descriptors that are as hard to tell apart as real ones, as many as asked for, from a seed.

Codes are only as good as the descriptors let them be, so a benchmark on random directions says nothing. Three things
are taken from real descriptors (`tessera.bench.fitting`, in a small file that ships with the package): how much of
their energy is their common mean, the spectrum of the rest, and how near a nearest neighbour is. With groups, two more:
how alike the pictures of one motif are, and pictures of one scene by other photos. Without them neighbours are few and
far, the worst case for inverted lists and graphs; galleries have bursts and copies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessera.config import from_mapping, to_mapping
from tessera.errors import DataError

Float32s = npt.NDArray[np.float32]
Float16s = npt.NDArray[np.float16]

FIT_PATH = Path(__file__).parent / "descriptors.json"
BLOCK_ROWS = 8192
_IMAGES_A_PLACE = 10
_PLACES_A_SCENE = 8
_QUERIED_BLOCKS = 32
_CACHED_ROWS = 128  # made at a time, they fit in a core's own cache


@dataclass(frozen=True)
class Fit:
    """What real descriptors were like. Eigenvalues fall and sum to one; cosines are quantiles, ascending.

    group_cosines: of two views of one photo; scene_cosines: of a view and the 40th of other photos.
    """

    model: str
    fingerprint: str
    count: int
    mean_energy: float
    eigenvalues: tuple[float, ...]
    neighbour_cosines: tuple[float, ...]
    group_cosines: tuple[float, ...] = ()
    scene_cosines: tuple[float, ...] = ()


def load_fit(path: Path = FIT_PATH) -> Fit:
    try:
        return from_mapping(Fit, json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is not a fit of descriptors. Make one with: python -m tessera.bench.fitting"
        ) from error


def save_fit(fit: Fit, path: Path) -> None:
    path.write_text(json.dumps(to_mapping(fit)) + "\n")


class Synthesis:
    """A world of N / 10 places, each seen in ten images on average; queries are further images of the same places.

    An image is  sqrt(m) mean + sqrt(1 - m) (sqrt(c) place + sqrt(1 - c) own),  normalised: m the energy of the mean,
    `place` and `own` Gaussian with the fitted spectrum, c drawn so that two images of a place have the fitted cosine.
    groups: images of a place are as alike as views of one photo, and eight places share a scene: their `place` is
    sqrt(s) scene + sqrt(1 - s) place, s drawn so that images of two of them have the fitted cosine.
    """

    def __init__(self, count: int, dim: int, *, seed: int = 0, fit: Fit | None = None, groups: bool = False) -> None:
        self.count = count
        self.dim = dim
        self.seed = seed
        self.fit = fit or load_fit()
        self.groups = groups
        if groups and not self.fit.group_cosines:
            raise DataError("The fit knows of no groups. Make one with: python -m tessera.bench.fitting --views VIEWS")
        given = np.asarray(self.fit.eigenvalues)
        # Another dimension keeps the shape of the spectrum: the same curve over the share of dimensions.
        at = (np.arange(dim) + 0.5) / dim
        spectrum = np.interp(at, (np.arange(len(given)) + 0.5) / len(given), given)
        self._deviations = np.sqrt(spectrum / spectrum.sum()).astype(np.float32)
        rng = self._rng(0)
        self._signs = rng.choice(np.array([-1, 1], np.float32), size=(2, dim))
        mean = rng.standard_normal(dim).astype(np.float32)
        self._mean = mean / np.linalg.norm(mean)

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self.seed, *key]))

    def blocks(self) -> Iterator[Float32s]:
        """The gallery in blocks; each has places of its own and depends only on the seed and its number."""
        total, cores = -(-self.count // BLOCK_ROWS), os.cpu_count() or 1
        with ThreadPoolExecutor(cores) as pool:
            for i in range(0, total, cores):
                yield from pool.map(self._block, range(i, min(i + cores, total)))

    def _block(self, number: int) -> Float32s:
        count = min(BLOCK_ROWS, self.count - number * BLOCK_ROWS)
        rng = self._rng(1, number)
        places = self._places(number)
        return self._images(places[rng.integers(0, len(places), count)], rng)

    def queries(self, count: int) -> Float32s:
        """Images of places in the gallery that are not in the gallery themselves."""
        rng = self._rng(2)
        total = -(-self.count // BLOCK_ROWS)
        chosen = rng.choice(total, size=min(total, _QUERIED_BLOCKS), replace=False)
        parts = np.array_split(np.arange(count), len(chosen))
        drawn = []
        for block, part in zip(chosen, parts, strict=True):
            places = self._places(int(block))
            drawn.append(places[rng.integers(0, len(places), len(part))])
        return self._images(np.concatenate(drawn)[rng.permutation(count)], rng)

    def _places(self, block: int) -> Float32s:
        rows = min(BLOCK_ROWS, self.count - block * BLOCK_ROWS)
        rng, count = self._rng(3, block), max(rows // _IMAGES_A_PLACE, 1)
        places = rng.standard_normal((count, self.dim), dtype=np.float32)
        if not self.groups:
            return places
        scenes = rng.standard_normal((-(-count // _PLACES_A_SCENE), self.dim), dtype=np.float32)
        among = self._shares(self.fit.scene_cosines) / np.median(self._shares(self.fit.group_cosines))
        share = _draw(np.clip(among, 0.0, 0.999), count, rng)
        places *= np.sqrt(1 - share)
        places += np.sqrt(share) * scenes[np.arange(count) // _PLACES_A_SCENE]
        return places

    def write(self, path: Path) -> Float16s:
        """Write the gallery as fp16 to a file and map it: a million need two gigabytes of disk, not of memory."""
        with path.open("wb") as file:
            for block in self.blocks():
                file.write(block.astype(np.float16).data)
        return np.memmap(path, dtype=np.float16, mode="r", shape=(self.count, self.dim))

    def _images(self, places: Float32s, rng: np.random.Generator) -> Float32s:
        """One image of each of the places given, N D."""
        cosines = self.fit.group_cosines if self.groups else self.fit.neighbour_cosines
        share = _draw(self._shares(cosines), len(places), rng)
        images = np.empty_like(places)
        for i in range(0, len(places), _CACHED_ROWS):
            part = slice(i, i + _CACHED_ROWS)
            images[part] = self._drawn(places[part], share[part], rng)
        return images

    def _drawn(self, places: Float32s, share: Float32s, rng: np.random.Generator) -> Float32s:
        raw = np.sqrt(share) * places
        own = rng.standard_normal(places.shape, dtype=np.float32)
        own *= np.sqrt(1 - share)
        raw += own
        raw *= self._deviations
        mixed = self._mix(raw)
        mixed *= np.float32(np.sqrt(1 - self.fit.mean_energy))
        mixed += np.float32(np.sqrt(self.fit.mean_energy)) * self._mean
        mixed /= np.sqrt(np.einsum("nd,nd->n", mixed, mixed))[:, None]
        return mixed

    def _shares(self, cosines: tuple[float, ...]) -> npt.NDArray[np.float64]:
        """What two images have in common beyond the mean, from their cosine."""
        return np.clip((np.asarray(cosines) - self.fit.mean_energy) / (1 - self.fit.mean_energy), 0.0, 0.999)

    def _mix(self, raw: Float32s) -> Float32s:
        """Spread the spectrum over all dimensions, as real descriptors have it: by a Hadamard turn with random signs.

        Where the dimension is not a power of two, two turns act on its leading and its trailing part, which overlap.
        """
        width = 1 << (self.dim.bit_length() - 1)
        out: Float32s = raw * self._signs[0]
        out[:, :width] = hadamard(out[:, :width])
        if width == self.dim:
            return out
        out *= self._signs[1]
        out[:, self.dim - width :] = hadamard(out[:, self.dim - width :])
        return out


def _draw(quantiles: npt.NDArray[np.float64], count: int, rng: np.random.Generator) -> Float32s:
    """Values, count 1, whose quantiles are these."""
    drawn = np.interp(rng.random(count), np.linspace(0, 1, len(quantiles)), quantiles)
    return drawn.astype(np.float32)[:, None]


def hadamard(rows: Float32s) -> Float32s:
    """The normalised Walsh-Hadamard transform of rows N W, W a power of two."""
    width = rows.shape[1]
    out = np.array(rows, dtype=np.float32, order="C")
    half = 1
    while half < width:
        pairs = out.reshape(len(out), -1, 2, half)
        difference = pairs[:, :, 0] - pairs[:, :, 1]
        pairs[:, :, 0] += pairs[:, :, 1]
        pairs[:, :, 1] = difference
        half *= 2
    out /= np.float32(np.sqrt(width))
    return out
