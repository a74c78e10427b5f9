"""The codecs: how descriptors are coded, and how coded rows are searched. Reading the table loads none of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from tessera.registry import Registry

if TYPE_CHECKING:
    from tessera.index.codecs.codec import Codec

AUTO = "auto"  # by the number of images: `tessera.index.build.choose_codec`
CODECS: Registry[str] = Registry("codec")  # module:class
CODECS.add("flat", "flat:FlatCodec")
CODECS.add("pq1", "pq1:Pq1Codec")
CODECS.add("pq8", "pq8:Pq8Codec")
CODECS.add("fast", "fast:FastCodec")
CODECS.add("ivf", "ivf:IvfCodec")


def codec_class(name: str) -> type[Codec]:
    module, _, class_name = CODECS[name].partition(":")
    return cast("type[Codec]", getattr(importlib.import_module(f"{__name__}.{module}"), class_name))
