"""Small JPEGs of gallery pictures, kept in memory: a page of two hundred hits asks for all of them at once."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict

from PIL import Image

from tessera.data.images import Pixels

THUMBNAIL_SIDE = 384
DISPLAY_SIDE = 1600
CACHE_BYTES = 96 << 20


def encode_jpeg(pixels: Pixels, quality: int = 82) -> bytes:
    """A picture as a JPEG that every browser shows."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


class ByteCache:
    """Least recently used first out, bounded by bytes; safe between threads."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[object, bytes] = OrderedDict()

    def get(self, key: object) -> bytes | None:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
            return None

    def put(self, key: object, content: bytes) -> None:
        with self._lock:
            old = self._entries.pop(key, None)
            self.num_bytes += len(content) - (len(old) if old is not None else 0)
            self._entries[key] = content
            while self.num_bytes > self.max_bytes and self._entries:
                _, dropped = self._entries.popitem(last=False)
                self.num_bytes -= len(dropped)
