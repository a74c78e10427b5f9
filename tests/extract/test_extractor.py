from __future__ import annotations

import dataclasses
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tessera.config import to_mapping
from tessera.errors import ModelError, UsageError
from tessera.extract.extractor import Extractor
from tessera.extract.scales import rescale
from tessera.models.bundle import Bundle


def normalised(image: np.ndarray) -> np.ndarray:
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    return ((image / 255 - mean) / std).astype(np.float32).transpose(2, 0, 1)[None]


def tiny_by_hand(images: np.ndarray) -> np.ndarray:
    """The tiny graph in numpy, in double."""
    images = images.astype(np.float64)
    raw = np.concatenate([images.mean(axis=(2, 3)), (images**2).mean(axis=(2, 3))], axis=1)
    return raw / np.linalg.norm(raw, axis=1, keepdims=True)


def test_scales_are_averaged_unit_by_unit(tiny_bundle: Bundle, picture: np.ndarray) -> None:
    scales = (1 / math.sqrt(2), 1.0, math.sqrt(2))
    per_scale = [tiny_by_hand(rescale(normalised(picture), scale))[0] for scale in scales]
    expected = np.mean(per_scale, axis=0)
    expected /= np.linalg.norm(expected)
    descriptor = Extractor(tiny_bundle).describe(picture)
    assert descriptor.dtype == np.float32
    np.testing.assert_allclose(descriptor, expected, atol=1e-6)


def test_a_single_scale_is_applied(tiny_bundle: Bundle, picture: np.ndarray) -> None:
    half = Extractor(tiny_bundle, scales=[0.5]).describe(np.tile(picture, (2, 2, 1)))
    np.testing.assert_allclose(half, tiny_by_hand(rescale(normalised(np.tile(picture, (2, 2, 1))), 0.5))[0], atol=1e-6)
    one = Extractor(tiny_bundle, scales=[1.0]).describe(picture)
    np.testing.assert_allclose(one, tiny_by_hand(normalised(picture))[0], atol=1e-6)


def test_a_batch_equals_its_members_in_order(tiny_bundle: Bundle) -> None:
    extractor = Extractor(tiny_bundle)
    generator = np.random.default_rng(3)
    shapes = [(40, 50), (33, 64), (40, 50), (64, 40), (33, 64), (40, 50)]
    images = [generator.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
    together = extractor.describe_batch(images)
    assert together.shape == (6, 6)
    for image, descriptor in zip(images, together, strict=True):
        np.testing.assert_allclose(extractor.describe(image), descriptor, atol=1e-6)
    assert extractor.describe_batch([]).shape == (0, 6)


def test_outputs_come_a_scale_at_a_time(tiny_bundle: Bundle, picture: np.ndarray) -> None:
    extractor = Extractor(tiny_bundle)
    outputs = extractor.outputs(picture, ["descriptor"])
    assert [output["descriptor"].shape for output in outputs] == [(1, 6)] * 3
    assert extractor.output_names == ("descriptor",)
    with pytest.raises(ModelError, match=r"output 'attention' is not known"):
        extractor.outputs(picture, ["attention"])


def test_the_fingerprint_tells_settings_apart(tiny_bundle: Bundle) -> None:
    prints = {
        Extractor(tiny_bundle).fingerprint,
        Extractor(tiny_bundle, size=63).fingerprint,
        Extractor(tiny_bundle, scales=[1.0]).fingerprint,
        Extractor(tiny_bundle, scales=[1.0, 0.5]).fingerprint,
    }
    assert len(prints) == 4
    assert Extractor(tiny_bundle, threads=1).fingerprint == Extractor(tiny_bundle, size=64).fingerprint


@pytest.mark.parametrize("shape", [(27, 384), (384, 27), (1, 1), (1, 200), (32, 32)])
def test_extreme_shapes_are_described_by_the_default_model(shape: tuple[int, int]) -> None:
    image = np.random.default_rng(1).integers(0, 256, (*shape, 3), dtype=np.uint8)
    descriptor = Extractor("lite", threads=1).describe(image)
    assert np.isfinite(descriptor).all()
    assert np.linalg.norm(descriptor) == pytest.approx(1, abs=1e-5)


def test_wrong_settings_are_refused(tiny_bundle: Bundle, picture: np.ndarray) -> None:
    with pytest.raises(UsageError, match="at least 1 pixel"):
        Extractor(tiny_bundle, size=0)
    with pytest.raises(UsageError, match="at least one scale"):
        Extractor(tiny_bundle, scales=[])
    with pytest.raises(UsageError, match=r"runtime 'onx' is not known. Did you mean 'onnx'"):
        Extractor(tiny_bundle, runtime="onx")
    with pytest.raises(UsageError, match=r"device 'gpu' is not known"):
        Extractor(tiny_bundle, device="gpu")
    with pytest.raises(UsageError, match="uint8"):
        Extractor(tiny_bundle).describe(picture.astype(np.float32))


def test_a_local_model_gives_no_descriptor(tiny_bundle: Bundle) -> None:
    local = Bundle(tiny_bundle.path, dataclasses.replace(tiny_bundle.card, kind="local"))
    with pytest.raises(ModelError, match="local model"):
        Extractor(local)


def test_a_damaged_graph_is_said_so(tiny_bundle: Bundle, picture: np.ndarray, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_bundle.path, broken)
    (broken / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(ModelError, match=r"do not match its model\.json"):
        Extractor(str(broken)).describe(picture)
    (broken / "model.onnx").unlink()
    with pytest.raises(ModelError, match=r"has no model\.onnx"):
        Extractor(str(broken)).describe(picture)


def test_cuda_is_refused_where_there_is_none(tiny_bundle: Bundle, picture: np.ndarray) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this machine has CUDA")
    with pytest.raises(UsageError, match="no CUDA"):
        Extractor(tiny_bundle, device="cuda").describe(picture)


def test_the_default_bundle_is_whole_and_unit_norm(picture: np.ndarray) -> None:
    bundle = Bundle.open("lite")
    bundle.verify()
    extractor = Extractor(bundle, threads=1)
    descriptor = extractor.describe(picture)
    assert descriptor.shape == (bundle.card.dim,)
    assert np.linalg.norm(descriptor) == pytest.approx(1, abs=1e-5)
    assert json.dumps(to_mapping(bundle.card))


def test_describing_needs_no_torch(tiny_bundle: Bundle) -> None:
    code = (
        "import sys, numpy as np\n"
        "from tessera import Extractor\n"
        f"extractor = Extractor({str(tiny_bundle.path)!r}, threads=1)\n"
        "assert 'onnxruntime' not in sys.modules\n"
        "extractor.describe(np.zeros((40, 40, 3), np.uint8))\n"
        "assert 'torch' not in sys.modules\n"
        "print('ok')"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.stdout.strip() == "ok", answer.stderr
