"""Keep what a bundle's backbone and tokenizer say of views, so that heads can be learnt in minutes (learn_head.py).

    python scripts/lite/cache_tokens.py BUNDLE --photos PHOTOS --labelled THINGS -o FOLDER

Train photos: three views as `fit_lite.py` sees them and a hard one as the backbone was tuned on, the first photos of
every instance first; val photos: whole, at --sizes. A run goes on where another
stopped. cache_maps.py keeps whole maps.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from fit_lite import LEVELS, Settings, read_picture, read_settings
from measure_lite import batches
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from photos import Photo, group_labelled, read_components, read_labelled, read_photos
from tuning import SHAPES
from views import KINDS, Picture, make_hard_view, make_view

from tessera.models.bundle import Bundle

BATCH = 8
CHUNK = 64
TOKENS = 4
FIRST = 4  # photos of an instance that are looked at before others


def train_photos(photos: Path, labelled: Path, settings: Settings, roles: Sequence[str] = ("train",)) -> list[Photo]:
    """In the order of fit_lite.py: landmarks, then things."""
    landmarks = [
        photo for photo in read_photos(photos) if photo.role in roles and photo.landmark not in settings.excluded
    ]
    return landmarks + read_labelled(labelled, settings.sets)


def val_photos(photos: Path, labelled: Path) -> tuple[list[Photo], list[Photo]]:
    return [photo for photo in read_photos(photos) if photo.role == "val"], read_labelled(labelled, role="val")


def make_kind(photos: Sequence[Photo], number: int, kind: int, seed: int) -> Picture:
    """0 to 2: as fit_lite.py sees it; 3: a hard view, another photo its background now and then."""
    picture, rng = read_picture(photos[number]), np.random.default_rng([seed, number, kind])
    if kind < KINDS:
        return make_view(picture, kind, rng)
    return make_hard_view(picture, read_picture(photos[int(rng.integers(len(photos)))]), SHAPES[number % 2], rng)


class Tokens:
    """The graph of a bundle cut off behind its tokens: ONNX Runtime takes a third of torch's time for it."""

    def __init__(self, bundle: Bundle, folder: Path) -> None:
        model = onnx.load(str(bundle.onnx_path), load_external_data=False)
        (product,) = (
            node
            for node in model.graph.node
            if node.op_type == "MatMul" and node.output[0] == "/network/head/MatMul_output_0"
        )
        (maps,) = (n.output[0] for n in model.graph.node if n.output[0] == "/network/backbone/Concat_output_0")
        self.names = [maps, product.input[0]]
        del model.graph.output[:]
        model.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in self.names)
        onnx.save(model, str(folder / "tokens.onnx"))
        shutil.copy(bundle.weights_path, folder)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_mem_pattern = False
        self.session = onnxruntime.InferenceSession(str(folder / "tokens.onnx"), options)
        self.way = bundle.card.preprocessing

    def __call__(self, pictures: NDArray[np.uint8], maps: bool = False) -> list[NDArray[np.float32]]:
        """B H W 3. Returns tokens B L C and, where asked for, maps B S C."""
        images = {"images": self.way.normalise(list(pictures))}
        if not maps:
            found: list[NDArray[np.float32]] = self.session.run(self.names[1:], images)
            return found
        of_map, tokens = self.session.run(self.names, images)
        return [tokens, of_map.reshape(*of_map.shape[:2], -1).transpose(0, 2, 1)]


def cache_val(options: argparse.Namespace, run: Tokens) -> None:
    landmarks, things = val_photos(options.photos, options.labelled)
    for size in options.sizes:
        if (options.output / f"val-{size}.npy").is_file():
            continue
        kept = np.zeros((len(landmarks) + len(things), TOKENS, sum(LEVELS)), np.float16)
        for numbers, pictures in batches(landmarks + things, size):
            (kept[numbers],) = run(pictures)
        np.save(options.output / f"val-{size}.npy", kept)


def cache_train(options: argparse.Namespace, run: Tokens) -> None:
    settings = read_settings(options.recipe, [])
    photos = train_photos(options.photos, options.labelled, settings, options.roles)
    train = open_file(options.output / "train.npy", (len(photos), KINDS + 1, TOKENS, sum(LEVELS)))
    ranks = rank_in_instance(photos, read_components(options.components))
    first = (ranks >= 0) & (ranks < FIRST)
    for rows, kinds in ((first, (0, 2)), (first, (3,)), (~first, (0, 2)), (first, (1,)), (~first, (3,))):
        begin = time.time()
        numbers = sorted(np.flatnonzero(rows).tolist(), key=lambda row: ranks[row])
        numbers = [row for row in numbers if np.isnan(train[row, kinds[-1], 0, 0])]
        for begun in range(0, len(numbers), CHUNK):
            waiting: dict[tuple[int, ...], list[tuple[int, int, Picture]]] = defaultdict(list)
            for number in numbers[begun : begun + CHUNK]:
                for kind in kinds:
                    view = make_kind(photos, number, kind, options.seed)
                    waiting[view.shape].append((number, kind, view))
            for group in waiting.values():
                for start in range(0, len(group), BATCH):
                    part = group[start : start + BATCH]
                    (found,) = run(np.stack([view for _, _, view in part]))
                    for (number, kind, _), tokens in zip(part, found, strict=True):
                        train[number, kind] = tokens
        print(f"views {kinds} of {len(numbers)} photos: {time.time() - begin:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--labelled", type=Path, required=True)
    parser.add_argument("--recipe", type=Path, default=Path("scripts/lite/lite.toml"))
    parser.add_argument("--components", type=Path, default=Path("results/lite/components.csv"))
    parser.add_argument("--roles", nargs="+", default=["train"])
    parser.add_argument("--sizes", type=int, nargs="*", default=[384])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    run = Tokens(Bundle.open(options.bundle), options.output)
    cache_val(options, run)
    cache_train(options, run)


def rank_in_instance(photos: Sequence[Photo], components: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """The how-manieth photo of its component or thing each is; -1 where it has no partner."""
    things = [photo for photo in photos if photo.landmark < 0]
    place = {name: rank for names in [*components, *group_labelled(things)] for rank, name in enumerate(names)}
    return np.array([place.get(photo.id, -1) for photo in photos])


def open_file(path: Path, shape: tuple[int, ...]) -> NDArray[np.float16]:
    """Numbers that are not there yet are NaN, so that a run goes on where it stopped."""
    if path.is_file():
        there: NDArray[np.float16] = np.load(path, mmap_mode="r+")
        return there
    file = open_memmap(path, "w+", np.float16, shape)
    file[:] = np.nan
    return file


if __name__ == "__main__":
    main()
