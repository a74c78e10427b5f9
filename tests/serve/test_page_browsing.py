"""Looking through a gallery in a real browser: the timeline, places, groups, and several pictures at once."""

from __future__ import annotations

import csv
import io
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tessera.gallery.gallery import Gallery
from tessera.serve.settings import Settings

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
expect = playwright.expect
ROME, VIENNA = ("41.89", "12.49"), ("48.2", "16.37")
# Name, which drawing, how much of its left is cut off, date, place.
TRIP = [
    ("tower-1.png", 1, 0, "2019-06-02", ROME),
    ("tower-2.png", 1, 24, "2019-06-03", ROME),
    ("tower-3.png", 1, 48, "2021-03-04", ROME),
    ("bridge.png", 2, 0, "2021-03-04", VIENNA),
    ("gate.png", 3, 0, "2022-01-01", ("", "")),
    ("door.png", 4, 0, "2022-02-01", ("", "")),
    ("dome.png", 5, 0, "", ("", "")),
]


def draw(seed: int, cut: int) -> Image.Image:
    """Blocks of colour that no other seed has: local features find their corners."""
    blocks = np.random.default_rng(seed).integers(0, 255, (20, 20, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((320, 320), 0).crop((cut, 0, 320, 320 - cut))


@pytest.fixture(scope="module")
def trip(tmp_path_factory, running, token_bundle):
    """A service on drawings with dates and places, three of them of one thing."""
    folder = tmp_path_factory.mktemp("trip")
    with (folder / "trip.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "date", "latitude", "longitude"])
        for name, seed, cut, date, place in TRIP:
            draw(seed, cut).save(folder / name)
            table.writerow([folder / name, date, *place])
    with Gallery(folder / "g.tessera", model=str(token_bundle), threads=1) as gallery:
        assert gallery.index(folder / "trip.csv").added == len(TRIP)
    with running(Settings(folder / "g.tessera", threads=1, timeout_s=280)) as address:
        yield address


@pytest.fixture
def open_trip(browser, trip):
    """Open the page: `open_trip("?view=groups", width=390)`. What failed in it fails the test."""
    contexts, faults = [], []

    def open_page(path: str = "", width: int = 1280, height: int = 850, **options):
        contexts.append(
            browser.new_context(reduced_motion="reduce", viewport={"width": width, "height": height}, **options)
        )
        contexts[-1].set_default_timeout(120_000)
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{trip}/{path}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def test_the_timeline_leads_to_any_month(open_trip):
    page = open_trip(width=700, height=420)
    rail, months = page.locator("#rail"), page.locator(".month .section")
    expect(months).to_have_text(
        ["February 2022 1", "January 2022 1", "March 2021 2", "June 2019 2", "Without a date 1"]
    )
    expect(page.locator(".tile").first).to_have_attribute("data-name", "door.png")
    expect(page.locator("#rail-years .year").first).to_have_text("2022")
    expect(rail).to_have_attribute("aria-valuetext", "February 2022, 1 picture")
    rail.focus()
    page.keyboard.press("End")
    expect(rail).to_have_attribute("aria-valuetext", "Without a date, 1 picture")
    expect(page.locator('.tile[data-name="dome.png"]')).to_be_in_viewport()
    page.keyboard.press("ArrowUp")
    expect(rail).to_have_attribute("aria-valuetext", "June 2019, 2 pictures")
    expect(page.locator('.tile[data-name="tower-1.png"]')).to_be_in_viewport()
    frame = rail.bounding_box()
    page.mouse.click(frame["x"] + frame["width"] / 2, frame["y"] + 2)
    expect(page.locator('.tile[data-name="door.png"]')).to_be_in_viewport()
    page.locator('.tile[data-name="gate.png"]').click()  # its neighbours are in other months
    page.locator("#large-next").click()
    expect(page.locator("#large-title")).to_have_text("tower-3.png")
    expect(page.locator("#large-facts")).to_contain_text("41.89, 12.49")
    page.keyboard.press("Escape")
    page.select_option("#sort", "name")
    expect(rail).to_be_hidden()
    expect(page.locator(".tile").first).to_have_attribute("data-name", "bridge.png")


def test_photos_near_a_place(open_trip):
    page = open_trip()
    expect(page.locator(".tile")).to_have_count(len(TRIP))
    page.select_option("#filter-key", "near")
    offered = page.locator("#filter-values option").evaluate_all("all => all.map(({ value }) => value)")
    assert offered == ["41.890,12.490,2km", "48.200,16.370,2km"]
    page.fill("#filter-value", offered[0])
    page.locator("#filter-value").press("Enter")
    expect(page.locator(".tile")).to_have_count(3)
    names = page.locator(".tile").evaluate_all("all => all.map(({ dataset }) => dataset.name)")
    assert sorted(names) == ["tower-1.png", "tower-2.png", "tower-3.png"]
    expect(page.locator("#chips button")).to_have_text(f"near={offered[0]} ✕")
    page.reload()  # it is in the address
    expect(page.locator(".tile")).to_have_count(3)
    page.locator("#chips button").click()
    expect(page.locator(".tile")).to_have_count(len(TRIP))


def test_several_pictures_come_as_a_zip_or_a_list(open_trip):
    page = open_trip("?sort=name")
    tiles, count = page.locator(".tile"), page.locator("#chosen-count")
    expect(tiles).to_have_count(len(TRIP))
    page.locator("#select").click()
    expect(page.get_by_role("button", name="as a zip")).to_be_disabled()
    tiles.nth(1).click()
    tiles.nth(3).click(modifiers=["Shift"])
    expect(count).to_have_text("3 chosen")
    tiles.nth(2).click()
    expect(count).to_have_text("2 chosen")
    expect(tiles.nth(1)).to_have_attribute("aria-pressed", "true")
    chosen = sorted(tiles.nth(at).get_attribute("data-name") for at in (1, 3))
    with page.expect_download() as download:
        page.get_by_role("button", name="as a zip").click()
    with zipfile.ZipFile(download.value.path()) as packed:
        assert sorted(packed.namelist()) == chosen
    with page.expect_download() as download:
        page.get_by_role("button", name="a list").click()
    rows = csv.DictReader(io.StringIO(download.value.path().read_text()))
    assert sorted(Path(row["path"]).name for row in rows) == chosen
    page.keyboard.press("Escape")
    expect(page.locator("#chosen")).to_be_hidden()
    expect(tiles.nth(1)).not_to_have_attribute("aria-pressed", "true")
    tiles.nth(0).hover()
    tiles.nth(0).locator(".check").click()  # the corner of a picture begins it, too
    expect(count).to_have_text("1 chosen")
    expect(page.locator("#large")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_while_looking_through(open_trip, check_axe, scheme, width):
    page = open_trip(width=width, height=800, color_scheme=scheme, has_touch=width < 500)
    expect(page.locator(".tile")).to_have_count(len(TRIP))
    check_axe(page, "timeline")
    page.locator("#select").click()
    page.locator(".tile").first.click()
    check_axe(page, "choosing")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for view in ("duplicates", "groups"):
        page.locator(f'[data-view="{view}"]').click()
        page.locator("#find").click()
        expect(page.locator(".set").first).to_be_visible()
        check_axe(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_group_is_found_and_a_picture_leaves_it(open_trip):
    page = open_trip("?view=groups")
    page.locator("#find").click()
    group = page.locator(".set", has_text="tower-1.png")
    expect(group.locator("figcaption")).to_have_count(3)
    expect(page.locator("#summary")).to_have_text("3 pictures in 1 group")
    group.get_by_role("button", name="Not this: tower-2.png").click()
    expect(group.locator("figcaption")).to_have_count(2)
    page.reload()
    expect(page.locator(".set figcaption")).to_have_count(2)
    page.locator("#find").click()  # and it does not come back
    expect(page.locator("#find")).to_be_enabled()
    expect(page.locator("#summary")).to_have_text("2 pictures in 1 group")
    page.locator(".pick").first.click()
    expect(page.locator("#large-title")).to_contain_text("tower-")
