"""Tessera: find the same place or object in a collection of images, and see why.

>>> import tessera
>>> gallery = tessera.Gallery("photos.tessera")
>>> gallery.index("photos/")
>>> hits = gallery.search("tower.jpg", box=(120, 40, 600, 700), k=10)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tessera.errors import TesseraError

if TYPE_CHECKING:
    from tessera.extract.extractor import Extractor
    from tessera.gallery.catalog.filters import Near
    from tessera.gallery.gallery import Gallery, Hit, IndexReport, Record, SearchResult
    from tessera.gallery.ingest.importing import DescribedImage
    from tessera.gallery.ingest.watching import Watcher
    from tessera.gallery.organise.duplicates import Copy, CopyGroup
    from tessera.gallery.organise.groups import PhotoGroup
    from tessera.models.bundle import Bundle

__version__ = "0.2.0"
__all__ = [
    "Bundle",
    "Copy",
    "CopyGroup",
    "DescribedImage",
    "Extractor",
    "Gallery",
    "Hit",
    "IndexReport",
    "Near",
    "PhotoGroup",
    "Record",
    "SearchResult",
    "TesseraError",
    "Watcher",
    "__version__",
]

# Loaded on first use, so that `import tessera` stays instant and pulls in neither faiss nor torch.
_LAZY = {
    "Bundle": "tessera.models.bundle",
    "Copy": "tessera.gallery.organise.duplicates",
    "CopyGroup": "tessera.gallery.organise.duplicates",
    "DescribedImage": "tessera.gallery.ingest.importing",
    "Extractor": "tessera.extract.extractor",
    "Gallery": "tessera.gallery.gallery",
    "Hit": "tessera.gallery.gallery",
    "IndexReport": "tessera.gallery.gallery",
    "Near": "tessera.gallery.catalog.filters",
    "PhotoGroup": "tessera.gallery.organise.groups",
    "Record": "tessera.gallery.gallery",
    "SearchResult": "tessera.gallery.gallery",
    "Watcher": "tessera.gallery.ingest.watching",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'tessera' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
