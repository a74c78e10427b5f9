"""The tables of results/: who is trained on and who is searched, maps against the extractor, tables from the CSVs."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).parents[2] / "scripts" / "results"


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("sets", "maps", "rows", "run", "tables"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three landmarks of 70 photos and a few things, as CSVs; no picture is opened."""
    gldv2, instances = tmp_path / "gldv2-50", tmp_path / "instances"
    gldv2.mkdir()
    instances.mkdir()
    roles = {"41": "train", "7": "val", "8": "test"}
    ids = {landmark: [f"{landmark.zfill(3)}{number:013d}" for number in range(70)] for landmark in roles}
    (gldv2 / "roles.csv").write_text(
        "landmark_id,name,role,kind\n" + "".join(f"{key},x,{role},object\n" for key, role in roles.items())
    )
    rows = [(photo, landmark) for landmark, photos in ids.items() for photo in photos]
    (gldv2 / "train.csv").write_text("id,url,landmark_id\n" + "".join(f"{a},,{b}\n" for a, b in rows))
    (gldv2 / "split.csv").write_text(
        "id,split\n" + "".join(f"{photo},{'test' if int(photo[3:]) >= 60 else 'train'}\n" for photo, _ in rows)
    )
    (gldv2 / "duplicates.csv").write_text(f"keep,drop\n{ids['8'][0]},{ids['8'][1]}\n")
    things = [
        ("train/a.jpg", "wonders/Machu_Picchu", "wonders", "train"),
        ("train/b.jpg", "stitch/1", "stitch", "train"),
        ("train/c.jpg", "tmbud/1", "tmbud", "train"),
        ("val/d.jpg", "tmbud/2", "tmbud", "val"),
        ("val/e.jpg", "tmbud/2", "tmbud", "val"),
    ]
    (instances / "labels.csv").write_text("path,label,set,role\n" + "".join(f"{','.join(t)}\n" for t in things))
    return tmp_path


def test_training_takes_train_roles_merges_two_wonders_and_leaves_stitch_out(data: Path) -> None:
    import sets

    chosen = sets.training_photos(sets.read_photos(data))
    labels = [photo.label for photo in chosen]
    assert labels.count("41") == sets.PHOTOS_A_LANDMARK + 1  # the photo of `wonders` is of the same landmark
    assert set(labels) == {"41", "tmbud/1"}


def test_training_and_search_share_no_photo_and_no_label(data: Path) -> None:
    import sets

    photos = sets.read_photos(data)
    seen, unseen = sets.training_photos(photos), sets.unseen_photos(photos)
    assert not {photo.file for photo in seen} & {photo.file for photo in unseen}
    assert not {photo.label for photo in seen} & {photo.label for photo in unseen}


def test_queries_are_the_test_split_and_never_find_themselves(data: Path) -> None:
    import sets

    benchmark = sets.benchmark_of("gldv2-test", sets.read_photos(data), data)
    assert len(benchmark.queries) == 10
    assert len(benchmark.gallery) == 69  # a duplicate is dropped
    for own, lists in zip(benchmark.own_ids, benchmark.lists, strict=True):
        assert own not in lists["easy"] and len(lists["easy"]) == 68
        assert lists["junk"].tolist() == [own]


def test_distractors_are_everything_else_that_training_did_not_see(data: Path) -> None:
    import sets

    photos = sets.read_photos(data)
    benchmark = sets.benchmark_of("instances-val", photos, data, distractors=True)
    assert len(benchmark.gallery) == len(sets.unseen_photos(photos))
    assert benchmark.num_distractors == 69 + 70
    assert [lists["easy"].tolist() for lists in benchmark.lists] == [[1], [0]]


def test_every_row_has_a_recipe_that_takes_its_settings(data: Path, tmp_path: Path) -> None:
    import rows
    import run

    from tessera.config import find_config
    from tessera.train.recipe import load_recipe

    bench = run.Bench(data, tmp_path / "work")
    for row in rows.ROWS.values():
        command = run.command_of(bench, row, 1, 1e-3)
        settings = [word for before, word in pairwise(command) if before == "--set"]
        recipe = load_recipe(find_config("recipes", command[2]), settings)
        assert recipe.seed == 1 and recipe.optimiser.rate == 1e-3, row.name
        assert recipe.model.config["backbone"] == rows.BACKBONE, row.name
        assert recipe.frozen.enabled is not row.trained, row.name


def test_every_ablation_recipe_has_a_row() -> None:
    import rows

    same = {"5-all", "1-none", "4-both", "attention", "l4"}  # rows that two tables share
    wanted = {
        f"{folder}/{path.name}"
        for folder in ("components", "refinement", "tokenizer", "tokens")
        for path in (FOLDER.parents[1] / "src" / "tessera" / "recipes" / folder).glob("*.toml")
        if path.stem not in same
    }
    assert wanted == {row.recipe for row in rows.ABLATIONS}


def test_maps_give_the_extractor_s_descriptor(tmp_path: Path) -> None:
    """The same picture through a bundle of the same weights, at the same size and scales."""
    import maps
    from PIL import Image

    from tessera.extract.extractor import Extractor
    from tessera.models.model_registry import build_model
    from tessera.models.onnx_export import export_bundle, make_card

    picture = np.random.default_rng(0).integers(0, 255, (90, 140, 3), dtype=np.uint8)
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    Image.fromarray(picture).save(paths[0])
    Image.fromarray(picture[:, ::-1]).save(paths[1])
    network = build_model("gem-r18", backbone="tiny", dim=16).eval()
    found = maps.PictureMaps(tmp_path / "maps", paths, 128)
    found.prepare(network.backbone, say=lambda text: None)
    descriptors = maps.describe_maps(network.head, found.scaled_groups(), 2)
    extractor = Extractor(export_bundle(network, tmp_path / "bundle", make_card(network, "small")).path, size=128)
    wanted = np.stack([one.descriptor for one in extractor.extract(paths, loader="benchmark")])
    np.testing.assert_allclose(descriptors, wanted, atol=2e-3)  # maps are kept in half precision


def test_tables_give_mean_and_deviation_and_say_what_was_not_run(tmp_path: Path) -> None:
    import paper_tables as tables
    import run

    for seed, value in enumerate((0.5, 0.6, 0.7)):
        for name, distractors in tables.COLUMNS:
            figures = {"row": "gem", "seed": seed, "codec": "flat", "set": name, "distractors": distractors}
            run.append_csv(tmp_path / "figures.csv", run.FIGURES, {**figures, "map": value})
    lines = tables.write_tables(tmp_path).read_text().splitlines()
    assert next(line for line in lines if line.startswith("| GeM†")).split(" | ")[1] == "60.0 ± 10.0"
    assert "not yet run" in next(line for line in lines if line.startswith("| SOLAR† |"))
