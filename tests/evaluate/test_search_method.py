"""`evaluate --by auto`: the search of a gallery, box queries included, on a Revisited Oxford of painted scenes."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tessera.bench.planar_scenes import draw_homography, paint_scene, warp
from tessera.cli.main import app
from tessera.data.sets.revisited import load_revisited
from tessera.errors import UsageError
from tessera.evaluate.method import ImagesOf
from tessera.evaluate.run import Run, evaluate_model
from tessera.evaluate.search_method import SearchMethod

SIZE = (480, 360)
SCENES, VIEWS, STRANGERS = 3, 3, 4


def view_of(scene: int, number: int) -> np.ndarray:
    return warp(paint_scene(scene, SIZE), draw_homography(10 * scene + number, SIZE), number)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Views of three scenes and strangers; each query shows one scene in its box, and the next one beside it.

    The last query is a picture of the gallery itself.
    """
    root = tmp_path_factory.mktemp("scenes") / "roxford5k"
    (root / "jpg").mkdir(parents=True)
    pictures = {f"scene{s}_{v}": view_of(s, v) for s in range(SCENES) for v in range(VIEWS)}
    pictures |= {f"stranger{s}": paint_scene(50 + s, SIZE) for s in range(STRANGERS)}
    names = sorted(pictures)
    truth, queries = [], []
    for s in range(SCENES):
        pictures[f"query{s}"] = np.concatenate([view_of(s, 7), view_of((s + 1) % SCENES, 8)], axis=1)
        queries.append(f"query{s}")
        easy, hard, junk = ([names.index(f"scene{s}_{v}")] for v in range(VIEWS))
        truth.append({"bbx": [0.0, 0.0, *map(float, SIZE)], "easy": easy, "hard": hard, "junk": junk})
    queries.append("scene0_0")
    others = [names.index(f"scene0_{v}") for v in range(1, VIEWS)]
    truth.append({"bbx": [0.0, 0.0, *map(float, SIZE)], "easy": others, "hard": [], "junk": []})
    for name, picture in pictures.items():
        Image.fromarray(picture).save(root / "jpg" / f"{name}.jpg", quality=95)
    content = {"gnd": truth, "imlist": names, "qimlist": queries}
    (root / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(content, protocol=2))
    return root


@pytest.fixture(scope="module")
def boxed(scenes: Path, small_bundle: Path) -> Run:
    return evaluate_model(
        load_revisited("roxford5k", scenes), str(small_bundle), by="auto", cache_dir=scenes.parent / "cache"
    )


def test_a_box_asks_for_what_is_in_it(boxed: Run) -> None:
    assert {name: score.map for name, score in boxed.result.protocols.items()} == {
        "easy": 1.0,
        "medium": 1.0,
        "hard": 1.0,
    }
    for query in range(SCENES):
        names = [boxed.benchmark.gallery_names[row] for row in boxed.tops[query][:VIEWS]]
        assert {name.split("_")[0] for name in names} == {f"scene{query}"}
    assert boxed.result.details["by"] == "auto"


def test_without_boxes_both_scenes_are_asked_for(scenes: Path, small_bundle: Path, boxed: Run) -> None:
    whole = evaluate_model(
        load_revisited("roxford5k", scenes),
        str(small_bundle),
        by="auto",
        query="whole",
        cache_dir=scenes.parent / "cache",
    )
    assert whole.result.query == "whole"
    assert whole.result.protocols["medium"].map < 1.0
    for query in range(SCENES):
        names = [whole.benchmark.gallery_names[row] for row in whole.tops[query][: VIEWS + 1]]
        assert {f"scene{query}", f"scene{(query + 1) % SCENES}"} <= {name.split("_")[0] for name in names}


@pytest.mark.parametrize("by", ["auto", "local"])
def test_the_whole_gallery_is_ranked_but_never_the_query_itself(
    scenes: Path, small_bundle: Path, by: str, boxed: Run
) -> None:
    benchmark = load_revisited("roxford5k", scenes)
    method = SearchMethod(str(small_bundle), by)
    assert (
        method.describe(
            ImagesOf(benchmark, benchmark.boxes),
            ["x"] * (len(benchmark.gallery) + len(benchmark.queries)),
            scenes.parent / by,
            lambda *_: None,
        )
        == {}
    )
    rankings = list(method.rank(benchmark, benchmark.boxes, [], codec="flat", seed=0))
    everything = len(benchmark.gallery)
    own = benchmark.gallery_names.index("scene0_0")
    for query, ranking in enumerate(rankings):
        assert len(np.unique(ranking)) == len(ranking)
        if by == "auto":  # local features alone find nothing in common with some strangers
            assert len(ranking) == everything - (query == SCENES)
        assert own not in ranking.tolist() or query != SCENES


def test_the_command_says_the_same(scenes: Path, small_bundle: Path, boxed: Run) -> None:
    cache = scenes.parent / "cache"
    asked = ["evaluate", "roxford5k", "--data", str(scenes), "--model", str(small_bundle), "--by", "auto"]
    answer = CliRunner().invoke(app, [*asked, "--cache", str(cache), "--json"])
    assert answer.exit_code == 0, answer.stderr
    content = json.loads(answer.stdout)
    assert content["protocols"]["hard"]["map"] == boxed.result.protocols["hard"].map
    assert content["query"] == "box" and content["images"]["gallery"] == SCENES * VIEWS + STRANGERS


def test_what_belongs_to_descriptors_is_refused(scenes: Path, small_bundle: Path) -> None:
    with pytest.raises(UsageError, match="--by auto is the search of a gallery"):
        evaluate_model(load_revisited("roxford5k", scenes), str(small_bundle), by="auto", codec="pq8")
