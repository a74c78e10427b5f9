"""Command line, Python and HTTP are one search: the same query gives the same hits with the same scores."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, get_args

import httpx
import pytest
from PIL import Image
from typer.testing import CliRunner

from tessera.bench import planar_scenes as planar
from tessera.cli.main import app
from tessera.gallery.gallery import Gallery
from tessera.refiners import EXPANSIONS, RERANKERS
from tessera.serve.api.schemas import SearchOptions
from tessera.serve.settings import Settings

SIZE = (480, 360)  # well above the 128 px that the network sees: local features must come from the picture itself
BOX = (40.0, 30.0, 400.0, 300.0)
EVEN = "place=even"
BY = ("auto", "global", "local")
SHOWN = ("id", "score", "inliers", "probability", "verified")
Answer = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def surfaces(tmp_path_factory, token_bundle, running):  # type: ignore[no-untyped-def]
    """A gallery of six scenes, open in Python and served; and another view of the first of them."""
    folder = tmp_path_factory.mktemp("scenes")
    for seed in range(6):
        Image.fromarray(planar.paint_scene(seed, SIZE)).save(folder / f"scene{seed}.png")
    rows = [f"scene{seed}.png,{'odd' if seed % 2 else 'even'}" for seed in range(6)]
    (folder / "scenes.csv").write_text("\n".join(["path,place", *rows]) + "\n")
    query = tmp_path_factory.mktemp("query") / "view.png"
    Image.fromarray(planar.warp(planar.paint_scene(0, SIZE), planar.draw_homography(0, SIZE), 0)).save(query)
    path = tmp_path_factory.mktemp("gallery") / "g.tessera"
    with Gallery(path, model=str(token_bundle), threads=1) as gallery:
        gallery.index(folder / "scenes.csv", local="sift")
        with (
            running(Settings(path, threads=1, timeout_s=3600)) as address,  # so that every hit is compared
            httpx.Client(base_url=address, timeout=3600) as client,
        ):
            yield SimpleNamespace(gallery=gallery, path=path, client=client, query=query)


def ask_python(surfaces: Any, query: Any, **options: Any) -> Answer:
    return [tuple(getattr(hit, key) for key in SHOWN) for hit in surfaces.gallery.search(query, 5, **options)]


def written(options: dict[str, Any]) -> dict[str, str]:
    """Options as text; those that are not given are left out."""
    given = {name: value for name, value in options.items() if value is not None}
    return {name: ",".join(map(str, value)) if name == "box" else str(value) for name, value in given.items()}


def ask_command_line(surfaces: Any, **options: Any) -> Answer:
    words = [word for name, value in written(options).items() for word in (f"--{name.replace('_', '-')}", value)]
    done = CliRunner().invoke(
        app, ["search", str(surfaces.query), "-k", "5", "-g", str(surfaces.path), "--json", *words]
    )
    assert done.exit_code == 0, done.output
    return [tuple(hit.get(key) for key in SHOWN) for hit in json.loads(done.stdout)["results"]]


def ask_http(surfaces: Any, image_id: int | None = None, **options: Any) -> Answer:
    fields = {"k": "5", **written(options)}
    if image_id is None:
        with surfaces.query.open("rb") as file:
            answer = surfaces.client.post("/api/search", files={"file": ("view.png", file)}, data=fields)
    else:
        answer = surfaces.client.get(f"/api/images/{image_id}/search", params=fields)
    assert answer.status_code == 200, answer.text
    return [tuple(hit[key] for key in SHOWN) for hit in answer.json()["results"]]


def assert_same(found: Answer, expected: Answer) -> None:
    assert [(hit[0], hit[2], hit[4]) for hit in found] == [(hit[0], hit[2], hit[4]) for hit in expected]
    for number in (1, 3):
        assert [hit[number] for hit in found] == pytest.approx([hit[number] for hit in expected], abs=1e-6)


def combine() -> list[dict[str, Any]]:
    """Every way to search and every refiner, each with and without a box and a filter."""
    parts = [{"box": box, "where": where} for box in (None, BOX) for where in (None, EVEN)]
    refiners: list[dict[str, Any]] = [{"by": by} for by in BY]
    refiners += [{"by": "auto", "min_probability": 0.5}, *({"expand": name} for name in EXPANSIONS)]
    refiners += [{"rerank": name} for name in RERANKERS if name != "lightglue"]
    refiners += [{"expand": "aqe", "rerank": "sp"}, {"expand": "diffusion", "rerank": "global"}]
    joined = [{**refiner, **part} for refiner in refiners for part in parts]
    joined.append({"rerank": "lightglue", **parts[-1]})  # most of a second a pair: once, with the fewest candidates
    return joined


def test_nothing_that_the_table_has_is_left_out() -> None:
    asked = combine()
    assert {options["expand"] for options in asked if "expand" in options} == set(EXPANSIONS)
    assert {options["rerank"] for options in asked if "rerank" in options} == set(RERANKERS)
    assert {options["by"] for options in asked if "by" in options} == set(
        get_args(SearchOptions.model_fields["by"].annotation)
    )


@pytest.mark.parametrize("options", combine(), ids=lambda options: "-".join(str(value) for value in options.values()))
def test_every_surface_gives_the_same_answer(surfaces, options) -> None:  # type: ignore[no-untyped-def]
    refiner = RERANKERS[options["rerank"]] if "rerank" in options else None
    if refiner is not None and refiner.missing:
        pytest.skip(f"{refiner.name} needs what is not installed: {refiner.install}")
    expected = ask_python(surfaces, surfaces.query, **options)
    assert len(expected) == (3 if options["where"] else 5) or (expected and "min_probability" in options)
    assert (expected[0][3] is not None) == ("by" in options and options["by"] != "global")
    assert_same(ask_python(surfaces, surfaces.query.read_bytes(), **options), expected)
    assert_same(ask_command_line(surfaces, **options), expected)
    assert_same(ask_http(surfaces, **options), expected)
    if options.get("rerank") == "lightglue":
        return
    by_id = ask_python(surfaces, expected[0][0], **options)
    assert_same(ask_http(surfaces, expected[0][0], **options), by_id)


def test_local_features_are_those_of_the_picture_and_not_of_the_networks_copy(surfaces) -> None:  # type: ignore[no-untyped-def]
    inliers = ask_http(surfaces, rerank="sp")[0][2]
    small = Image.open(surfaces.query)
    small.thumbnail((128, 128))
    reduced = surfaces.gallery.search(small, 5, rerank="sp")[0].inliers
    assert inliers is not None and inliers > 2 * (reduced or 0) and inliers > 30
