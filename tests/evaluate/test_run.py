"""Whole runs on a synthetic Revisited Oxford and on folders: figures, boxes, the cache, and what is not there."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from oxford_in_small import COLOURS, ColourExtractor, make_oxford, paint
from PIL import Image

from tessera.data.sets.benchmark import Benchmark
from tessera.data.sets.labelled import image_set
from tessera.data.sets.leave_one_out import leave_one_out, load_labelled_source, load_listed
from tessera.data.sets.revisited import load_revisited
from tessera.errors import DataError, EvaluationError, UsageError
from tessera.evaluate import descriptors
from tessera.evaluate.cache import HashCache
from tessera.evaluate.method import DescriptorMethod
from tessera.evaluate.rankers import rank_by_index, rank_exactly, rank_refined, rerank_heads
from tessera.evaluate.run import RunConfig, evaluate_model, run_benchmark, score_rankings


@pytest.fixture
def oxford(tmp_path: Path) -> Path:
    return make_oxford(tmp_path / "roxford5k")


def config(tmp_path: Path, **changes: object) -> RunConfig:
    return RunConfig(cache_dir=tmp_path / "cache", **changes)  # type: ignore[arg-type]


def test_boxes_decide_what_a_query_shows(oxford: Path, tmp_path: Path) -> None:
    benchmark = load_revisited("roxford5k", oxford)
    assert benchmark.notes == ("roxford5k: found 3 queries and 12 images; published were 70 and 4,993.",)
    boxed = run_benchmark(benchmark, DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path)).result
    assert {name: score.map for name, score in boxed.protocols.items()} == {"easy": 1.0, "medium": 1.0, "hard": 1.0}
    whole = run_benchmark(
        benchmark, DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path, query="whole")
    ).result
    assert whole.query == "whole"
    assert whole.protocols["medium"].map < 0.5
    content = boxed.to_json()
    assert list(content)[:4] == ["dataset", "model", "query", "protocols"]
    assert content["images"] == {"gallery": 12, "queries": 3, "distractors": 0, "unreadable": 0}


def test_rankings_and_tops(oxford: Path, tmp_path: Path) -> None:
    run = run_benchmark(
        load_revisited("roxford5k", oxford), DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path)
    )
    for query, colour in enumerate(COLOURS):
        assert {run.benchmark.gallery_names[i] for i in run.tops[query][:4]} == {f"{colour}_{i}" for i in range(4)}


def test_a_second_run_comes_from_the_cache_and_a_changed_image_does_not(oxford: Path, tmp_path: Path) -> None:
    benchmark = load_revisited("roxford5k", oxford)
    first = run_benchmark(benchmark, DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path)).result
    again = ColourExtractor()
    second = run_benchmark(benchmark, DescriptorMethod(again, "colour"), config(tmp_path)).result
    assert again.seen == []
    assert second.details["described"] == {"network": 0, "cache": 15}
    assert second.details["fingerprints"] == first.details["fingerprints"]
    paint(oxford / "jpg" / "red_0.jpg", COLOURS["blue"], 0.1)
    changed = ColourExtractor()
    third = run_benchmark(benchmark, DescriptorMethod(changed, "colour"), config(tmp_path)).result
    assert changed.seen == ["red_0"]
    assert third.details["fingerprints"]["images"] != first.details["fingerprints"]["images"]
    assert third.protocols["easy"].map < 1.0
    other = ColourExtractor("another model")
    run_benchmark(benchmark, DescriptorMethod(other, "other"), config(tmp_path))
    assert len(other.seen) == 15


def test_an_interrupted_run_goes_on_where_it_stopped(oxford: Path, tmp_path: Path) -> None:
    benchmark = load_revisited("roxford5k", oxford)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(benchmark, DescriptorMethod(ColourExtractor(stop_after=9), "colour"), config(tmp_path))
    rest = ColourExtractor()
    result = run_benchmark(benchmark, DescriptorMethod(rest, "colour"), config(tmp_path)).result
    assert len(rest.seen) == 6
    assert result.protocols["medium"].map == 1.0


KILLED = """
import os, signal, sys
from pathlib import Path
from oxford_in_small import ColourExtractor
from tessera.data.sets.revisited import load_revisited
from tessera.evaluate.method import DescriptorMethod
from tessera.evaluate.run import RunConfig, run_benchmark

