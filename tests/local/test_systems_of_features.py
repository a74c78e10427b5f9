"""Systems: codebook and kernel in a file, VLAD, regions against a slow second writing, evaluation end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tessera
from tessera.bench import planar_scenes as planar
from tessera.cli.main import app
from tessera.data.sets.leave_one_out import leave_one_out, load_labelled_source
from tessera.errors import ConfigError, IndexingError, UsageError
from tessera.evaluate.local import open_regions
from tessera.evaluate.run import evaluate_model
from tessera.local.aggregation import aggregate
from tessera.local.codebook import Codebook
from tessera.local.extractors import EXTRACTORS
from tessera.local.inverted_file import InvertedFile, KernelConfig
from tessera.local.regions import aggregate_regions, read_regions
from tessera.local.system import System, SystemConfig, build_system, read_config
from tessera.local.vlad import describe_vlad

SIZE = (160, 120)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Four places with three views each."""
    folder = tmp_path_factory.mktemp("places")
    for place in range(4):
        scene = planar.paint_scene(100 + place, SIZE)
        for view in range(3):
            picture = planar.warp(scene, planar.draw_homography(3 * place + view, SIZE), view)
            path = folder / f"place{place}" / f"view{view}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(picture).save(path)
    return folder


@pytest.fixture(scope="module")
def built(places, tmp_path_factory):
    folder = tmp_path_factory.mktemp("system") / "sift-asmk"
    config = SystemConfig(name="sift-asmk", extractor="sift", count=150, words=64, size=160)
    return build_system(config, sorted(places.rglob("*.png")), folder, say=lambda text: None)


def copy_system(system: System, folder: Path, **changes) -> Path:
    folder.mkdir()
    values = json.loads((system.folder / "system.json").read_text()) | changes
    (folder / "system.json").write_text(json.dumps(values))
    (folder / "codebook.npy").write_bytes((system.folder / "codebook.npy").read_bytes())
    return folder


def evaluate(places, model, tmp_path, **options):
    benchmark = leave_one_out(load_labelled_source(places))
    return evaluate_model(benchmark, str(model), cache_dir=tmp_path / "cache", **options).result


def test_asmk_finds_the_other_views(built, places, tmp_path):
    result = evaluate(places, built.folder, tmp_path)
    assert result.model == "sift-asmk"
    assert result.protocols["all"].map > 0.75
    assert result.details["bytes_an_image"] > 0


@pytest.mark.parametrize("kind", ["vlad", "rasmk"])
def test_vlad_and_regions_do_too(built, places, tmp_path, kind):
    changes = {"kind": kind, "name": kind}
    if kind == "rasmk":
        changes["regions"] = "boxes.json"
    folder = copy_system(built, tmp_path / kind, **changes)
    (folder / "boxes.json").write_text(json.dumps({"view0.png": [[0.0, 0.0, 0.5, 1.0], [0.25, 0.25, 0.75, 0.75]]}))
    assert evaluate(places, folder, tmp_path).protocols["all"].map > 0.75


def test_spatial_verification_re_ranks_a_system(built, places, tmp_path):
    result = evaluate(places, built.folder, tmp_path, rerank="sp")
    assert result.details["rerank"] == "sp"
    assert result.protocols["all"].map > 0.75
    with pytest.raises(UsageError, match="--rerank sp"):
        evaluate(places, built.folder, tmp_path, rerank="dsm")
    with pytest.raises(UsageError, match="own size"):
        evaluate(places, built.folder, tmp_path, size=100)


def test_a_bundle_is_re_ranked_by_local_features(small_bundle, places, tmp_path):
    plain = evaluate(places, small_bundle, tmp_path).protocols["all"].map
    verified = evaluate(places, small_bundle, tmp_path, rerank="sp").protocols["all"].map
    assert verified > max(plain, 0.9)


