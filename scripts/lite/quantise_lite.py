"""`lite` with its convolutions in eight bits, in several ways: mAP on val and the time of a picture, beside floats.

    python scripts/lite/quantise_lite.py --photos PHOTOS -o formats.csv

Static quantisation by ONNX Runtime: weights by channel, activations calibrated on train photos. What is left out stays
in floats; the head always does.
"""

from __future__ import annotations

import argparse
import csv
import logging
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from measure_lite import batches, in_order, score
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from photos import Photo, read_components, read_photos

from tessera.models.bundle import Bundle
from tessera.models.quantised import _fold_constants

_LOOKED_AT, _CALIBRATED_ON = 600, 96  # train photos
_SHAPE = (192, 256)


@dataclass(frozen=True)
class Way:
    """kept: which convolutions stay in floats, by a part of their names or by kind (`depthwise`)."""

    name: str
    calibration: str = "MinMax"
    kept: tuple[str, ...] = ()
    percentile: float = 99.999
    reduce_range: bool = False


WAYS = (
    Way("all convolutions, MinMax"),
    Way("all convolutions, percentile", "Percentile"),
    Way("all convolutions, entropy", "Entropy"),
    Way("all but the first, MinMax", kept=("_conv_stem",)),
    Way("1x1 only, MinMax", kept=("_conv_stem", "depthwise")),
    Way("1x1 only, percentile", "Percentile", ("_conv_stem", "depthwise")),
    Way(
        "1x1, and depthwise of blocks 6 to 15, percentile",
        "Percentile",
        ("_conv_stem", *(f"blocks.{n}/_depthwise" for n in range(6))),
    ),
    Way(
        "1x1, and depthwise of blocks 11 to 15, percentile",
        "Percentile",
        ("_conv_stem", *(f"blocks.{n}/_depthwise" for n in range(11))),
    ),
    Way(
        "1x1 of blocks 6 to 15 and the last, MinMax",
        kept=("_conv_stem", "depthwise", *(f"blocks.{n}/" for n in range(6))),
    ),
    Way(
        "1x1 of blocks 11 to 15 and the last, MinMax",
        kept=("_conv_stem", "depthwise", *(f"blocks.{n}/" for n in range(11))),
    ),
    Way("1x1 expansions only, MinMax", kept=("_conv_stem", "depthwise", "_project_conv")),
    Way("the last convolution only, MinMax", kept=("_conv_stem", "depthwise", "_blocks.")),
)


class _Photos(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, bundle: Bundle, photos: Sequence[Photo], size: int, name: str) -> None:
        self._given = self._read(bundle, photos, size, name)

    @staticmethod
    def _read(bundle: Bundle, photos: Sequence[Photo], size: int, name: str) -> Iterator[dict[str, Any]]:
        """Of the commonest shape: histograms are made of arrays that are alike."""
        found: dict[tuple[int, ...], list[Any]] = defaultdict(list)
        for _, pictures in batches(photos, size):
            found[pictures.shape[1:]] += [*pictures]
        for picture in max(found.values(), key=len)[:_CALIBRATED_ON]:
            yield {name: bundle.card.preprocessing.normalise([picture])}

    def get_next(self) -> dict[str, Any] | None:
        return next(self._given, None)


def convolutions(model: onnx.ModelProto) -> dict[str, bool]:
    """Their names, and whether they are depthwise."""
    groups = {
        node.name: next((a.i for a in node.attribute if a.name == "group"), 1)
        for node in model.graph.node
        if node.op_type in ("Conv", "FusedConv")
    }
    return {name: group > 1 for name, group in groups.items()}


def quantise(folded: Path, target: Path, way: Way, reader: CalibrationDataReader) -> int:
    """How many convolutions are in eight bits."""
    names = convolutions(onnx.load(str(folded)))
    kept = [n for n, depthwise in names.items() if any(k in n or (k == "depthwise" and depthwise) for k in way.kept)]
    quantize_static(
        str(folded),
        str(target),
        reader,
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["Conv"],
        nodes_to_exclude=kept,
        per_channel=True,
        reduce_range=way.reduce_range,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=getattr(CalibrationMethod, way.calibration),
        extra_options={"CalibPercentile": way.percentile} if way.calibration == "Percentile" else {},
    )
    return len(names) - len(kept)


def open_session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def describe(session: Any, bundle: Bundle, photos: Sequence[Photo], size: int) -> Any:
    rows: list[tuple[int, Any]] = []
    name = session.get_inputs()[0].name
    for numbers, pictures in batches(photos, size):
        given = bundle.card.preprocessing.normalise(list(pictures))
        rows += zip(numbers, session.run(["descriptor"], {name: given})[0], strict=True)
    return in_order(rows)


def measure_times(sessions: dict[str, Any], rounds: int = 15) -> dict[str, float]:
    """Milliseconds of processor time of a picture, in turn."""
    picture = np.random.default_rng(0).standard_normal((1, 3, *_SHAPE)).astype(np.float32)
    taken: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(rounds):
        for name, session in sessions.items():
            began = time.process_time()
            session.run(["descriptor"], {session.get_inputs()[0].name: picture})
            taken[name].append(1e3 * (time.process_time() - began))
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", nargs="?", default="lite")
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--components", type=Path, default=Path("results/lite/components.csv"))
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--only", action="append", help="names of ways; all unless given")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    bundle, everything = Bundle.open(options.bundle), read_photos(options.photos)
    shown = [photo for photo in everything if photo.role == "val"]
    training = [photo for photo in everything if photo.role == "train"]
    training = training[:: max(1, len(training) // _LOOKED_AT)]
    components = read_components(options.components)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, folded = folder / "whole.onnx", folder / "floats.onnx"
        onnx.save(onnx.load(str(bundle.onnx_path)), str(whole))  # with its weights inside
        _fold_constants(whole, folded)
        sessions, counts = {"floats": open_session(folded)}, {"floats": 0}
        given = sessions["floats"].get_inputs()[0].name
        for number, way in enumerate(WAYS):
            if options.only is None or way.name in options.only:
                target = folder / f"{number}.onnx"
                counts[way.name] = quantise(folded, target, way, _Photos(bundle, training, options.size, given))
                sessions[way.name] = open_session(target)
                print(f"{way.name}: {counts[way.name]} convolutions", flush=True)
        times = measure_times(sessions)
        expected = describe(sessions["floats"], bundle, shown, options.size)
        with options.output.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["way", "convolutions", "ms_256x192", "val_views", "val_name", "mean_cosine"])
            for key, session in sessions.items():
                found = describe(session, bundle, shown, options.size)
                figures = score(found, shown, components, "val")
                cosine = float((found * expected).sum(axis=1).mean())
                row = [key, counts[key], f"{times[key]:.1f}", figures["verified"], figures["name"], f"{cosine:.4f}"]
                writer.writerow(row)
                file.flush()
                print(row, flush=True)


if __name__ == "__main__":
    main()