class Killed(ColourExtractor):
    def extract(self, sources, **options):
        for number, found in enumerate(super().extract(sources, **options)):
            if number == 100:
                os.kill(os.getpid(), signal.SIGKILL)
            yield found

oxford, distractors, cache = map(Path, sys.argv[1:])
run_benchmark(
    load_revisited("roxford5k", oxford).with_distractors(distractors),
    DescriptorMethod(Killed(), "colour"),
    RunConfig(cache_dir=cache),
)
"""


SLOW = """
import sys, time
from pathlib import Path
from oxford_in_small import ColourExtractor
from tessera import storage
from tessera.data.sets.revisited import load_revisited
from tessera.evaluate.method import DescriptorMethod
from tessera.evaluate.run import RunConfig, run_benchmark

storage._BUSY_TIMEOUT_S = 3.0  # less than a run takes

class Slow(ColourExtractor):
    def extract(self, sources, **options):
        for found in super().extract(sources, **options):
            time.sleep(0.3)
            yield found

oxford, cache = map(Path, sys.argv[1:])
run = run_benchmark(load_revisited("roxford5k", oxford), DescriptorMethod(Slow(), "colour"), RunConfig(cache_dir=cache))
print(run.result.protocols["medium"].map)
"""


def test_two_evaluations_on_one_cache_wait_for_each_other(oxford: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, str(oxford), str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in running:
        printed, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert printed.strip() == "1.0"


def test_a_killed_run_goes_on_from_its_last_commit(oxford: Path, tmp_path: Path) -> None:
    for number in range(150):
        paint(
            tmp_path / "r1m" / f"{number}.png", (40, 210, number), 0.0
        )  # no two alike: equal content is described once
    command = [sys.executable, "-c", KILLED, str(oxford), str(tmp_path / "r1m"), str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    rest = ColourExtractor()
    benchmark = load_revisited("roxford5k", oxford).with_distractors(tmp_path / "r1m")
    result = run_benchmark(benchmark, DescriptorMethod(rest, "colour"), config(tmp_path)).result
    assert result.details["described"] == {"network": len(rest.seen), "cache": 165 - len(rest.seen)}
    assert 65 <= len(rest.seen) <= 65 + 32  # 100 were described, the last few not yet written


def test_a_damaged_cache_is_made_again(oxford: Path, tmp_path: Path) -> None:
    benchmark = load_revisited("roxford5k", oxford)
    run_benchmark(benchmark, DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path))
    for file in (tmp_path / "cache").rglob("*.sqlite*"):
        file.write_bytes(b"not a database, and longer than a header" * 100)
    result = run_benchmark(benchmark, DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path)).result
    assert result.protocols["medium"].map == 1.0


def test_distractors_join_the_gallery(oxford: Path, tmp_path: Path) -> None:
    for number in range(150):
        paint(tmp_path / "r1m" / f"{number // 50}" / f"{number}.png", (40, 210, 60), number / 400)
    (tmp_path / "r1m" / "0" / "broken.jpg").write_bytes(b"no picture")
    with Image.open(oxford / "jpg" / "query_green.jpg") as query:
        query.crop((10, 5, 30, 25)).save(tmp_path / "r1m" / "0" / "0.png")  # the one that must come first
    benchmark = load_revisited("roxford5k", oxford).with_distractors(tmp_path / "r1m")
    assert benchmark.num_distractors == 151
    run = run_benchmark(benchmark, DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path))
    assert run.result.details["images"] == {"gallery": 12, "queries": 3, "distractors": 150, "unreadable": 1}
    assert list(run.unreadable) == ["0/broken.jpg"]
    assert run.result.protocols["medium"].ap[0] == 1.0
    assert run.result.protocols["medium"].ap[1] < 1.0
    assert run.benchmark.gallery_names[run.tops[1][0]] == "0/0.png"
    with pytest.raises(DataError, match="is not there"):
        benchmark.with_distractors(tmp_path / "none")


@pytest.mark.parametrize("codec", ["pq8", "flat"])
def test_codecs_go_through_the_index(codec: str) -> None:
    rng = np.random.default_rng(0)
    gallery = rng.standard_normal((400, 16)).astype(np.float32)
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    exact = np.stack(list(rank_exactly(gallery, gallery[:3])))
    coded = np.stack(list(rank_by_index(codec, gallery, gallery[:3])))
    assert exact[:, 0].tolist() == [0, 1, 2]
    assert coded.shape == exact.shape
    assert np.array_equal(np.sort(coded, axis=1), np.sort(exact, axis=1))
    assert len(set(coded[0, :50]) & set(exact[0, :50])) > 30


def test_equal_scores_keep_the_order_of_the_gallery() -> None:
    gallery = np.ones((300, 4), dtype=np.float32)
    assert next(iter(rank_exactly(gallery, gallery[:1]))).tolist() == list(range(300))


def test_missing_images_are_listed(oxford: Path) -> None:
    (oxford / "jpg" / "red_1.jpg").unlink()
    (oxford / "jpg" / "query_blue.jpg").unlink()
    with pytest.raises(DataError, match=r"roxford5k: 2 images are missing:\n.*red_1.jpg\n.*query_blue.jpg"):
        load_revisited("roxford5k", oxford)


def test_an_unreadable_image_of_a_published_set_is_an_error(oxford: Path, tmp_path: Path) -> None:
    (oxford / "jpg" / "red_1.jpg").write_bytes(b"no picture at all")
    with pytest.raises(DataError, match=r"roxford5k: 1 images cannot be read: red_1 \("):
        run_benchmark(
            load_revisited("roxford5k", oxford), DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path)
        )


def test_revisited_folders(oxford: Path, tmp_path: Path) -> None:
    assert load_revisited("roxford5k", oxford.parent).gallery_names[0] == "red_0"
    with pytest.raises(DataError, match=r"there is no gnd_rparis6k.pkl"):
        load_revisited("rparis6k", oxford)


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    for colour, rgb in COLOURS.items():
        for number in range(3):
            paint(tmp_path / "classes" / colour / f"{colour[0]}{number}.png", rgb, number / 10)
    paint(tmp_path / "classes" / "alone" / "x.png", (200, 200, 20), 0)
    return tmp_path / "classes"


def test_leave_one_out_over_class_folders(classes: Path, tmp_path: Path) -> None:
    benchmark = leave_one_out(load_labelled_source(classes))
    run = run_benchmark(benchmark, DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path))
    score = run.result.protocols["all"]
    assert list(run.result.protocols) == ["all"]
    assert score.map == 1.0
    assert score.num_queries == 9
    assert run.result.to_json()["protocols"]["all"]["ap"][0] is None  # the class of one image
    assert run.result.query == "whole"
    assert all(own not in top for own, top in enumerate(run.tops))


def test_leave_one_out_over_a_csv(classes: Path, tmp_path: Path) -> None:
    rows = [f"{file.parent.name}/{file.name},{file.parent.name}" for file in sorted(classes.rglob("r*.png"))]
    rows += [f"green/g0.png,{'red'}"]
    (classes / "mine.csv").write_text("path,label\n" + "\n".join(rows) + "\n")
    benchmark = leave_one_out(load_labelled_source(classes / "mine.csv"))
    score = run_benchmark(benchmark, DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path)).result.protocols[
        "all"
    ]
    assert score.ap.tolist()[:3] == [1.0, 1.0, 1.0]
    (classes / "mine.csv").write_text("path,label\nred/r0.png,red\nred/gone.png,red\n")
    with pytest.raises(DataError, match=r"1 images are missing:\n.*gone.png"):
        leave_one_out(load_labelled_source(classes / "mine.csv"))


def test_unreadable_images_of_a_folder_are_skipped_and_too_many_are_an_error(tmp_path: Path) -> None:
    for number in range(120):
        paint(tmp_path / "many" / f"c{number % 2}" / f"{number}.png", COLOURS["red" if number % 2 else "blue"], 0.1)
    (tmp_path / "many" / "c0" / "0.png").write_bytes(b"")
    benchmark = leave_one_out(load_labelled_source(tmp_path / "many"))
    run = run_benchmark(benchmark, DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path))
    assert list(run.unreadable) == ["c0/0.png"]
    assert len(run.benchmark.queries) == 119
    assert run.result.protocols["all"].map == 1.0
    assert any("1 images could not be read" in note for note in run.result.notes)
    (tmp_path / "many" / "c0" / "2.png").write_bytes(b"")
    with pytest.raises(DataError, match="2 of 120 images cannot be read, more than 1%"):
        run_benchmark(benchmark, DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path))


def listed(folder: Path, content: object) -> Path:
    path = folder.parent / "lists.json"
    path.write_text(json.dumps(content))
    return path


def test_lists_of_ones_own_with_junk_and_boxes(classes: Path, tmp_path: Path) -> None:
    queries = [
        {"query": "red/r0.png", "easy": ["red/r1.png"], "junk": ["red/r2.png"]},
        {"query": "g0", "box": [0, 0, 10, 10], "hard": ["g2"], "easy": ["g0"]},
    ]
    benchmark = load_listed(classes, listed(classes, {"name": "mine", "queries": queries}))
    assert benchmark.name == "mine"
    assert benchmark.boxes == (None, (0.0, 0.0, 10.0, 10.0))
    names = benchmark.gallery_names
    assert {names[i] for i in benchmark.lists[0]["junk"]} == {"red/r0.png", "red/r2.png"}
    assert benchmark.lists[1]["easy"].tolist() == []
    result = run_benchmark(benchmark, DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path)).result
    assert result.protocols["all"].ap[0] == 1.0
    assert result.query == "box"
    fewer = {"queries": queries[:1], "gallery": ["red/r1.png", "red/r2.png", "blue/b0.png"]}
    assert load_listed(classes, listed(classes, fewer)).own_ids.tolist() == [-1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "an object with a list 'queries'"),
        ({"queries": [], "galery": []}, "key 'galery' is not known. Did you mean 'gallery'"),
        ({"queries": [{"easy": []}]}, "query 0 must be an object with the file name 'query'"),
        ({"queries": [{"query": "r0", "eazy": []}]}, "key 'eazy' is not known. Did you mean 'easy'"),
        ({"queries": [{"query": "r0", "easy": ["zz"]}]}, "query 0, easy: 1 images are not in the gallery, zz for one"),
        ({"queries": [{"query": "r0", "easy": "r1"}]}, "must be a list of file names"),
        ({"queries": [{"query": "../../x.png"}]}, "is not a path inside"),
        ({"queries": [{"query": "none.png", "easy": ["r1"]}]}, "1 images are missing"),
        ({"queries": [], "gallery": ["red/r1.png", "red/r1.png"]}, "the gallery has an image twice"),
    ],
)
def test_bad_lists_of_ones_own(classes: Path, content: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_listed(classes, listed(classes, content))


def test_no_class_of_two_images_is_an_error(tmp_path: Path) -> None:
    paint(tmp_path / "a.png", COLOURS["red"], 0)
    images = image_set("one", tmp_path, [("a.png", "a")])
    with pytest.raises(EvaluationError, match="no query has a positive"):
        run_benchmark(leave_one_out(images), DescriptorMethod(ColourExtractor(), "colour"), config(tmp_path))


def test_hashes_are_remembered_until_a_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"one")
    cache = HashCache(tmp_path / "cache")
    first = cache.hash_files([file, file])
    assert first[0] == first[1] == "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
    file.write_bytes(b"other")
    assert cache.hash_files([file]) != first[:1]
    cache.close()
    with pytest.raises(DataError, match="cannot be read"):
        HashCache(tmp_path / "cache").hash_files([tmp_path / "none"])


def test_many_descriptors_lie_in_a_file_that_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(descriptors, "MAPPED_ABOVE_BYTES", 1000)
    rows = descriptors.allocate_rows(100, 4, tmp_path)
    assert isinstance(rows, np.memmap)
    rows[7] = 1.5
    taken = descriptors.take_rows(rows, [7, 3, *range(90)], tmp_path)
    assert isinstance(taken, np.memmap)
    assert taken[:2].tolist() == [[1.5] * 4, [0.0] * 4]
    assert list(tmp_path.iterdir()) == []


def clusters(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Descriptors of five chains: neighbours are near, the ends of a chain are not; 100 x 16, and their classes."""
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for label in range(5):
        start, end = rng.standard_normal((2, 16))
        for step in np.linspace(0, 1, 20):
            rows.append((1 - step) * start + step * end + 0.05 * rng.standard_normal(16))
            labels.append(label)
    gallery = np.array(rows, dtype=np.float32)
    return gallery / np.linalg.norm(gallery, axis=1, keepdims=True), np.array(labels)


