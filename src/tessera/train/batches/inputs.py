"""Batches as the network takes them: normalised tensors of photos, or maps of a frozen backbone from the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tessera.config import fingerprint
from tessera.data.transforms import Pixels
from tessera.errors import StorageError
from tessera.models.backbones import Backbone
from tessera.storage import storage_error
from tessera.train.batches.loader import PhotoLoader
from tessera.train.batches.sampler import Indices

Inputs = Tensor | list[Tensor]  # B 3 H W, or 1 3 H W each where shapes differ; maps B C H W in the frozen mode


class InputLoader(Protocol):
    """What the loop reads: inputs and the indices they really are of, in the order asked for."""

    photos: PhotoLoader

    def batches(self, batches: Iterable[Indices], epoch: int | None) -> Iterator[tuple[Inputs, Indices]]: ...


class ImageInputs:
    """Photos as normalised tensors on the device."""

    def __init__(self, photos: PhotoLoader, backbone: Backbone, device: torch.device) -> None:
        self.photos, self.device = photos, device
        self.dtype = next(backbone.parameters()).dtype
        self._mean = torch.tensor(backbone.mean, device=device).view(1, 3, 1, 1) * 255
        self._std = torch.tensor(backbone.std, device=device).view(1, 3, 1, 1) * 255

    def batches(self, batches: Iterable[Indices], epoch: int | None) -> Iterator[tuple[Inputs, Indices]]:
        for photos in self.photos.batches(batches, epoch):
            yield self.to_inputs(photos.pixels), photos.indices

    def to_inputs(self, pixels: list[Pixels]) -> Inputs:
        if len({photo.shape for photo in pixels}) == 1:
            return self._normalise(np.stack(pixels))
        return [self._normalise(photo[None].copy()) for photo in pixels]  # a decoded picture may be read-only

    def _normalise(self, pixels: npt.NDArray[np.uint8]) -> Tensor:
        """B H W 3 to B 3 H W; the memory stays as it lies (channels last), which convolutions on CPUs like best."""
        batch = torch.from_numpy(pixels).to(self.device, non_blocking=True).permute(0, 3, 1, 2)
        return batch.to(self.dtype).sub_(self._mean).div_(self._std)


class MapInputs:
    """Maps of a backbone that does not change, computed once a view and kept on the disk as float16.

    A view is one augmentation of an image; epoch e shows view e modulo `views`. The folder's name holds the
    fingerprints of the backbone's weights, of the images, of the transform and of the seed: other maps, other folder.
    """

    def __init__(self, images: ImageInputs, backbone: nn.Module, folder: Path, views: int) -> None:
        self.photos, self.images, self.backbone, self.views = images.photos, images, backbone, views
        reader = images.photos.reader
        self.key = fingerprint(
            weights_fingerprint(backbone),
            [_file_key(path) for path in reader.paths],
            reader.transform,
            reader.seed,
            reader.decode_size,
            views,
        )
        self.folder = folder / self.key
        self._maps: npt.NDArray[np.float16] | None = None
        self._sources: npt.NDArray[np.int64] | None = None  # 0 where there is no map yet, else 1 + the image it is of
        self.computed = 0

    def batches(self, batches: Iterable[Indices], epoch: int | None) -> Iterator[tuple[Inputs, Indices]]:
        assert epoch is not None, "validation goes through the pictures"
        view = epoch % self.views
        for wanted in batches:
            rows = wanted * self.views + view
            self._open()
            present = self._sources[rows] != 0 if self._sources is not None else np.zeros(len(rows), dtype=bool)
            if not present.all():
                self._compute(np.unique(wanted[~present]), view)
            assert self._maps is not None and self._sources is not None
            maps = torch.from_numpy(self._maps[rows]).to(self.images.device, self.images.dtype)
            yield maps, self._sources[rows] - 1

    @torch.no_grad()
    def _compute(self, indices: Indices, view: int) -> None:
        self.backbone.eval()
        for inputs, sources in self.images.batches([indices], view):
            assert isinstance(inputs, Tensor), "maps are kept for crops of one size only"
            maps = self.backbone(inputs).to(torch.float16).cpu().numpy()
            self._open(maps.shape[1:])
            assert self._maps is not None and self._sources is not None
            rows = indices * self.views + view
            self._maps[rows] = maps
            self._sources[rows] = sources + 1
            self.computed += len(rows)

    def _open(self, shape: tuple[int, ...] | None = None) -> None:
        """Map the files, made on first use; a source is set after its map, so a killed run leaves no hole."""
        if self._maps is not None:
            return
        maps_path, sources_path = self.folder / "maps.npy", self.folder / "sources.npy"
        total = len(self.photos) * self.views
        try:
            if not maps_path.is_file():
                if shape is None:
                    return
                self.folder.mkdir(parents=True, exist_ok=True)
                _make_array(sources_path, (total,), np.int64)
                _make_array(maps_path, (total, *shape), np.float16)
            self._maps = np.lib.format.open_memmap(maps_path, mode="r+")
            self._sources = np.lib.format.open_memmap(sources_path, mode="r+")
        except OSError as error:
            raise storage_error(error, maps_path) from error
        except ValueError as error:
            raise StorageError(f"the kept maps are damaged ({error}): remove {self.folder}.") from error


def weights_fingerprint(module: nn.Module) -> str:
    """A short hash of every weight and buffer, names included."""
    import hashlib

    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _file_key(path: Path) -> list[str | int]:
    """Which picture a file holds, as far as its name, size and time of change tell; one that is missing has a name."""
    try:
        status = path.stat()
    except OSError:
        return [str(path.absolute())]
    return [str(path.absolute()), status.st_size, status.st_mtime_ns]


def _make_array(path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
    """A file of zeros that appears whole; of several processes that make it at once, the first one's stays."""
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape).flush()  # sparse where the disk allows
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
