"""Stored local features that are damaged: found by `check`, and never more than a loss of time."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import tessera
from tessera.local.feature_cache import FeatureCache, decode_features, encode_features, find_damage
from tessera.local.features import LocalFeatures


def features(seed: int, count: int = 40) -> LocalFeatures:
    numbers = np.random.default_rng(seed)
    return LocalFeatures(
        numbers.normal(size=(count, 16)).astype(np.float32),
        numbers.uniform(0, 100, (count, 2)).astype(np.float32),
        np.ones(count, np.float32),
        np.ones(count, np.float32),
        None,
        (100, 80),
    )


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "local.sqlite"
    with closing(FeatureCache(path)) as store:
        for seed in range(60):
            store.put("sift", f"content{seed}", features(seed))
    return path


def test_a_flipped_bit_anywhere_in_an_entry_is_noticed() -> None:
    entry = encode_features(features(0, count=3))
    assert decode_features(entry) is not None
    for at in range(len(entry)):
        for bit in range(8):
            damaged = bytearray(entry)
            damaged[at] ^= 1 << bit
            assert decode_features(bytes(damaged)) is None, (at, bit)


def test_entries_of_version_0_1_are_read(tmp_path: Path) -> None:
    import struct
    import zlib

    entry = encode_features(features(0))
    older = struct.pack("<I", zlib.crc32(entry[22:])) + entry[4:]
    found = decode_features(older)
    assert found is not None
    assert len(found) == 40


@pytest.mark.parametrize("seed", range(6))
def test_a_bad_page_is_set_aside_and_the_store_goes_on(stored: Path, seed: int) -> None:
    content = bytearray(stored.read_bytes())
    page = 4096 * random.Random(seed).randrange(1, len(content) // 4096)
    content[page : page + 4096] = random.Random(seed).randbytes(4096)
    stored.write_bytes(content)
    with closing(FeatureCache(stored)) as store:
        names = [f"content{i}" for i in range(60)]
        found = store.get_many("sift", names)
        assert set(found) <= set(names)
        for name in names:
            if name not in found:
                store.put("sift", name, features(int(name.removeprefix("content"))))
        store.known("sift")
        store.keep_only(names)
        store.describe()
    with closing(FeatureCache(stored)) as store:
        store.drop_damaged()
    assert find_damage(stored) is None


def test_check_finds_damaged_features_and_repairs_them(tmp_path: Path, small_bundle: Path, photo_folder: Path) -> None:
    pytest.importorskip("cv2")
    folder = tmp_path / "gallery"
    with tessera.Gallery(folder, small_bundle) as gallery:
        gallery.index(photo_folder, local="sift")
        assert gallery.check().ok
    with closing(sqlite3.connect(folder / "local.sqlite")) as connection:
        connection.execute("UPDATE features SET entry = zeroblob(length(entry)) WHERE rowid = 1")
        connection.commit()
    with tessera.Gallery(folder) as gallery:
        (finding,) = gallery.check().findings
        assert "1 entries of the local features" in finding.message
        assert gallery.check(repair=True).ok
        assert gallery.check().findings == []
        assert gallery.index(local="sift").local["made"] == 1
    path = folder / "local.sqlite"
    path.write_bytes(path.read_bytes()[:4096] + b"\xa5" * (path.stat().st_size - 4096))
    with tessera.Gallery(folder) as gallery:
        assert not gallery.check().ok
        assert gallery.search(photo_folder / "photo0.png", rerank="sp")  # made for this search
        assert gallery.check(repair=True).ok
        assert gallery.index(local="sift").local["images"] == 8
