"""The life of a gallery against a plain dictionary: files come, change, break and go; runs end early."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from PIL import Image

import tessera
from tessera.extract.extractor import Extractor
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.describing.describer import Describer
from tessera.gallery.engines import faiss_engine
from tessera.gallery.ingest import indexing

NAMES = st.sampled_from(["a.png", "b.png", "c.png", "deep/d.png", "deep/e.png", "deep/f\udcff.png"])
SEEDS = st.integers(0, 4)


def picture(seed: int) -> bytes:
    blocks = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(blocks).resize((40, 36), Image.Resampling.NEAREST).save(stream, "PNG")
    return stream.getvalue()


class Interrupted(BaseException):
    """Ends a run at a commit, as a kill would: nothing after it happens."""


class GalleryLife(RuleBasedStateMachine):
    bundle: Path
    expected: dict[int, np.ndarray]

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="life"))
        self.photos = self.folder / "photos"
        (self.photos / "deep").mkdir(parents=True)
        self.files: dict[str, int | None] = {}  # what is on disk; None for what is no picture
        self.known: dict[str, int] = {}  # what the gallery should hold
        self.failed: set[str] = set()
        self.gallery = tessera.Gallery(self.folder / "gallery", self.bundle)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.gallery.close()
            shutil.rmtree(self.folder)

    @rule(name=NAMES, seed=SEEDS)
    def write(self, name: str, seed: int) -> None:
        (self.photos / name).write_bytes(picture(seed))
        self.files[name] = seed

    @rule(name=NAMES)
    def spoil(self, name: str) -> None:
        (self.photos / name).write_bytes(picture(0)[:70])
        self.files[name] = None

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        (self.photos / name).unlink(missing_ok=True)
        self.files.pop(name, None)

    @rule(prune=st.booleans())
    def index(self, prune: bool) -> None:
        report = self.gallery.index(self.photos, prune=prune)
        self._note_indexed(prune)
        assert report.images == len(self.known)

    def _note_indexed(self, prune: bool) -> None:
        for name, seed in self.files.items():
            self.known.pop(name, None)
            self.failed.discard(name)
            if seed is None:
                self.failed.add(name)
            else:
                self.known[name] = seed
        if prune:
            self.known = {name: seed for name, seed in self.known.items() if name in self.files}
            self.failed &= set(self.files)

    @rule(commits=st.integers(0, 3))
    def index_interrupted(self, commits: int) -> None:
        """Whatever was stored is old or new, image by image; running again completes it."""
        before = dict(self.known)
        write = Catalog.write
        left = [commits]

        def write_or_die(catalog: Catalog) -> object:
            if left[0] == 0:
                raise Interrupted
            left[0] -= 1
            return write(catalog)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Catalog, "write", write_or_die)
            with contextlib.suppress(Interrupted):
                self.gallery.index(self.photos)
        self.reopen()
        for name, seed in self._held().items():
            assert seed in (before.get(name), self.files.get(name))
        for name, seed in before.items():
            if self.files.get(name, seed) == seed:
                assert self._held()[name] == seed  # nothing that was acknowledged is lost
        self.gallery.index(self.photos)
        self._note_indexed(prune=False)

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        if name in self.known or name in self.failed:
            assert self.gallery.remove(self.photos / name, ignore=False) == 1
            self.known.pop(name, None)
            self.failed.discard(name)

    @rule()
    def reopen(self) -> None:
        self.gallery.close()
        self.gallery = tessera.Gallery(self.folder / "gallery")

    @rule()
    def lose_the_index(self) -> None:
        shutil.rmtree(self.folder / "gallery" / "index", ignore_errors=True)

    def _held(self) -> dict[str, int]:
        """What the gallery holds, each image's content told by its descriptor."""
        held = {}
        for record in self.gallery.images():
            (descriptor,) = self.gallery.descriptors([record.id])
            held[str(Path(record.path).relative_to(self.photos))] = next(
                seed for seed, known in self.expected.items() if np.allclose(descriptor, known, atol=2e-3)
            )
        return held

    @invariant()
    def the_gallery_is_the_dictionary(self) -> None:
        if not hasattr(self, "gallery"):
            return
        assert self._held() == self.known
        assert len(self.gallery) == len(self.known)
        assert {str(Path(record.path).relative_to(self.photos)) for record in self.gallery.failures()} == self.failed
        if self.known:
            seed = next(iter(self.known.values()))
            hits = self.gallery.search(self.expected[seed], 100)
            assert {str(Path(hit.path).relative_to(self.photos)) for hit in hits} == set(self.known)
            same = [hit for hit in hits if hit.score > 0.9995]
            assert {str(Path(hit.path).relative_to(self.photos)) for hit in same} == {
                name for name, content in self.known.items() if content == seed
            }


@pytest.fixture
def quick(small_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One network for all, batches and savings so small that every run has several."""
    extractor = Extractor(str(small_bundle))
    monkeypatch.setattr(Describer, "extractor", property(lambda _: extractor))
    monkeypatch.setattr(indexing, "BATCH_FILES", 2)
    monkeypatch.setattr(faiss_engine, "SAVE_AFTER", 3)
    GalleryLife.bundle = small_bundle
    GalleryLife.expected = {
        seed: extractor.describe(np.asarray(Image.open(io.BytesIO(picture(seed))).convert("RGB"))) for seed in range(5)
    }
    yield


@pytest.mark.usefixtures("quick")
def test_a_gallery_lives_as_the_dictionary_does() -> None:
    run_state_machine_as_test(
        GalleryLife,
        settings=settings(
            max_examples=12,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        ),
    )
    assert GalleryLife.expected.keys() == {0, 1, 2, 3, 4}
