"""The tables of results/: who is trained on and who is searched, maps against the extractor, tables from the CSVs."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).parents[2] / "scripts" / "results"
TABLES = ("table1", "components", "refinement", "tokenizer", "tokens")  # folders of recipes


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in (path.stem for path in FOLDER.glob("*.py")):
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


def test_every_row_trains_something_of_its_network(data: Path, tmp_path: Path) -> None:
    """A recipe's own rates stay below those that are laid over it: HOW's once froze what was left to learn."""
    import local_rows
    import rows
    import run

    from tessera.config import find_config
    from tessera.train.build_run import build_objective
    from tessera.train.distributed import World
    from tessera.train.init import build_network
    from tessera.train.optimisation.optimiser import group_parameters
    from tessera.train.recipe import load_recipe

    bench = run.Bench(data, tmp_path / "work")
    local = [one.row for name, one in local_rows.LOCAL_ROWS.items() if name != "hesaff"]
    learn_nothing = set()
    for row in (*rows.GLOBAL, *rows.OWN_LOSS, rows.ROWS["token-trained"], *local):
        command = run.command_of(bench, row, 1, 1e-3)
        settings = [word for before, word in pairwise(command) if before == "--set"]
        recipe = load_recipe(find_config("recipes", command[2]), [*settings, "model.weights=none"])
        objective = build_objective(recipe, build_network(recipe), 5, World())
        learning = {id(one) for group in group_parameters(objective, recipe.optimiser) for one in group["params"]}
        names = {name for name, one in objective.network.named_parameters() if id(one) in learning}
        assert any(name.startswith("backbone.") for name in names) is row.trained, row.name
        if not names:
            learn_nothing.add(row.name)
    assert learn_nothing == {rows.HOW_PCA}


def test_every_ablation_recipe_has_a_row() -> None:
    import rows

    same = {"5-all", "1-none", "4-both", "attention", "l4"}  # rows that two tables share
    wanted = {
        f"{folder}/{path.name}"
        for folder in TABLES[1:]
        for path in (FOLDER.parents[1] / "src" / "tessera" / "recipes" / folder).glob("*.toml")
        if path.stem not in same
    }
    assert wanted == {row.recipe for row in rows.ABLATIONS}


def test_the_page_names_a_row_for_every_recipe_of_the_paper() -> None:
    text = (FOLDER.parents[1] / "results" / "paper.md").read_text(encoding="utf-8")
    patterns = re.findall(rf"`((?:{'|'.join(TABLES)})/[^`]+)`", text.partition("recipe is which")[2])
    folder = FOLDER.parents[1] / "src" / "tessera" / "recipes"
    recipes = [f"{path.parent.name}/{path.stem}" for name in TABLES for path in (folder / name).glob("*.toml")]
    assert len(recipes) > 40
    named = {recipe: [one for one in patterns if fnmatch(recipe, one)] for recipe in recipes}
    assert {recipe: found for recipe, found in named.items() if len(found) != 1} == {}
    assert [one for one in patterns if not any(fnmatch(recipe, one) for recipe in recipes)] == []


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


def test_maps_of_other_pictures_are_not_taken_for_these(tmp_path: Path) -> None:
    import maps
    from PIL import Image

    from tessera.errors import DataError
    from tessera.models.backbones import build_backbone

    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path in paths:
        Image.new("RGB", (64, 48)).save(path)
    backbone = build_backbone("tiny")
    for _ in range(2):
        maps.PictureMaps(tmp_path / "maps", paths[:1], 64).prepare(backbone, say=lambda text: None)
    with pytest.raises(DataError, match="other pictures"):
        maps.PictureMaps(tmp_path / "maps", paths, 64).prepare(backbone, say=lambda text: None)


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


def test_what_has_no_seeds_says_so(tmp_path: Path) -> None:
    import paper_tables as tables
    import run

    of_all = [{"set": name, "distractors": distractors, "map": 0.5} for name, distractors in tables.COLUMNS]
    what = {"row": "imagenet-rmac", "seed": 0, "codec": "flat"}
    run.append_csv(tmp_path / "figures.csv", run.FIGURES, *({**what, **found} for found in of_all))
    shares = [{"row": name, "seed": 0, "share": 1.0, "map": 0.5} for name in ("token", "default")]
    run.append_csv(tmp_path / "share.csv", ("row", "seed", "share", "map"), *shares)
    lines = tables.write_tables(tmp_path).read_text().splitlines()
    assert next(line for line in lines if line.startswith("| R-MAC | 50.0")).endswith("| - |")
    assert "| Token | 50.0 | 1 |" in lines and "| default search | 50.0 | - |" in lines


def test_a_row_that_is_stopped_leaves_no_figures(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a row's lines would be taken for the row."""
    import run

    class Found:
        map, mp = 0.5, {1: 0.5, 10: 0.5}

    class Maps:
        scaled_groups, paths = list, ()

    class Network:
        head = None

    asked: list[object] = []

    def score(*of_what: object) -> Found:
        asked.append(of_what)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return Found()

    bench = run.Bench(data, tmp_path / "work", tmp_path / "results")
    monkeypatch.setattr(run, "score_descriptors", score)
    monkeypatch.setattr(run, "describe_maps", lambda *_: np.ones((1, 8), np.float32))
    monkeypatch.setattr(run, "open_reference", lambda _: Network)
    for name in ("maps", "pictures"):
        monkeypatch.setattr(run.Bench, name, Maps)
    with pytest.raises(KeyboardInterrupt):
        run.make_reference(bench, "imagenet-gem")
    assert not (bench.results / "figures.csv").exists()
    run.make_reference(bench, "imagenet-gem")
    assert len(run.read_csv(bench.results / "figures.csv")) == 4


