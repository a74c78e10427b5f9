"""What each registered network costs beside its bare backbone: the extraction columns of the paper's Table 2."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tessera.errors import MissingExtraError
from tessera.models.preprocessing import DEFAULT_SCALES

if TYPE_CHECKING:
    from torch import Tensor

GLOBAL_SCALES = DEFAULT_SCALES
# The seven scales of HOW; local features are taken at each.
LOCAL_SCALES = (2.0, math.sqrt(2), 1.0, 1 / math.sqrt(2), 0.5, 1 / (2 * math.sqrt(2)), 0.25)
_GIB = 2**30


def measure_networks(*, side: int, repeats: int, names: list[str] | None = None) -> dict[str, Any]:
    """Time one image of `side` x 3/4 `side` through every network (or those named), at the scales of its kind.

    Backbone and network take turns, so a ratio is of neighbours in time. Weights are random: they do not move speed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("bench extract --table", "train") from error
    from tessera.models.model_registry import MODELS, build_model

    rows = []
    for name in names or list(MODELS):
        entry = MODELS[name]
        scales = LOCAL_SCALES if entry.kind == "local" else GLOBAL_SCALES
        network = build_model(name).eval()
        images = [torch.randn(1, 3, max(32, int(side * 3 / 4 * scale)), max(32, int(side * scale))) for scale in scales]
        bare, whole = [], []
        with torch.inference_mode():
            network(images[-1])
            for _ in range(repeats):
                bare.append(_run(network.backbone, images))
                whole.append(_run(network, images))
        rows.append(
            {
                "name": name,
                "kind": entry.kind,
                "backbone": str(network.architecture["config"]["backbone"]),
                "dim": entry.dim,
                "scales": len(scales),
                "latency_ms": round(1e3 * statistics.median(whole), 1),
                "backbone_ms": round(1e3 * statistics.median(bare), 1),
                "ratio": round(statistics.median(a / b for a, b in zip(whole, bare, strict=True)), 3),
                "memory_gib_1m": round(entry.dim * 4 * 1_000_000 / _GIB, 2) if entry.kind == "global" else None,
            }
        )
        del network, images
        gc.collect()
    return {"side": side, "threads": torch.get_num_threads(), "rows": rows}


def _run(network: Callable[[Tensor], object], images: list[Tensor]) -> float:
    started = time.perf_counter()
    for image in images:
        network(image)
    return time.perf_counter() - started


def networks_markdown(report: dict[str, Any]) -> str:
    """The rows as a table, ratios to the bare backbone at the same scales."""
    lines = [
        f"One image of {report['side']} x {report['side'] * 3 // 4}, torch on {report['threads']} threads.",
        "",
        "| network | scales | D | latency ms | backbone alone ms | ratio | 1M descriptors GiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in report["rows"]:
        memory = "-" if row["memory_gib_1m"] is None else f"{row['memory_gib_1m']:.1f}"
        lines.append(
            f"| {row['name']} | {row['scales']} | {row['dim']} | {row['latency_ms']:.0f} | {row['backbone_ms']:.0f} "
            f"| {row['ratio']:.2f} | {memory} |"
        )
    return "\n".join(lines)
