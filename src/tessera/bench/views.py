"""Real descriptors for `bench search`: photos, crops of them, altered copies, and sequences as a camera takes them.

A gallery has bursts, copies and frames of films, and synthetic descriptors have no such groups unless they are fitted
to some (`tessera.bench.fitting`). So a few thousand photos become ten times as many pictures of a model's own eye:

python -m tessera.bench.views PHOTOS... -o FOLDER [--limit 100000]
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer
from PIL import Image, ImageEnhance, ImageFilter

from tessera.data.images import load_photo
from tessera.errors import DataError, ImageError
from tessera.storage import atomic_path

Pixels = npt.NDArray[np.uint8]
Float16s = npt.NDArray[np.float16]
Int64s = npt.NDArray[np.int64]

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
_LOADED = 384  # crops are taken from more pixels than are described
_LEAST_SIDE = 32
_PHOTOS_A_FILE = 200
_MOST_CROPS, _MOST_ALTERED, _LONGEST_SEQUENCE = 5, 5, 7


def find_photos(folders: Sequence[Path]) -> list[Path]:
    paths = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)
    if not paths:
        raise DataError(f"There are no photos under {', '.join(map(str, folders))}.")
    return paths


def draw_views(photo: Image.Image, rng: np.random.Generator) -> Iterator[Image.Image]:
    """The photo itself, 1 to 5 crops, 1 to 5 altered copies, and 2 to 7 frames of a camera that moves over it."""
    yield photo
    for _ in range(rng.integers(1, _MOST_CROPS + 1)):
        yield _window(photo, rng.uniform(0.4, 0.9), *rng.uniform(0, 1, 2))
    for _ in range(rng.integers(1, _MOST_ALTERED + 1)):
        yield _altered(photo, rng)
    frames = int(rng.integers(2, _LONGEST_SEQUENCE + 1))
    start, end = rng.uniform(0, 1, (2, 2))
    shares = np.linspace(rng.uniform(0.6, 0.9), rng.uniform(0.6, 0.9), frames)
    for at, share in zip(np.linspace(0, 1, frames), shares, strict=True):
        left, top = start + at * (end - start)
        yield ImageEnhance.Brightness(_window(photo, share, left, top)).enhance(rng.uniform(0.93, 1.07))


def _window(photo: Image.Image, share: float, left: float, top: float) -> Image.Image:
    """A part with `share` of each side, placed from 0 (left, top) to 1 (right, bottom)."""
    wide, high = (min(side, max(int(side * share), _LEAST_SIDE)) for side in photo.size)
    x, y = int(left * (photo.width - wide)), int(top * (photo.height - high))
    return photo.crop((x, y, x + wide, y + high))


def _altered(photo: Image.Image, rng: np.random.Generator) -> Image.Image:
    """One or two of what happens to copies: light, colour, blur, compression, a mirror, a few degrees of turn."""
    ways: dict[str, Callable[[Image.Image], Image.Image]] = {
        "light": lambda picture: ImageEnhance.Brightness(picture).enhance(rng.uniform(0.6, 1.5)),
        "contrast": lambda picture: ImageEnhance.Contrast(picture).enhance(rng.uniform(0.6, 1.5)),
        "colour": lambda picture: ImageEnhance.Color(picture).enhance(rng.uniform(0.0, 1.8)),
        "blur": lambda picture: picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.5, 2.0))),
        "compression": lambda picture: _compressed(picture, int(rng.integers(15, 60))),
        "mirror": lambda picture: picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "turn": lambda picture: picture.rotate(rng.uniform(-12, 12), Image.Resampling.BILINEAR),
        "small": lambda picture: picture.resize([max(side // 2, _LEAST_SIDE) for side in picture.size]),
    }
    for name in rng.choice(sorted(ways), size=rng.integers(1, 3), replace=False):
        photo = ways[str(name)](photo)
    return photo


def _compressed(picture: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def describe_views(
    paths: Sequence[Path], folder: Path, *, model: str, size: int, limit: int, seed: int = 0, threads: int | None = None
) -> int:
    """Describe views of the photos, in a random order, until there are `limit`; how many there are then.

    Written in files of 200 photos (`descriptors` N D fp16, `photos` N: which photo), whole or not at all: a run that
    was interrupted goes on.
    """
    from tessera.extract.extractor import Extractor

    extractor = Extractor(model, size=size, scales=(1.0,), threads=threads)
    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(seed).permutation(len(paths))
    count = 0
    for number, start in enumerate(range(0, len(order), _PHOTOS_A_FILE)):
        if count >= limit:
            break
        path = folder / f"views-{number:05d}.npz"
        if path.exists():
            with np.load(path) as earlier:
                count += len(earlier["photos"])
            continue
        rows, photos = [], []
        for chosen in order[start : start + _PHOTOS_A_FILE]:
            try:
                photo = Image.fromarray(load_photo(paths[chosen], size=_LOADED))
            except ImageError:
                continue
            for view in draw_views(photo, np.random.default_rng([seed, int(chosen)])):
                small = view.copy()  # the first view is the photo, which others are still cut from
                small.thumbnail((size, size))
                rows.append(extractor.describe(np.asarray(small)))
                photos.append(chosen)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez(file, descriptors=np.asarray(rows, np.float16), photos=np.asarray(photos, np.int64))
        count += len(rows)
    return count


def read_views(folder: Path) -> tuple[Float16s, Int64s]:
    """What `describe_views` wrote: descriptors N D and the photo of each, N."""
    files = sorted(folder.glob("views-*.npz"))
    if not files:
        raise DataError(
            f"{folder} holds no views-*.npz. Make them with: python -m tessera.bench.views PHOTOS -o {folder}"
        )
    rows, photos = [], []
    for path in files:
        with np.load(path) as found:
            rows.append(found["descriptors"])
            photos.append(found["photos"])
    return np.concatenate(rows), np.concatenate(photos)


def main(
    photos: Annotated[list[Path], typer.Argument(help="Folders of photographs, searched with their subfolders.")],
    output: Annotated[Path, typer.Option("-o", help="The folder that the descriptors go to.")],
    model: Annotated[str, typer.Option(help="A packaged model's name, or the folder of a bundle.")] = "lite",
    limit: Annotated[int, typer.Option(min=100, help="Make about so many.")] = 100_000,
    size: Annotated[int, typer.Option(min=64, help="The longer side in pixels.")] = 256,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the network; all cores by default.")] = None,
) -> None:
    """Describe views of photos for `tessera bench search --views FOLDER`.

    Example: python -m tessera.bench.views photos/ -o views/ --limit 20000
    """
    count = describe_views(find_photos(photos), output, model=model, size=size, limit=limit, threads=threads)
    typer.echo(f"{count} descriptors in {output}")


if __name__ == "__main__":
    typer.run(main)