def chain_benchmark(labels: np.ndarray) -> Benchmark:
    files = tuple(f"{i}.jpg" for i in range(len(labels)))
    lists = tuple(
        {"easy": np.flatnonzero((labels == label) & (np.arange(len(labels)) != own)), "junk": np.array([own])}
        for own, label in enumerate(labels)
    )
    paths = tuple(Path(file) for file in files)
    own_ids = np.arange(len(labels))
    return Benchmark("chains", paths, files, paths, files, (None,) * len(files), lists, own_ids, levels=False)


@pytest.mark.parametrize(
    "refinement", [{"expand": "aqe"}, {"expand": "diffusion"}, {"rerank": "global"}, {"augment": True}], ids=str
)
def test_refinements_find_more_of_a_chain_and_never_the_query_itself(refinement: dict[str, Any]) -> None:
    gallery, labels = clusters()
    benchmark = chain_benchmark(labels)
    plain, _, _ = score_rankings(benchmark, rank_exactly(gallery, gallery), (1,))
    rankings = list(rank_refined("flat", benchmark, gallery, gallery, **refinement))
    assert all(own not in ranking and len(ranking) == 99 for own, ranking in enumerate(rankings))
    refined, _, _ = score_rankings(benchmark, iter(rankings), (1,))
    assert refined["all"].map > plain["all"].map + 0.001
    apart = dataclasses.replace(benchmark, own_ids=np.full(len(labels), -1))
    whole = list(rank_refined("flat", apart, gallery, gallery, **refinement))
    assert all(len(ranking) == 100 for ranking in whole)


