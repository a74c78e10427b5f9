"""Both runtimes over the same bundle."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.errors import MissingExtraError, ModelError, UsageError
from tessera.extract.extractor import Extractor
from tessera.extract.runtime import default_threads, open_runtime
from tessera.models.bundle import Bundle


@pytest.mark.parametrize("shape", [(96, 128), (27, 300), (20, 25)])
def test_torch_and_onnx_agree_on_the_default_model(shape: tuple[int, int]) -> None:
    pytest.importorskip("torch")
    image = np.random.default_rng(4).integers(0, 256, (*shape, 3), dtype=np.uint8)
    by_onnx = Extractor("lite", threads=1).describe(image)
    by_torch = Extractor("lite", runtime="torch", device="cpu").describe(image)
    np.testing.assert_allclose(by_torch, by_onnx, atol=1e-5)


def test_torch_batches_equal_single_images() -> None:
    pytest.importorskip("torch")
    generator = np.random.default_rng(5)
    images = [generator.integers(0, 256, (64, 80, 3), dtype=np.uint8) for _ in range(3)]
    extractor = Extractor("lite", runtime="torch", device="cpu", scales=[1.0])
    together = extractor.describe_batch(images)
    for image, descriptor in zip(images, together, strict=True):
        np.testing.assert_allclose(extractor.describe(image), descriptor, atol=1e-5)


def test_unknown_outputs_and_devices_are_refused(tiny_bundle: Bundle) -> None:
    runtime = open_runtime(tiny_bundle, threads=1)
    with pytest.raises(ModelError, match=r"output 'parts' is not known"):
        runtime.run(np.zeros((1, 3, 32, 32), np.float32), ["parts"])
    with pytest.raises(UsageError, match="device"):
        open_runtime(tiny_bundle, device="tpu")
    with pytest.raises(UsageError, match="runtime"):
        open_runtime(tiny_bundle, "jax")
    with pytest.raises(ModelError, match="failed on images of shape 1 x 4 x 8 x 8"):
        runtime.run(np.zeros((1, 4, 8, 8), np.float32))


def test_torch_runtime_says_which_extra_it_needs(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"tessera-retrieval\[train\]"):
        open_runtime(tiny_bundle, "torch")


def test_threads_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert default_threads() == 3
    for nonsense in ("", "many", "0"):
        monkeypatch.setenv("OMP_NUM_THREADS", nonsense)
        assert default_threads() >= 1


@pytest.mark.parametrize("shape", [(96, 128), (27, 300)])
def test_openvino_and_onnx_agree_on_the_default_model(shape: tuple[int, int]) -> None:
    pytest.importorskip("openvino")
    image = np.random.default_rng(4).integers(0, 256, (*shape, 3), dtype=np.uint8)
    first, second = (Extractor("lite", runtime=name, device="cpu", threads=1) for name in ("onnx", "openvino"))
    np.testing.assert_allclose(second.describe(image), first.describe(image), atol=1e-5)
    assert set(second.output_names) == set(first.output_names)
    names = ("parts", "places")
    by_onnx, by_openvino = (extractor.outputs(image, names)[0] for extractor in (first, second))
    for name in names:
        np.testing.assert_allclose(by_openvino[name], by_onnx[name], atol=1e-4 * np.abs(by_onnx[name]).max())
    with pytest.raises(ModelError, match="output 'mask' is not known"):
        second.outputs(image, ("mask",))


def test_openvino_says_what_it_needs(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(MissingExtraError, match="pip install openvino"):
        open_runtime(tiny_bundle, "openvino")