def test_a_row_that_another_needs_is_trained_first(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DELG+SP asks for DELG's descriptors, whose own figures may be there while its run is not."""
    import rows
    import run

    bench, done = run.Bench(data, tmp_path / "work"), []

    def load(folder: Path) -> None:
        done.append(folder.name)
        raise InterruptedError

    monkeypatch.setattr(run, "train", lambda _, row, seed, rate: done.append((row.name, seed, rate)))
    monkeypatch.setattr(run, "load_network", load)
    with pytest.raises(InterruptedError):
        run.describe(bench, rows.ROWS["delg"], 2, 3e-4)
    assert done == [("delg", 2, 3e-4), "delg-0.0003-s2"]


def test_a_commit_is_marked_where_the_code_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import run

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    for file in ("src/code.py", "scripts/results/row.py", "results/figures.csv"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "Begin")
    monkeypatch.setattr(run, "REPOSITORY", tmp_path)
    (tmp_path / "results/figures.csv").write_text("2\n")
    assert re.fullmatch("[0-9a-f]{12}", run.commit())
    (tmp_path / "src/code.py").write_text("2\n")
    assert re.fullmatch("[0-9a-f]{12}[+]", run.commit())


def test_the_commands_of_full_scale_stop_at_the_files_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each as the page has it, in an empty folder, with the message that the page's table gives."""
    from typer.testing import CliRunner

    from tessera.cli.main import app
    from tessera.errors import TesseraError

    text = (FOLDER.parents[1] / "results" / "full-scale.md").read_text(encoding="utf-8")
    stops = dict(re.findall(r"^\| `(\w+(?: \w+)?)`.*?\| `(.+?)`", text, re.MULTILINE))
    commands = [
        line.partition("tessera ")[2].partition("   ")[0].split()
        for line in text.splitlines()
        if line.startswith(("tessera ", "torchrun ")) and "--dry-run" not in line
    ]
    assert len(commands) >= 8 and {words[0] for words in commands} == {name.split()[0] for name in stops}
    monkeypatch.chdir(tmp_path)
    for words in commands:
        wanted = next(stop for name, stop in stops.items() if " ".join(words).startswith(name))
        with pytest.raises(TesseraError) as stopped:
            CliRunner().invoke(app, words, catch_exceptions=False)
        assert wanted in str(stopped.value), words


def test_curves_have_deviations_and_the_same_figures_give_the_same_file(tmp_path: Path) -> None:
    import figures
    import paper_tables
    import run

    assert figures.means_and_spreads([(1, [50.0, 52.0, 54.0]), (2, [50.0])]) == ([52.0, 50.0], [2.0, 0.0])
    drawn = []
    for name, values in (("a", (0.5, 0.6)), ("b", (0.5, 0.6)), ("c", (0.5, 0.7))):
        for seed, value in enumerate(values):
            found = {"row": "components-3", "seed": seed, "codec": "flat", "set": "gldv2-test", "distractors": "0"}
            run.append_csv(tmp_path / name / "figures.csv", run.FIGURES, {**found, "map": value})
        read = paper_tables.Figures(tmp_path / name / "figures.csv")
        drawn.append(figures.draw_ablations(read, tmp_path / f"{name}.svg").read_bytes())
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_million_is_in_proportion_and_re_ranking_does_not_grow() -> None:
    import paper_tables

    def line(images: int, ms: float, size: int) -> dict[str, str]:
        times = {"top100_cpu_ms": str(ms), "full_cpu_ms": str(2 * ms)}
        return {"images": str(images), **times, "query_cpu_ms": "", "bytes_an_image": str(size)}

    searched = {
        "R101-DELG": [line(10_000, 12.0, 8192), line(100_000, 30.0, 8192)],
        "R101-DELG+SP": [line(100, 2000.0, 500_000)],
        "R101-Token": [line(100_000, 30.0, 4096)],
    }
    sizes = "100,000, extrapolated"
    assert paper_tables.at_a_million(searched, "R101-DELG") == ["0.300", "0.600", sizes, "8.2"]
    assert paper_tables.at_a_million(searched, "R101-DELG+SP") == ["2.300", "2.600", sizes, "508.2"]
    assert paper_tables.at_a_million(searched, "R101-Token")[:2] == ["0.300", "0.600"]
    searched["R101-Token"][0]["query_cpu_ms"] = "50.0"
    assert paper_tables.at_a_million(searched, "R101-Token")[:2] == ["0.350", "0.650"]
    assert paper_tables.at_a_million(searched, "R101-DELG+SP*")[0] == "not yet run"


def test_every_variant_is_a_recipe_and_fewer_classes_lie_within_more(data: Path, tmp_path: Path) -> None:
    import gap
    import gap_variants
    import run

    bench = run.Bench(data, tmp_path / "work")
    for variants in gap_variants.GROUPS.values():
        assert len({variant.name for variant in variants}) == len(variants)
        for variant in variants:
            gap.recipe_of(bench, variant.row, 0, variant.settings)
    labels = np.repeat(np.arange(442), 3)
    few, more = (
        set(gap.choose_images(labels, gap_variants.Variant("", "token", classes=count), 1)) for count in (50, 110)
    )
    assert few < more and len(few) == 150
    half = gap.choose_images(labels, gap_variants.Variant("", "token", share=0.5), 1)
    assert np.bincount(labels[half]).tolist() == [2] * 442  # of three, the larger half


def test_a_kept_start_keeps_the_angles_between_maps() -> None:
    import gap_starts
    import torch

    from tessera.models.model_registry import build_model

    random = np.random.default_rng(0)
    network = build_model("token-r18", backbone="tiny", channels=24, dim=32).eval()
    means = random.standard_normal((40, network.backbone.channels, 1, 1))
    crops = (means + 0.1 * random.standard_normal((40, network.backbone.channels, 3, 3))).astype(np.float16)
    labels = np.repeat(np.arange(20), 2)
    gap_starts.keep_angles(network, crops, labels)
    with torch.no_grad():
        found = network.head.describe(torch.from_numpy(crops.astype(np.float32))).numpy()
    wanted = crops.astype(np.float64).mean(axis=(2, 3))
    wanted -= wanted.mean(axis=0)
    cosines = [rows @ rows.T for rows in (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (found, wanted))]
    assert np.corrcoef(cosines[0].ravel(), cosines[1].ravel())[0, 1] > 0.95


def test_a_pair_is_matched_once_whoever_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dsm_row
    import run

    from tessera.local.features import LocalFeatures

    asked: list[int] = []

    class Counting:
        def count_inliers(self, query: LocalFeatures, candidates: list[LocalFeatures]) -> np.ndarray:
            asked.extend(int(one.strengths[0]) for one in candidates)
            return np.array([10 * one.strengths[0] for one in candidates], np.int64)

    pictures = [
        LocalFeatures(*(np.full((1, 2), n, np.float32),) * 2, *(np.full(1, n, np.float32),) * 2) for n in range(4)
    ]
    monkeypatch.setattr(dsm_row.Matching, "reranker", Counting())
    for _ in range(2):
        matching = dsm_row.Matching(run.Bench(tmp_path, tmp_path / "work"))
        matching.know(pictures)
        assert matching.count_inliers(pictures[0], [pictures[3], pictures[1]]).tolist() == [30, 10]
    assert matching.count_inliers(pictures[0], [pictures[2], pictures[1]]).tolist() == [20, 10]
    assert asked == [3, 1, 2]


def test_the_default_search_ranks_only_the_gallery_that_is_asked_for(tmp_path: Path) -> None:
    import default_search
    from PIL import Image

    random = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for path in paths:
        small = random.integers(0, 255, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(small).resize((160, 120), Image.Resampling.NEAREST).save(path)
    galleries = [[1, 2], [3, 2, 1]]
    with default_search.open_default_search(tmp_path / "work", paths, galleries) as search:
        assert [ranking.tolist() for ranking in search.rank([1, 2], [paths[2]])] == [[1, 0]]
        (ranking,) = search.rank([3, 2, 1], [paths[1]])
    assert ranking[0] == 2 and sorted(ranking) == [0, 1, 2]
