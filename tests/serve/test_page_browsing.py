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
def trip_gallery(tmp_path_factory, token_bundle):
    """Drawings with dates and places, three of them of one thing."""
    folder = tmp_path_factory.mktemp("trip")
    with (folder / "trip.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "date", "latitude", "longitude"])
        for name, seed, cut, date, place in TRIP:
            draw(seed, cut).save(folder / name)
            table.writerow([folder / name, date, *place])
    with Gallery(folder / "g.tessera", model=str(token_bundle), threads=1) as gallery:
        assert gallery.index(folder / "trip.csv").added == len(TRIP)
    return folder / "g.tessera"


@pytest.fixture(scope="module")
def trip(running, trip_gallery):
    """A service on them."""
    with running(Settings(trip_gallery, threads=1, timeout_s=280)) as address:
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
    expect(page.locator("#chips button")).to_have_text(f"near: {offered[0]} ✕")
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


def test_more_groups_come_when_they_are_asked_for(open_trip):
    """No gallery of a hundred groups: the service's answers are those of one."""
    page = open_trip()
    image = {"name": "a.png", "width": 320, "height": 320, "metadata": {}}
    groups = [{"id": n, "images": [{**image, "id": 1}, {**image, "id": 2, "name": f"{n}.png"}]} for n in range(120)]

    def answer(route):
        start, limit = (int(route.request.url.split(f"{key}=")[1].split("&")[0]) for key in ("start", "limit"))
        assert limit == 50
        route.fulfill(json={"groups": groups[start : start + limit], "total": 120, "images": 240})

    page.route("**/api/groups?**", answer)
    page.locator('[data-view="groups"]').click()
    sets, more = page.locator(".set"), page.locator("#more-sets")
    expect(sets).to_have_count(50)
    expect(page.locator("#summary")).to_have_text("240 pictures in 120 groups")
    more.click()
    expect(sets).to_have_count(100)
    more.click()
    expect(sets).to_have_count(120)
    expect(sets.last).to_contain_text("119.png")
    expect(more).to_be_hidden()
    page.locator('[data-view="groups"]').click()
    expect(sets).to_have_count(50)


def test_a_picture_by_keys(open_trip):
    page = open_trip("?sort=name")
    tiles = page.locator(".tile")
    expect(tiles).to_have_count(len(TRIP))
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.locator("#name")).to_be_focused()
    tiles.nth(1).focus()
    page.keyboard.press("x")
    expect(page.locator("#chosen-count")).to_have_text("1 chosen")
    page.keyboard.press("Escape")
    tiles.nth(1).press("Enter")
    picture, zoom = page.locator("#large-picture"), page.locator("#large-zoom")
    expect(page.locator("#large-place")).to_have_text(f"2 of {len(TRIP)}")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    expect(picture).to_be_visible()
    fitted = picture.bounding_box()
    page.keyboard.press("+")
    expect(zoom).to_have_attribute("aria-pressed", "true")
    assert picture.bounding_box()["width"] == pytest.approx(1.5 * fitted["width"], rel=0.01)
    page.keyboard.press("0")
    assert picture.bounding_box() == fitted
    frame = page.locator("#large-room").bounding_box()
    page.mouse.move(frame["x"] + frame["width"] / 2, frame["y"] + frame["height"] / 2)
    for _ in range(8):
        page.mouse.wheel(0, -400)
    expect(zoom).to_have_attribute("aria-pressed", "true")
    before = picture.bounding_box()
    page.locator("#large-room").focus()
    page.keyboard.press("Shift+ArrowRight")
    assert picture.bounding_box()["x"] < before["x"]
    page.keyboard.press("ArrowRight")
    expect(page.locator("#large-place")).to_have_text(f"3 of {len(TRIP)}")
    expect(zoom).to_have_attribute("aria-pressed", "false")
    shown = page.locator("#large-side").is_visible()
    page.keyboard.press("i")
    expect(page.locator("#large-side")).to_be_visible(visible=not shown)
    page.keyboard.press("Escape")
    expect(page.locator("#large")).to_be_hidden()
    while page.evaluate("Boolean(history.state?.large)"):  # going back takes a moment, and would stop the reload
        page.wait_for_timeout(20)
    page.reload()  # the wish is kept
    tiles.nth(1).click()
    expect(page.locator("#large-side")).to_be_visible(visible=not shown)


def test_the_back_button_leaves_a_large_picture(open_trip):
    page = open_trip("?sort=name")
    tiles, large = page.locator(".tile"), page.locator("#large")
    tiles.nth(1).click()
    expect(large).to_be_visible()
    page.go_back()
    expect(large).to_be_hidden()
    expect(tiles).to_have_count(len(TRIP))
    tiles.nth(2).click()
    steps = page.evaluate("history.length")
    page.locator("#large-close").click()
    expect(large).to_be_hidden()
    page.wait_for_function("!history.state?.large")  # no step is left behind
    tiles.nth(2).click()
    assert page.evaluate("history.length") == steps
    page.locator("#large-search").click()
    expect(page.locator(".tile .score").first).to_be_visible()
    page.go_back()
    expect(page.locator("#query")).to_be_hidden()
    expect(tiles).to_have_count(len(TRIP))
    expect(large).to_be_hidden()