def test_unknown_refinements_are_usage_errors(oxford: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'aqe'"):
        evaluate_model(load_revisited("roxford5k", oxford), "lite", expand="aq")
    with pytest.raises(UsageError, match="Did you mean 'global'"):
        evaluate_model(load_revisited("roxford5k", oxford), "lite", rerank="globl")


def test_heads_are_put_in_the_order_of_new_scores() -> None:
    rankings = iter([np.array([4, 2, 7, 1]), np.array([1, 3])])
    scores = {4: 0.0, 2: 5.0, 7: 0.0, 1: 9.0, 3: 1.0}
    reranked = rerank_heads(rankings, lambda _, ids: np.array([scores[i] for i in ids]), depth=3)
    assert [ranking.tolist() for ranking in reranked] == [[2, 4, 7, 1], [1, 3]]


def test_a_method_that_ranks_without_descriptors(oxford: Path, tmp_path: Path) -> None:
    class Alphabetical:
        name = "alphabet"
        fingerprint = "abc"
        details: ClassVar[dict[str, object]] = {}
        notes: tuple[str, ...] = ()
        boxes: tuple[object, ...] = ()

        def __init__(self) -> None:
            self.failures: dict[int, str] = {}

        def describe(self, *_: object) -> dict[int, str]:
            return self.failures

        def rank(
            self, benchmark: Benchmark, boxes: tuple[object, ...], *_: object, **__: object
        ) -> Iterator[np.ndarray]:
            self.boxes = tuple(boxes)
            for name in benchmark.query_names:
                colour = name.removeprefix("query_")
                yield np.array([i for i, file in enumerate(benchmark.gallery_names) if file.startswith(colour)][:1])

    system = Alphabetical()
    run = run_benchmark(load_revisited("roxford5k", oxford), system, config(tmp_path))  # type: ignore[arg-type]
    assert system.boxes == ((10.0, 5.0, 30.0, 25.0),) * 3
    assert run.result.protocols["easy"].map == 0.5
    assert run.result.protocols["hard"].map == 0.0
    assert run.result.details["fingerprints"]["extractor"] == "abc"
    system.failures = {1: "no picture"}
    with pytest.raises(DataError, match=r"roxford5k: 1 images cannot be read: .* \(no picture\)"):
        run_benchmark(load_revisited("roxford5k", oxford), system, config(tmp_path))  # type: ignore[arg-type]
    crowd = tmp_path / "crowd"
    crowd.mkdir()
    for number in range(150):
        (crowd / f"{number}.png").write_bytes(b"no picture")
    joined = load_revisited("roxford5k", oxford).with_distractors(crowd)
    system.failures = {len(joined.gallery) - 1: "no picture"}
    run = run_benchmark(joined, system, config(tmp_path))  # type: ignore[arg-type]
    assert run.unreadable == {"99.png": "no picture"} and run.benchmark.num_distractors == 149


def test_local_features_without_a_reranking_that_uses_them_are_refused(oxford: Path) -> None:
    with pytest.raises(UsageError, match="--local sift says which features --rerank sp uses"):
        evaluate_model(load_revisited("roxford5k", oxford), "lite", local="sift")
