"""Labelled images in every layout: what is read, in which order, and which mistakes are named."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.data.datasets import DATASETS, load_dataset
from tessera.data.sets.folder import FolderConfig, load_folder
from tessera.data.sets.gldv2 import Gldv2Config, load_gldv2
from tessera.data.sets.labelled import ImageSet, image_set, split_by_class
from tessera.data.sets.pairs import PairSet, cid_file
from tessera.data.unreadable import UnreadableLog
from tessera.errors import ConfigError, DataError


def write_gldv2(root: Path, clean: str = "10,aaa1 aab2\n2,bbb3 ccc4 ddd5\n") -> Path:
    (root / "train_clean.csv").write_text("landmark_id,images\n" + clean)
    (root / "train.csv").write_text("id,url,landmark_id\naaa1,,10\naab2,,10\nbbb3,,2\nccc4,,2\nddd5,,2\neee6,,3\n")
    return root


def test_gldv2_in_its_own_layout(tmp_path: Path) -> None:
    images = load_gldv2(Gldv2Config(str(write_gldv2(tmp_path))))
    assert images.files[:2] == ("train/a/a/a/aaa1.jpg", "train/a/a/b/aab2.jpg")
    assert images.class_names == ("10", "2")  # sorted as strings: the order of the released classifiers
    assert images.labels.tolist() == [0, 0, 1, 1, 1]
    assert images.path(2) == tmp_path / "train/b/b/b/bbb3.jpg"
    assert "found 5 images of 2 landmarks; published were 1,580,470 of 81,313" in images.notes[0]


def test_gldv2_all_has_the_images_that_are_not_clean(tmp_path: Path) -> None:
    images = load_dataset("gldv2", str(write_gldv2(tmp_path)))
    assert len(images) == 6
    assert images.notes == ("gldv2: 1 of 3 classes have one image only.",)  # type: ignore[union-attr]


def test_gldv2_exclusions_by_image_and_by_landmark(tmp_path: Path) -> None:
    write_gldv2(tmp_path)
    (tmp_path / "out.txt").write_text("id\nbbb3\nzzz9  # not here\n\n")
    (tmp_path / "landmarks.txt").write_text("10\n")
    images = load_dataset("rgldv2-clean", str(tmp_path), {"exclude": str(tmp_path / "out.txt")})
    assert "train/b/b/b/bbb3.jpg" not in images.files
    assert len(images) == 4
    assert "1 images are excluded; 1 ids of" in images.notes[1]
    fewer = load_dataset("gldv2-clean", str(tmp_path), {"exclude_landmarks": str(tmp_path / "landmarks.txt")})
    assert fewer.class_names == ("2",)
    with pytest.raises(ConfigError, match="rgldv2-clean needs the list"):
        load_dataset("rgldv2-clean", str(tmp_path))


@pytest.mark.parametrize(
    ("clean", "message"),
    [
        ("10,aaa1\ntower,bbb3\n", r"line 3: the landmark id 'tower' is not a whole number"),
        ("1.5,aaa1\n", r"line 2: the landmark id '1.5' is not a whole number"),
        ("10,aaa1 ../etc\n", r"line 2: '../etc' is not an image id"),
        ("10,aaa1\n2,aaa1\n", r"image aaa1 stands twice, with landmarks 10 and 2"),
        ("10\n", "line 2: the row is shorter than the header"),
        ("", "no images were found"),
    ],
)
def test_gldv2_mistakes_name_their_line(tmp_path: Path, clean: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_gldv2(Gldv2Config(str(write_gldv2(tmp_path, clean))))


def test_gldv2_without_its_files_or_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train_clean.csv cannot be read: it is not there. Found: no CSV"):
        load_gldv2(Gldv2Config(str(tmp_path)))
    (tmp_path / "train.csv").write_text("id,landmark_id\n")
    with pytest.raises(DataError, match=r"Found: train.csv.* train.csv \(gldv2\)"):
        load_gldv2(Gldv2Config(str(tmp_path)))
    (tmp_path / "train_clean.csv").write_text("landmark,images\n")
    with pytest.raises(DataError, match=r"has no column landmark_id. Its first line has: landmark, images"):
        load_gldv2(Gldv2Config(str(tmp_path)))


@pytest.mark.photos
def test_gldv2_50_roles_splits_and_duplicates(photos_dir: Path) -> None:
    root = str(photos_dir)
    everything = load_gldv2(Gldv2Config(root))
    assert (len(everything), everything.num_classes) == (6240, 50)  # 6,246 photos, six exact duplicates dropped
    sizes = {role: load_gldv2(Gldv2Config(root, roles=(role,))).num_classes for role in ("train", "val", "test")}
    assert sizes == {"train": 30, "val": 8, "test": 12}
    objects = load_gldv2(Gldv2Config(root, roles=("test",), kinds=("object",), split="test"))
    assert all(path.is_file() for path in objects.paths)
    assert 0 < objects.num_classes < sizes["test"]
    with pytest.raises(DataError, match=r"has no role 'tset'. It has: test, train, val"):
        load_gldv2(Gldv2Config(root, roles=("tset",)))
    with pytest.raises(DataError, match="has no split 'val'"):
        load_gldv2(Gldv2Config(root, split="val"))


def make_set(sizes: list[int]) -> ImageSet:
    pairs = [(f"c{label}/{i}.jpg", f"c{label}") for label, size in enumerate(sizes) for i in range(size)]
    return image_set("toy", Path("toy"), pairs)


def test_split_is_per_class_seeded_and_leaves_one_image_each() -> None:
    images = make_set([10, 3, 2, 1, 20])
    train, val = split_by_class(images, seed=3)
    assert np.bincount(val.labels, minlength=5).tolist() == [2, 1, 1, 0, 4]
    assert sorted(train.files + val.files) == sorted(images.files)
    assert split_by_class(images, seed=3)[1].files == val.files
    assert split_by_class(images, seed=4)[1].files != val.files
    without_first = images.subset(range(10, len(images)))
    assert split_by_class(without_first, seed=3)[1].files == val.files[2:]
    with pytest.raises(DataError, match="between 0 and 1"):
        split_by_class(images, validation=1.0)


def test_one_image_classes_are_said() -> None:
    assert make_set([2, 1, 1]).notes == ("toy: 2 of 3 classes have one image only.",)


def test_subset_and_fingerprint() -> None:
    images = make_set([2, 2, 2])
    some = images.subset([4, 0])
    assert some.labels.tolist() == [2, 0]
    assert some.num_classes == 3
    assert some.fingerprint() != images.fingerprint() == make_set([2, 2, 2]).fingerprint()
    with pytest.raises(DataError, match="outside 0"):
        ImageSet("bad", Path("x"), ("a",), np.array([3]), ("one",))


def test_class_folders(tmp_path: Path) -> None:
    for file in ("b/deep/2.PNG", "a/1.jpg", "b/1.jpeg", "b/.hidden.jpg", "b/notes.txt", ".git/x.jpg"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    images = load_folder(FolderConfig(str(tmp_path)))
    assert images.files == ("a/1.jpg", "b/1.jpeg", "b/deep/2.PNG")
    assert images.labels.tolist() == [0, 1, 1]
    (tmp_path / "stray.jpg").touch()
    with pytest.raises(DataError, match=r"1 images outside any class folder, stray.jpg"):
        load_folder(FolderConfig(str(tmp_path)))
    with pytest.raises(DataError, match="is not a folder"):
        load_folder(FolderConfig(str(tmp_path / "none")))


def test_lists_and_tables(tmp_path: Path) -> None:
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "annotation_clean_train.txt").write_text("# list\npics/a b.jpg 7\npics/c.jpg 12\n")
    clean = load_dataset("nc-clean", str(tmp_path))
    assert clean.files == ("pics/a b.jpg", "pics/c.jpg")
    assert clean.class_names == ("12", "7")
    (tmp_path / "train.csv").write_text("id,url,landmark_id\nab,http://x,5\ncd,http://x,None\nef,http://x,5\n")
    first = load_dataset("gldv1", str(tmp_path))
    assert first.files == ("images/ab.jpg", "images/ef.jpg")
    assert "1 rows have no landmark" in first.notes[1]
    (tmp_path / "mine.csv").write_text("\ufeffpath,label\nx/1.jpg,tower\nx/2.jpg,bridge\n")
    mine = load_dataset("csv", None, {"file": str(tmp_path / "mine.csv")})
    assert mine.root == tmp_path
    assert mine.class_names == ("bridge", "tower")
    assert load_dataset("csv", str(tmp_path), {"file": "mine.csv"}).files == mine.files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("path,label\n/etc/passwd,a\n", "line 2: '/etc/passwd' is not a path inside the data folder"),
        ("path,label\na/../../b.jpg,a\n", "is not a path inside"),
        ("path,label\na.jpg,\n", "line 2: the label is empty"),
        ("path;label\n", "has no column path, label"),
    ],
)
def test_bad_tables(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        load_dataset("csv", None, {"file": str(tmp_path / "t.csv")})


def write_pairs(root: Path, **changes: Any) -> Path:
    train = {"cids": ["abcdef01", "abcdef02", "abcdef03"], "cluster": [9, 9, 4], "qidxs": [0], "pidxs": np.array([1])}
    (root / "retrieval-SfM-120k.pkl").write_bytes(pickle.dumps({"train": {**train, **changes}, "val": train}))
    return root


def test_pair_lists(tmp_path: Path) -> None:
    pairs = load_dataset("sfm-120k", str(write_pairs(tmp_path)))
    assert isinstance(pairs, PairSet)
    assert pairs.images.files[0] == "ims/01/ef/cd/abcdef01" == f"ims/{cid_file('abcdef01')}"
    assert pairs.images.labels.tolist() == [1, 1, 0]
    assert (pairs.queries.tolist(), pairs.positives.tolist(), len(pairs)) == ([0], [1], 1)
    validation = load_dataset("sfm-120k", str(tmp_path), {"split": "val"})
    assert isinstance(validation, PairSet) and validation.images.num_classes == 2
    assert len(pairs.subset(np.array([], dtype=np.int64))) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pidxs": [7]}, "pidxs points outside the 3 images"),
        ({"pidxs": [2]}, "pair 0 joins images of two clusters"),
        ({"pidxs": [1, 1]}, "1 queries and 2 positives"),
        ({"cluster": [1]}, "3 images and 1 clusters"),
        ({"qidxs": ["x"]}, "qidxs' must be a list of whole numbers"),
        ({"cids": ["a", "b", "c"]}, "too short"),
    ],
)
def test_bad_pair_lists(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset("sfm-120k", str(write_pairs(tmp_path, **changes)))


def test_registry_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    assert set(DATASETS) >= {"gldv2-clean", "rgldv2-clean", "gldv1", "nc-clean", "sfm-120k", "folder", "csv"}
    with pytest.raises(ConfigError, match="Did you mean 'gldv2-clean'"):
        load_dataset("gldv2-claen", str(tmp_path))
    with pytest.raises(ConfigError, match="Did you mean 'roles'"):
        load_dataset("gldv2-clean", str(tmp_path), {"role": ["train"]})


@pytest.mark.parametrize("name", DATASETS)
def test_every_entry_says_what_it_is_and_misses_its_files_clearly(tmp_path: Path, name: str) -> None:
    entry = DATASETS[name]
    keys = {field.name for field in dataclasses.fields(entry.config)}
    assert set(entry.defaults) <= keys
    assert entry.summary
    options: dict[str, Any] = {"file": "none.txt"} if {"file"} <= keys and name not in ("sfm-120k", "gldv1") else {}
    options |= {"exclude": str(tmp_path / "none.txt")} if name == "rgldv2-clean" else {}
    with pytest.raises(DataError, match=r"cannot be read|no images were found"):
        load_dataset(name, str(tmp_path), options)


def test_unreadable_images_are_counted_listed_and_too_many_are_an_error(tmp_path: Path) -> None:
    log = UnreadableLog(total=200)
    log.record("a.jpg", "truncated")
    log.record("a.jpg", "truncated")
    log.record("b.jpg", "no such file")
    assert len(log) == 2
    assert "a.jpg" in log
    assert log.describe() == "Skipped: a.jpg (truncated); b.jpg (no such file)."
    log.write(tmp_path / "unreadable.tsv")
    assert (tmp_path / "unreadable.tsv").read_text() == "a.jpg\ttruncated\nb.jpg\tno such file\n"
    with pytest.raises(DataError, match=r"3 of 200 images cannot be read, more than 1%. Skipped: a.jpg \(truncated\)"):
        log.record("c.jpg", "no such file")
    assert UnreadableLog(total=5).describe() == ""