def test_a_finger_leads_from_picture_to_picture_and_out(open_trip):
    page = open_trip("?sort=name", width=390, height=780, has_touch=True, is_mobile=True)
    expect(page.locator(".tile")).to_have_count(len(TRIP))
    page.locator(".tile").first.tap()
    place = page.locator("#large-place")
    expect(place).to_have_text(f"1 of {len(TRIP)}")
    touch = page.context.new_cdp_session(page)

    def swipe(dx: int, dy: int) -> None:
        x, y = 195, 400
        for kind, points in (
            ("touchStart", [(x, y)]),
            ("touchMove", [(x + dx // 2, y + dy // 2)]),
            ("touchMove", [(x + dx, y + dy)]),
            ("touchEnd", []),
        ):
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": a, "y": b} for a, b in points]})

    swipe(-150, 5)
    expect(place).to_have_text(f"2 of {len(TRIP)}")
    swipe(150, 5)
    expect(place).to_have_text(f"1 of {len(TRIP)}")
    swipe(0, 200)
    expect(page.locator("#large")).to_be_hidden()


def test_neighbours_go_on_beyond_what_was_loaded(open_trip):
    """No gallery of hundreds: the service's answers are those of one month with 300 pictures and one with 2."""
    page = open_trip("?view=groups")
    names = {"2021-05": [f"b{n}.png" for n in range(2)], "2021-04": [f"a{n}.png" for n in range(300)]}
    numbers = {name: n for n, name in enumerate(name for month in names.values() for name in month)}

    def months(route):
        found = [{"month": month, "images": len(some)} for month, some in names.items()]
        route.fulfill(json={"months": found, "undated": 0})

    def images(route):
        asked = dict(part.split("=") for part in route.request.url.split("?")[1].split("&"))
        some = names[asked["month"]]
        after = [numbers[name] + 1 for name in some].index(int(asked["after"])) + 1 if asked["after"] != "0" else 0
        part = some[after : after + int(asked["limit"])]
        image = {"width": 320, "height": 320, "metadata": {"date": f"{asked['month']}-01"}}
        listed = [{**image, "id": numbers[name] + 1, "name": name} for name in part]
        more = listed[-1]["id"] if after + len(part) < len(some) else None
        route.fulfill(json={"images": listed, "total": len(numbers), "next": more})

    page.route("**/api/months**", months)
    page.route("**/api/images?**", images)
    page.goto(page.url.replace("?view=groups", "?sort=newest"))
    page.locator('.tile[data-name="b1.png"]').click()
    title = page.locator("#large-title")
    for n in range(150):
        page.keyboard.press("ArrowRight")
        expect(title).to_have_text(f"a{n}.png")


def test_a_large_picture_shows_the_others_of_its_group(open_trip, trip_gallery):
    page = open_trip("?view=groups")
    page.locator("#find").click()
    expect(page.locator(".set").first).to_be_visible()
    with Gallery(trip_gallery) as gallery:
        names = [Path(record.path).name for record in gallery.groups(renew=False)[0].images]
    page.goto(page.url.replace("?view=groups", "?sort=name"))
    page.locator(f'.tile[data-name="{names[0]}"]').click()
    others = page.locator("#large-others button")
    expect(others).to_have_count(len(names) - 1)
    others.first.click()
    expect(page.locator("#large-title")).to_have_text(names[1])
    page.locator("#large-close").click()
    page.locator('.tile[data-name="bridge.png"]').click()
    expect(page.locator("#large-title")).to_have_text("bridge.png")
    expect(page.locator("#large-same")).to_be_hidden()


def test_a_link_to_what_is_not_there_shows_the_gallery(open_trip):
    page = open_trip("?image=4000")
    expect(page.locator("#notice")).to_contain_text("no picture 4000")
    expect(page.locator(".tile")).to_have_count(len(TRIP))
    expect(page.locator("#query")).to_be_hidden()
    assert "4000" not in page.url


def test_filters_are_folded_away_on_a_phone(open_trip):
    page = open_trip(width=390, height=780, has_touch=True, is_mobile=True)
    expect(page.locator(".tile")).to_have_count(len(TRIP))
    expect(page.locator("#filters")).to_be_hidden()
    page.locator("#filter-toggle").tap()
    page.select_option("#filter-key", "date")
    page.fill("#filter-value", ">=2022")
    page.locator("#filters button").tap()
    expect(page.locator("#chips button")).to_have_text("date from 2022 ✕")
    expect(page.locator(".tile")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_who_may_not_sort_is_offered_no_sorting(browser, running, trip_gallery):
    with Gallery(trip_gallery) as gallery:
        assert gallery.groups()
    for writer_key, count in ((None, 0), ("pen", 1)):
        settings = Settings(trip_gallery, key="open sesame", writer_key=writer_key, threads=1, timeout_s=280)
        with running(settings) as address:
            page = browser.new_context().new_page()
            page.set_default_timeout(120_000)
            page.goto(f"{address}/?view=groups#key=open%20sesame")
            expect(page.locator(".set").first).to_be_visible()
            expect(page.locator("#find:visible")).to_have_count(count)
            buttons = page.locator(".set").get_by_role("button", name="Not this")
            expect(buttons).to_have_count(count * page.locator(".set figcaption").count())
            page.context.close()
