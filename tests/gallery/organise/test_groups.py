"""Photos of one thing: joined by verified matches, kept, and not chained together."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

import tessera
from tessera.bench import planar_scenes as planar
from tessera.errors import GalleryLockedError
from tessera.gallery.catalog.lock import writer_lock
from tessera.gallery.organise.compared_pairs import ComparedPairs
from tessera.gallery.organise.components import connected_components, join_components
from tessera.gallery.organise.pair_reader import PairReader, order_pairs

SIZE = (320, 240)


def view(scene: int, seed: int) -> Image.Image:
    return Image.fromarray(planar.warp(planar.paint_scene(scene, SIZE), planar.draw_homography(seed, SIZE), seed))


@pytest.fixture
def scenes(gallery: tessera.Gallery, tmp_path: Path) -> Iterator[tuple[tessera.Gallery, Path]]:
    """Three views of scene 0, two of scene 1, one of scene 2."""
    folder = tmp_path / "scenes"
    folder.mkdir()
    for scene, count in ((0, 3), (1, 2), (2, 1)):
        for seed in range(count):
            view(scene, 10 * scene + seed).save(folder / f"scene{scene}-{seed}.png")
    gallery.index(folder)
    yield gallery, folder


def members(gallery: tessera.Gallery) -> list[list[str]]:
    return [sorted(Path(record.path).stem for record in group.images) for group in gallery.groups()]


def test_views_of_a_scene_are_a_group(scenes: tuple[tessera.Gallery, Path]) -> None:
    gallery, _ = scenes
    assert members(gallery) == [["scene0-0", "scene0-1", "scene0-2"], ["scene1-0", "scene1-1"]]
    first = gallery.groups(renew=False)[0]
    assert first.cover in first.images
    record = gallery.record(first.images[1].id)
    assert record is not None
    assert record.group_id == first.id


def test_another_run_compares_only_what_is_new(
    scenes: tuple[tessera.Gallery, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, folder = scenes
    before = gallery.groups()
    numbers = {record.path: group.id for group in before for record in group.images}
    view(2, 77).save(folder / "scene2-1.png")
    gallery.index(folder)
    asked: list[tuple[int, int]] = []
    verify_pairs = PairReader.verify_pairs

    def counted(self: PairReader, pairs: list[tuple[int, int]], config: object) -> object:
        asked.extend(pairs)
        return verify_pairs(self, pairs, config)  # type: ignore[arg-type]

    monkeypatch.setattr(PairReader, "verify_pairs", counted)
    after = gallery.groups()
    new = gallery.find(folder / "scene2-1.png")
    assert new is not None
    assert asked and all(new.id in pair for pair in asked)
    assert sorted(len(group.images) for group in after) == [2, 2, 3]
    again = {record.path: group.id for group in after for record in group.images}
    assert all(again[path] == number for path, number in numbers.items())


def test_others_write_while_pairs_are_compared(scenes: tuple[tessera.Gallery, Path]) -> None:
    gallery, folder = scenes
    view(3, 33).save(folder / "scene3-0.png")
    seen: list[int] = []

    def meanwhile(done: int, total: int) -> None:
        if not seen:
            with tessera.Gallery(gallery.path) as other:  # as another process would
                seen.append(other.index(folder).added)

    assert len(gallery.groups(progress=meanwhile)) == 2
    assert seen == [1]
    seen.clear()
    view(3, 34).save(folder / "scene3-1.png")
    gallery.duplicates(progress=meanwhile)
    assert seen == [1]


def test_what_was_compared_is_kept_until_it_can_be_written(scenes: tuple[tessera.Gallery, Path]) -> None:
    gallery, _ = scenes
    compared = ComparedPairs(gallery._store, "match")
    contents = sorted(str(record.content_hash) for record in gallery.images())
    with writer_lock(gallery.path):
        compared.add({(contents[0], contents[1]): 30.0})  # another writes now
        with pytest.raises(GalleryLockedError):
            compared.save()
    compared.add({(contents[0], contents[2]): 0.0})
    again = ComparedPairs(gallery._store, "match")
    assert again.known == {(contents[0], contents[1]): 30.0, (contents[0], contents[2]): 0.0}
    assert not again.lacks(contents[1], contents[0])


def test_who_compared_waits_for_another_writer(
    scenes: tuple[tessera.Gallery, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """`index` holds the gallery for hours; an hour of comparing must not end with an error at its last step."""
    gallery, _ = scenes
    with ThreadPoolExecutor(2) as pool:
        with writer_lock(gallery.path):
            finding = [pool.submit(gallery.groups), pool.submit(gallery.duplicates)]
            while sum("is being written by" in record.message for record in caplog.records) < 2:
                assert not any(one.done() for one in finding)
                time.sleep(0.05)
        assert [len(group.images) for group in finding[0].result()] == [3, 2]
        assert finding[1].result() == []


def test_groups_survive_a_move_and_another_model(scenes: tuple[tessera.Gallery, Path], other_bundle: Path) -> None:
    gallery, folder = scenes
    gallery.groups()
    folder.rename(folder.with_name("moved"))
    assert gallery.index(folder.with_name("moved")).moved == 6
    kept = [[Path(record.path).parent.name for record in group.images] for group in gallery.groups(renew=False)]
    assert kept == [["moved"] * 3, ["moved"] * 2]
    gallery.close()
    with tessera.Gallery(gallery.path, other_bundle) as other:
        other.index(rebuild=True)
        assert [len(group.images) for group in other.groups(renew=False)] == [3, 2]


def test_the_command(scenes: tuple[tessera.Gallery, Path]) -> None:
    from typer.testing import CliRunner

    from tessera.cli.main import app

    gallery, _ = scenes
    words = ["group", "-g", str(gallery.path), "--json"]
    found = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)["groups"]
    assert [len(group["images"]) for group in found] == [3, 2]
    assert found[0]["cover"] in found[0]["images"]
    shown = CliRunner().invoke(app, [*words, "--show"], catch_exceptions=False)
    assert json.loads(shown.stdout)["groups"] == found


def test_one_weak_match_joins_no_two_groups() -> None:
    groups = {(0, 1): 90.0, (2, 3): 80.0}
    assert join_components(4, {**groups, (1, 2): 20.0}, 16, 40) == [[0, 1], [2, 3]]
    assert join_components(4, {**groups, (1, 2): 45.0}, 16, 40) == [[0, 1, 2, 3]]
    assert join_components(4, {**groups, (1, 2): 20.0, (0, 3): 17.0}, 16, 40) == [[0, 1, 2, 3]]
    assert join_components(4, {**groups, (1, 2): 20.0, (0, 3): 15.0}, 16, 40) == [[0, 1], [2, 3]]
    assert join_components(5, {**groups, (1, 4): 20.0}, 16, 40) == [[0, 1, 4], [2, 3]]


def test_two_groups_need_a_quarter_of_all_pairs() -> None:
    chains = {(i, i + 1): 90.0 for i in (0, 1, 2, 3, 5, 6, 7, 8)}  # 0 to 4, and 5 to 9
    six = {(i, 5 + j): 60.0 for i in range(3) for j in range(2)}
    assert join_components(10, {**chains, **six}, 16, 40) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert len(join_components(10, {**chains, **six, (4, 9): 20.0}, 16, 40)) == 1  # 7 of 25


def test_an_image_needs_a_quarter_of_a_group() -> None:
    """What one brand prints on all it sells makes a group of each thing, and matches one photo of another."""
    group = {(0, i): 90.0 for i in (1, 2, 3, 4)} | {(1, i): 80.0 for i in (2, 3, 4)}
    assert join_components(6, {**group, (4, 5): 30.0}, 16, 40) == [[0, 1, 2, 3, 4], [5]]
    assert len(join_components(6, {**group, (4, 5): 30.0, (3, 5): 20.0}, 16, 40)) == 1


def test_a_large_group_counts_as_one_that_an_image_is_compared_with() -> None:
    everyone = {(i, j): 90.0 for i in range(60) for j in range(i + 1, 60)}
    assert len(join_components(61, {**everyone, **{(i, 60): 30.0 for i in range(4)}}, 16, 40)) == 2
    assert len(join_components(61, {**everyone, **{(i, 60): 30.0 for i in range(5)}}, 16, 40)) == 1


def test_pairs_of_one_picture_come_together() -> None:
    """A picture that is in use is read once: pairs of copies that lie in thirteen folders would read each anew."""
    count, kinds = 40, 13
    pairs = [(a * count + i, b * count + i) for a in range(kinds) for b in range(a + 1, kinds) for i in range(count)]
    ordered = order_pairs(pairs)
    assert sorted(ordered) == sorted(pairs)
    photos = [pair[0] % count for pair in ordered]
    assert sum(one != other for one, other in pairwise(photos)) == count - 1


def test_components() -> None:
    assert connected_components(5, [(0, 1), (3, 4), (1, 3)]) == [[0, 1, 3, 4], [2]]
