from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tessera.data.images import DEFAULT_LIMITS, Limits, load_benchmark, load_photo
from tessera.errors import BoxError, ImageError, ImageLimitError, ModelError, UsageError
from tessera.extract.extractor import Extractor
from tessera.extract.pipeline import Extraction, Pipeline, PipelineConfig
from tessera.models.bundle import Bundle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Pictures of several shapes and, among them, files that are none."""
    root = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(5)
    shapes = [(40, 50), (60, 40), (40, 50), (200, 100)]
    paths = []
    for i in range(30):
        path = root / f"{i:02d}.png"
        if i % 7 == 3:
            path.write_bytes(b"no picture")
        else:
            Image.fromarray(generator.integers(0, 256, (*shapes[i % 4], 3), dtype=np.uint8)).save(path)
        paths.append(path)
    return paths


def picture_bytes(value: int, shape: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((*shape, 3), value, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_extractions_come_in_order_with_their_errors(threads: int, tiny_bundle: Bundle, folder: list[Path]) -> None:
    extractor = Extractor(tiny_bundle, threads=threads)
    seen: list[Extraction] = []
    extractions = list(extractor.extract(folder, progress=seen.append))
    assert [extraction.source for extraction in extractions] == folder
    assert seen == extractions
    for i, (path, extraction) in enumerate(zip(folder, extractions, strict=True)):
        if i % 7 == 3:
            assert isinstance(extraction.error, ImageError)
            assert path.name in str(extraction.error)
            assert extraction.descriptor is None
        else:
            expected = extractor.describe(load_photo(path, size=64))
            np.testing.assert_allclose(extraction.descriptor, expected, atol=1e-6)
            with Image.open(path) as image:
                assert (extraction.width, extraction.height) == image.size


def test_boxes_and_loaders_reach_the_pictures(tiny_bundle: Bundle, folder: list[Path]) -> None:
    extractor = Extractor(tiny_bundle)
    boxes = [(5.0, 5.0, 30.0, 30.0), None, (900.0, 900.0, 901.0, 901.0)]
    cut, whole, outside = extractor.extract(folder[:3], boxes=boxes)
    np.testing.assert_allclose(
        cut.descriptor, extractor.describe(load_photo(folder[0], size=64, box=boxes[0])), atol=1e-6
    )
    np.testing.assert_allclose(whole.descriptor, extractor.describe(load_photo(folder[1], size=64)), atol=1e-6)
    assert isinstance(outside.error, BoxError)
    (benchmark,) = extractor.extract(folder[:1], boxes=boxes[:1], loader="benchmark")
    np.testing.assert_allclose(
        benchmark.descriptor, extractor.describe(load_benchmark(folder[0], size=64, box=boxes[0])), atol=1e-6
    )
    with pytest.raises(UsageError, match="loader"):
        list(extractor.extract(folder[:1], loader="fast"))
    (small,) = extractor.extract(folder[:1], limits=Limits(max_pixels=10))
    assert isinstance(small.error, ImageLimitError)


def run_pipeline(describe: object, config: PipelineConfig, sources: object) -> Iterator[Extraction]:
    pipeline = Pipeline(describe, config, size=64, loader="photo", limits=DEFAULT_LIMITS)
    return pipeline.run(sources)


def first_values(images: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([[image[0, 0, 0]] for image in images], np.float32)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released once for each picture that was decoded."""
    import tessera.extract.pipeline as module

    count = threading.Semaphore(0)
    original = module.read_photo

    def counted(*arguments: object, **options: object) -> object:
        photo = original(*arguments, **options)
        count.release()
        return photo

    monkeypatch.setattr(module, "read_photo", counted)
    return count


def wait_for(decoded: threading.Semaphore, pictures: int) -> None:
    for _ in range(pictures):
        assert decoded.acquire(timeout=200), "nothing was decoded while the network ran"


def test_equal_shapes_share_batches_and_others_do_not(decoded: threading.Semaphore) -> None:
    batches: list[set[tuple[int, ...]]] = []
    sizes: list[int] = []

    def describe(images: Sequence[np.ndarray]) -> np.ndarray:
        if not sizes:
            wait_for(decoded, 24)  # decoding gets as far ahead as it may
        batches.append({image.shape for image in images})
        sizes.append(len(images))
        return first_values(images)

    sources = [picture_bytes(i, (8, 8) if i % 2 else (8, 9)) for i in range(40)]
    config = PipelineConfig(decoders=2, workers=1, batch=4, window=24)
    values = [extraction.descriptor[0] for extraction in run_pipeline(describe, config, sources)]
    assert values == list(range(40))
    assert all(len(shapes) == 1 for shapes in batches)
    assert max(sizes) == 4
    assert sum(sizes) == 40


def test_no_more_than_the_window_is_read_ahead() -> None:
    taken = 0
    ahead = []

    def sources() -> Iterator[bytes]:
        nonlocal taken
        for i in range(60):
            taken += 1
            yield picture_bytes(i)

    config = PipelineConfig(decoders=3, workers=2, batch=2, window=9)
    for done, extraction in enumerate(run_pipeline(first_values, config, sources())):
        assert extraction.descriptor[0] == done
        ahead.append(taken - done)
    assert taken == 60
    assert max(ahead) <= 9


def test_decoding_goes_on_while_the_network_runs(decoded: threading.Semaphore) -> None:
    """With one worker held inside the network, the decoders must fill the window."""

    def describe(images: Sequence[np.ndarray]) -> np.ndarray:
        if images[0][0, 0, 0] == 0:
            wait_for(decoded, 6)
        return first_values(images)

    sources = [picture_bytes(i) for i in range(10)]
    config = PipelineConfig(decoders=2, workers=1, window=6)
    assert [e.descriptor[0] for e in run_pipeline(describe, config, sources)] == list(range(10))


def test_a_failing_network_stops_the_run_instead_of_blaming_images() -> None:
    def describe(images: Sequence[np.ndarray]) -> np.ndarray:
        raise ModelError("the network failed")

    with pytest.raises(ModelError, match="the network failed"):
        list(run_pipeline(describe, PipelineConfig(), [picture_bytes(1)]))


def test_leaving_early_ends_the_threads() -> None:
    before = threading.active_count()
    for extraction in run_pipeline(first_values, PipelineConfig(), (picture_bytes(i % 256) for i in range(10_000))):
        assert extraction.descriptor is not None
        break
    deadline = time.monotonic() + 120
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