def test_a_system_file_may_be_toml(built, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extractor = "sift"\ncount = 10\n[kernel]\nalpha = 1.0\n')
    system = System.open(path)
    assert system.name == "mine"
    assert system.config.kernel == KernelConfig(alpha=1.0)
    path.write_text("extractr = 1\n")
    with pytest.raises(ConfigError, match="Did you mean 'extractor'"):
        System.open(path)


def test_fewer_features_than_words_is_an_error(places, tmp_path):
    config = SystemConfig(name="big", extractor="sift", count=20, words=5000, size=100)
    with pytest.raises(IndexingError, match="5000 words needs at least"):
        build_system(config, sorted(places.rglob("*.png"))[:3], tmp_path / "big", say=lambda text: None)


def test_a_codebook_of_another_dimension_is_an_error(built, tmp_path):
    folder = copy_system(built, tmp_path / "other", name="other")
    Codebook(np.eye(64, dtype=np.float32)).save(folder / "codebook.npy")
    with pytest.raises(IndexingError, match="dimension 64"):
        _ = System.open(folder).codebook


def test_regions_that_cannot_be_read_are_named(built, places, tmp_path):
    folder = copy_system(built, tmp_path / "bad", kind="rasmk", regions="gone.json")
    with pytest.raises(ConfigError, match=r"gone\.json"):
        evaluate(places, folder, tmp_path)
    folder = copy_system(built, tmp_path / "none", kind="rasmk")
    with pytest.raises(ConfigError, match="names no regions"):
        evaluate(places, folder, tmp_path)


def test_regions_go_by_as_much_of_a_path_as_the_file_names(tmp_path):
    file = tmp_path / "boxes.json"
    file.write_text(json.dumps({"0.png": [[0.1, 0.1, 1, 1]], "tower/0.png": [[0, 0, 0.5, 0.5]]}))
    find = read_regions(file)
    assert find(tmp_path / "tower" / "0.png") == [(0, 0, 0.5, 0.5)]
    assert find(tmp_path / "bridge" / "0.png") == [(0.1, 0.1, 1, 1)]
    assert find(tmp_path / "1.png") == []


@pytest.mark.parametrize("boxes", [{"0.png": [[0, 0, 320, 240]]}, {"0.png": [[0, 0, 1]]}, {"0.png": [["a"] * 4]}, [1]])
def test_regions_that_are_no_fractions_are_refused(tmp_path, boxes):
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    with pytest.raises(ConfigError, match="in fractions of width and height"):
        read_regions(tmp_path / "boxes.json")


def test_a_file_of_regions_that_names_no_picture_is_told(built, places, tmp_path):
    folder = copy_system(built, tmp_path / "elsewhere", kind="rasmk", regions="boxes.json")
    (folder / "boxes.json").write_text(json.dumps({"another.png": [[0.0, 0.0, 0.5, 1.0]]}))
    result = evaluate(places, folder, tmp_path)
    assert any("boxes.json names no region of any picture" in note for note in result.notes)


@pytest.mark.parametrize("setting", [{"words": 0}, {"count": -1}, {"size": 0}, {"power": 0.0}, {"scales": (1.0, 0.0)}])
def test_a_system_of_nothing_is_refused(setting):
    with pytest.raises(ConfigError, match="must be above 0"):
        SystemConfig(name="nothing", **setting)


def random_image(seed, count=40, dim=16):
    random = np.random.default_rng(seed)
    return random.normal(size=(count, dim)).astype(np.float32), random.uniform(size=(count, 2))


@pytest.mark.parametrize("binary", [False, True])
def test_regional_kernel_against_a_slow_second_writing(binary):
    random = np.random.default_rng(3)
    codebook = Codebook(random.normal(size=(7, 16)).astype(np.float32))
    features, spots = random_image(0)
    regions = [(0.0, 0.0, 0.6, 0.5), (0.3, 0.3, 1.0, 1.0), (2.0, 2.0, 3.0, 3.0)]
    found = aggregate_regions(codebook, features, spots, regions, binary=binary)
    index = InvertedFile(codebook, KernelConfig(binary=binary, query_assignment=1, alpha=3.0, threshold=0.0))
    index.add_aggregate(found)
    query, _ = random_image(1)
    _, scores = index.scores(query)

    def nearest(x):
        return min(range(7), key=lambda w: float(((x - codebook.centroids[w]) ** 2).sum()))

    def word_sums(rows):
        sums = {}
        for x in rows:
            w = nearest(x)
            sums[w] = sums.get(w, 0) + (x.astype(float) - codebook.centroids[w])
        return sums

    joined = {}
    for region in [(-1, -1, 2, 2), *regions]:
        inside = [
            x
            for x, (a, b) in zip(features, spots, strict=True)
            if region[0] <= a <= region[2] and region[1] <= b <= region[3]
        ]
        sums = word_sums(inside)
        for w, total in sums.items():
            joined[w] = joined.get(w, 0) + total / np.linalg.norm(total) / np.sqrt(len(sums))
    asked = word_sums(query)
    expected = 0.0
    for w in asked:
        if w in joined:
            if binary:
                similarity = np.mean(np.where(asked[w] > 0, 1, -1) * np.where(joined[w] > 0, 1, -1)) * 16 / 32 + 0.5
            else:
                similarity = asked[w] @ joined[w] / np.linalg.norm(asked[w]) / np.linalg.norm(joined[w])
            expected += similarity**3 if similarity >= 0 else 0.0
    expected /= np.sqrt(len(asked) * len(joined))
    assert scores[0] == pytest.approx(expected, rel=1e-4)


def test_without_regions_it_is_asmk():
    codebook = Codebook(np.random.default_rng(5).normal(size=(9, 16)).astype(np.float32))
    features, spots = random_image(2)
    plain = aggregate(codebook, features, np.zeros(len(features), np.int64), nearest=1, binary=True)
    regional = aggregate_regions(codebook, features, spots, [], binary=True)
    assert np.array_equal(plain.words, regional.words)
    assert np.array_equal(plain.values, regional.values)


def test_vlad_by_hand():
    codebook = Codebook(np.array([[0.0, 0.0], [10.0, 0.0]], np.float32))
    features = np.array([[3.0, 4.0], [10.0, 2.0]], np.float32)
    plain = describe_vlad(codebook, features, intra=False, power=1.0)
    assert np.allclose(plain, np.array([3, 4, 0, 2]) / np.sqrt(29))
    intra = describe_vlad(codebook, features, intra=True, power=1.0)
    assert np.allclose(intra, np.array([0.6, 0.8, 0, 1]) / np.sqrt(2))
    power = describe_vlad(codebook, features, intra=True, power=0.5)
    assert np.allclose(power, np.sqrt([0.6, 0.8, 0, 1]) / np.sqrt(2.4))
    assert not describe_vlad(codebook, features[:0]).any()


def test_tokens_are_trained_and_evaluated_from_the_command_line(places, tmp_path):
    recipe = tmp_path / "tokens.toml"
    recipe.write_text(
        'extractor = "sift"\nkind = "tokens"\ncount = 80\nsize = 160\n'
        "network = { channels = 16, hidden = 16, heads = 2, dim = 16 }\ntraining = { epochs = 3, sample = 40 }\n"
    )
    command = ["system", "train", str(places), "-o", str(tmp_path / "mine"), "--recipe", str(recipe), "--json"]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["kind"] == "tokens"
    assert evaluate(places, tmp_path / "mine", tmp_path).protocols["all"].map > 0.2


def test_a_system_is_built_from_the_command_line(places, tmp_path):
    command = ["system", "build", str(places), "-o", str(tmp_path / "s"), "--extractor", "sift", "--words", "32"]
    answer = CliRunner().invoke(app, [*command, "--count", "60", "--size", "120", "--json"])
    assert answer.exit_code == 0, answer.output
    assert System.open(tmp_path / "s").codebook.size == 32
    nothing = CliRunner().invoke(app, ["system", "build", str(tmp_path / "gone"), "-o", str(tmp_path / "t")])
    assert isinstance(nothing.exception, UsageError)


@pytest.mark.parametrize(
    "path", sorted((Path(tessera.__file__).parent / "systems").glob("*.toml")), ids=lambda p: p.stem
)
def test_the_shipped_systems_read(path):
    config = read_config(path)
    assert config.kind in ("asmk", "rasmk", "vlad", "tokens")
    assert config.extractor in EXTRACTORS


def test_regions_come_from_where_tokens_look(built, places, token_bundle, tmp_path):
    folder = copy_system(built, tmp_path / "looked", kind="rasmk", regions=str(token_bundle))
    regions = open_regions(System.open(folder))(next(places.rglob("*.png")))
    assert len(regions) == 4
    assert all(0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1 for x0, y0, x1, y1 in regions)
    assert evaluate(places, folder, tmp_path).protocols["all"].map > 0.7


@pytest.mark.parametrize("model", ["how-r18", "delf-r50"])
def test_a_local_bundle_is_a_systems_extractor(model, places, tmp_path):
    torch = pytest.importorskip("torch")
    from tessera.models.model_registry import build_model
    from tessera.models.onnx_export import export_bundle, make_card

    torch.manual_seed(0)
    dim = {"dim": 8} if model == "how-r18" else {"local_dim": 8, "hidden": 8}
    network = build_model(model, backbone="tiny", **dim)
    export_bundle(network, tmp_path / "bundle", make_card(network, model))
    config = SystemConfig(name=model, extractor=str(tmp_path / "bundle"), count=60, words=16, size=160)
    build_system(config, sorted(places.rglob("*.png")), tmp_path / "system", say=lambda text: None)
    result = evaluate(places, tmp_path / "system", tmp_path)
    assert result.protocols["all"].map > 0.3
    again = evaluate(places, tmp_path / "system", tmp_path)
    assert again.protocols["all"].map == result.protocols["all"].map
