"""What the page offers beyond a search: a picture large, certainty, the places that agree, sharing, adding."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import httpx
import pytest

from tessera.gallery.gallery import Gallery
from tessera.serve.settings import Settings

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
EXAMPLES = Path(__file__).parents[2] / "examples"
TIN = EXAMPLES / "queries" / "cookie-box.jpg"


@pytest.fixture(scope="module")
def tins(tmp_path_factory, running):
    """A service on photographs of a few things, several views each; (address, its gallery)."""
    folder = tmp_path_factory.mktemp("tins")
    with Gallery(folder / "g.tessera", threads=1) as gallery:
        gallery.index(EXAMPLES / "photos" / "views" / "table", metadata={"folder": "table"})
    settings = Settings(folder / "g.tessera", threads=1, timeout_s=280, writer_key="pen")
    with running(settings) as address:
        yield address


@pytest.fixture
def page(browser, tins):
    context = browser.new_context(reduced_motion="reduce", viewport={"width": 1280, "height": 850})
    context.set_default_timeout(120_000)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(tins)
    page.wait_for_selector(".tile")
    yield page
    context.close()
    assert faults == []


def shown(page) -> list[str]:
    return page.locator(".tile").evaluate_all("tiles => tiles.map(tile => tile.dataset.name)")


def test_a_picture_opens_large_with_its_neighbours_and_what_is_known(page):
    names = shown(page)
    page.locator(".tile").nth(1).click()
    title, next_button = page.locator("#large-title"), page.locator("#large-next")
    playwright.expect(title).to_have_text(names[1])
    playwright.expect(page.locator("#large-facts")).to_contain_text("table")
    assert page.locator("#large-download").get_attribute("download") == names[1]
    next_button.click()
    playwright.expect(title).to_have_text(names[2])
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    playwright.expect(title).to_have_text(names[0])
    playwright.expect(page.locator("#large-previous")).to_be_disabled()
    playwright.expect(page.locator("#large-picture")).to_have_js_property("complete", True)
    fitted = page.locator("#large-picture").bounding_box()
    page.locator("#large-zoom").click()
    playwright.expect(page.locator("#large-zoom")).to_have_attribute("aria-pressed", "true")
    assert page.locator("#large-picture").bounding_box()["width"] >= fitted["width"]
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#large")).to_be_hidden()
    playwright.expect(page.locator(".tile").first).to_be_focused()


def certain_answer(ids: list[int], verified: int) -> dict[str, object]:
    image = {"name": "a.jpg", "width": 160, "height": 120, "metadata": {}}
    results = [
        {**image, "id": one, "rank": rank, "score": 0.5, "inliers": 40 if rank < verified else 0}
        for rank, one in enumerate(ids)
    ]
    return {"results": results, "timing_ms": {"embed": 1.0, "search": 1.0, "total": 2.0}, "note": ""}


DOUBT = "Nothing certain: no image of the collection surely shows this. These are the nearest."
NONE = "Nothing certain. No picture surely shows this; these are the most alike."


@pytest.mark.parametrize(
    ("verified", "certain", "sections"),
    [(2, True, ["Verified", "Less certain"]), (0, False, [NONE]), (1, False, [NONE])],
)
def test_hits_say_how_sure_they_are_once(page, verified, certain, sections):
    note = " ".join([*([] if certain else [DOUBT]), "Found by the query turned by 90 degrees."])
    answer = {**certain_answer([1, 2, 3], verified), "certain": certain, "note": note}
    page.route("**/api/search", lambda route: route.fulfill(json=answer))
    page.set_input_files("#file", TIN)
    playwright.expect(page.locator(".section")).to_have_text(sections)
    playwright.expect(page.locator("#summary")).to_have_text(
        "3 results in 2.0 ms. Found by the query turned by 90 degrees."
    )
    playwright.expect(page.locator(".tile")).to_have_count(3)
    page.locator(".tile").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # past a heading, where there are two
    playwright.expect(page.locator(".tile").nth(2)).to_be_focused()


def test_what_is_most_unlikely_is_folded_away_once_something_was_found(page):
    answer = {**certain_answer([1, 2, 3, 4], 1), "certain": True}
    for hit, probability in zip(answer["results"], (0.9, 0.3, 0.04, 0.03), strict=True):
        hit["probability"] = probability
    page.route("**/api/search", lambda route: route.fulfill(json=answer))
    page.set_input_files("#file", TIN)
    tiles, button = page.locator(".tile"), page.locator(".unfold button")
    playwright.expect(button).to_have_text("Show 2 more results below 10 %")
    playwright.expect(tiles.nth(1)).to_be_visible()
    playwright.expect(tiles.nth(2)).to_be_hidden()
    tiles.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # no step onto what is not shown
    playwright.expect(tiles.nth(1)).to_be_focused()
    button.click()
    playwright.expect(tiles.nth(2)).to_be_focused()
    playwright.expect(page.locator(".section")).to_have_text(["Verified", "Less certain", "Below 10 %"])


def test_the_reasons_begin_with_the_places_that_agree(page):
    page.set_input_files("#file", TIN)
    page.wait_for_selector(".tile .score")
    page.locator('.tile[data-name="cookie-box-2.jpg"]').click()
    page.wait_for_selector("#why-tokens button")
    playwright.expect(page.locator("#why-note")).to_contain_text(re.compile(r"Verified: \d\d+ places"))
    lines = page.locator(".lines line")
    assert lines.count() > 20
    query, other = (page.locator(side).bounding_box() for side in ("#why-query", "#why-other"))
    pair = page.locator("#why-pair").bounding_box()
    for line in lines.evaluate_all("all => all.map(one => ['x1', 'x2'].map(name => Number(one.getAttribute(name))))"):
        start, end = (pair["x"] + x for x in line)
        assert query["x"] <= start <= query["x"] + query["width"]
        assert other["x"] <= end <= other["x"] + other["width"]
    page.locator("#why-tokens button").first.hover()
    playwright.expect(page.locator(".lines")).to_be_hidden()  # a token's turn
    page.keyboard.press("Escape")
    page.locator(".unfold button").click()
    page.locator('.tile[data-name="books-1.jpg"]').click()
    playwright.expect(page.locator("#why-note")).to_contain_text("Not verified")
    playwright.expect(lines).to_have_count(0)


def test_a_result_opens_large_from_its_reasons_and_goes_back_to_them(page):
    page.set_input_files("#file", TIN)
    page.wait_for_selector(".tile .score")
    names = shown(page)
    page.locator(".tile").first.click()
    page.locator("#why-large").click()
    playwright.expect(page.locator("#large-title")).to_have_text(names[0])
    playwright.expect(page.locator("#large-facts")).to_contain_text("table")
    page.locator("#large-next").click()
    playwright.expect(page.locator("#large-title")).to_have_text(names[1])
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#large")).to_be_hidden()
    playwright.expect(page.locator("#why-large")).to_be_focused()
    page.locator("#why-large").click()
    page.locator("#large-search").click()
    playwright.expect(page.locator("#why")).to_be_hidden()
    playwright.expect(page.locator("#query-name")).to_have_text(names[0])


def test_an_upload_survives_a_reload_and_a_link_to_it_elsewhere_is_told(page, browser, tins):
    page.set_input_files("#file", TIN)
    page.wait_for_selector(".tile .score")
    before = shown(page)
    page.reload()
    page.wait_for_selector(".tile .score")
    assert shown(page) == before
    playwright.expect(page.locator("#query-name")).to_have_text(TIN.name)
    stranger = browser.new_context().new_page()
    stranger.goto(page.url)
    playwright.expect(stranger.locator("#notice")).to_contain_text("Choose it again")
    stranger.context.close()


def test_a_bad_box_in_a_link_is_said(page, tins):
    for box in ("5,5,9,9", "many", "0.5,0.5,0.2,0.2"):
        page.goto(f"{tins}/?image=1&box={box}")
        playwright.expect(page.locator("#notice")).to_contain_text("The box of this link")
        page.wait_for_selector(".tile .score")


def test_reasons_of_any_pair_by_a_link(page, tins):
    page.goto(f"{tins}/?image=1&k=1&why=3")
    playwright.expect(page.locator("#why-title")).to_have_text("Not among the results")
    page.wait_for_selector("#why-tokens button")
    page.goto(f"{tins}/?image=1&why=4000")
    playwright.expect(page.locator("#notice")).to_contain_text("no picture 4000")
    playwright.expect(page.locator("#why")).to_be_hidden()
    assert "why" not in page.url


def test_a_link_as_a_code(page, tins):
    page.locator("#share").click()
    playwright.expect(page.locator("#share-link")).to_have_value(f"{tins}/")
    playwright.expect(page.locator("#share-note")).to_contain_text("this machine only")
    drawn = httpx.get(f"{tins}/api/code", params={"text": "http://192.168.1.9:8642/?image=3"}, timeout=60)
    assert drawn.headers["content-type"] == "image/svg+xml"
    assert drawn.text.startswith("<svg xmlns=")
    assert httpx.get(f"{tins}/api/code", params={"text": "x" * 2000}, timeout=60).status_code == 422


def test_pictures_are_added_with_the_writers_key(page, tmp_path):
    count = page.locator(".tile").count()
    (tmp_path / "broken.jpg").write_bytes(b"nothing")
    pictures = [EXAMPLES / "queries" / "books.jpg", tmp_path / "broken.jpg"]
    page.set_input_files("#add-files", pictures)
    playwright.expect(page.locator("#ask-title")).to_contain_text("writer")
    page.fill("#ask-key", "half a k")
    page.locator("#ask-cancel").click()  # asked once, not for each picture
    playwright.expect(page.locator("#ask")).to_be_hidden()
    playwright.expect(page.locator("#notice")).to_be_hidden()
    page.set_input_files("#add-files", pictures)
    playwright.expect(page.locator("#ask-key")).to_have_value("")
    page.fill("#ask-key", "wrong")
    with page.expect_response(lambda response: response.status in (401, 403)):
        page.locator("#ask .primary").click()
    page.fill("#ask-key", "pen")
    page.locator("#ask .primary").click()
    playwright.expect(page.locator("#notice")).to_contain_text("1 of 2 added")
    playwright.expect(page.locator("#notice")).to_contain_text("broken.jpg")
    playwright.expect(page.locator("#notice")).not_to_have_class(re.compile("fine"))
    playwright.expect(page.locator(".tile")).to_have_count(count + 1)
    page.set_input_files("#add-files", [EXAMPLES / "queries" / "station.jpg"])
    playwright.expect(page.locator("#notice")).to_have_text("1 of 1 added.")
    playwright.expect(page.locator("#notice")).to_have_class(re.compile("fine"))  # no warning


def test_a_code_from_a_terminal_brings_its_key(browser, running, served_gallery):
    with running(Settings(served_gallery, key="open sesame", threads=1, timeout_s=280)) as address:
        page = browser.new_context().new_page()
        page.goto(f"{address}#key=open%20sesame")
        page.wait_for_selector(".tile", timeout=120_000)
        assert "key" not in page.url
        page.context.close()


def test_a_phone_offers_its_camera(browser, tins):
    phone = browser.new_context(viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True).new_page()
    phone.goto(tins)
    playwright.expect(phone.locator("#camera")).to_be_visible()
    assert phone.locator("#camera-file").get_attribute("capture") == "environment"
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    phone.context.close()


def test_the_page_of_the_api_needs_nothing_from_elsewhere(page, tins):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{tins}/docs#search_by_upload")
    playwright.expect(page.locator("#search_by_upload")).to_have_attribute("open", "")
    playwright.expect(page.locator("#search_by_upload")).to_contain_text("x0,y0,x1,y1")
    schema = httpx.get(f"{tins}/openapi.json", timeout=60).json()
    operations = sum(len(methods) for methods in schema["paths"].values())
    assert page.locator(".docs summary .method").count() == operations
    assert all(url.startswith(tins) for url in asked)
    assert json.dumps(schema).count("pip install") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_in_any_view(browser, tins, check_axe, scheme, width):
    context = browser.new_context(
        color_scheme=scheme, reduced_motion="reduce", viewport={"width": width, "height": 800}, has_touch=width < 500
    )
    context.set_default_timeout(120_000)
    page = context.new_page()

    def check(view: str) -> None:
        check_axe(page, view)

    page.goto(tins)
    page.wait_for_selector(".tile")
    check("gallery")
    page.locator(".tile").first.click()
    check("large")
    page.locator("#large-info").click()
    check("large, with its details or without")
    page.locator("#large-close").click()
    page.route("**/api/search", lambda route: route.fulfill(json=certain_answer([1, 2, 3], 1)))
    page.set_input_files("#file", TIN)
    page.wait_for_selector(".section")
    check("results")
    page.locator(".tile").first.click()
    page.wait_for_selector("#why-tokens button")
    check("why")
    page.locator("#why-close").click()
    page.locator("#share").click()
    check("share")
    page.locator("#share-close").click()
    page.keyboard.press("?")
    check("keys")
    page.locator("#keys-close").click()
    page.set_input_files("#add-files", [EXAMPLES / "queries" / "books.jpg"])
    page.wait_for_selector("#ask[open]")
    check("a key is asked for")
    page.goto(f"{tins}/?image=1&box=many")
    page.wait_for_selector("#notice:not([hidden])")
    page.wait_for_selector(".tile .score")
    check("a notice, and a box")
    page.goto(f"{tins}/?where=name~nothing")
    page.wait_for_selector("#welcome:not([hidden])")
    check("nothing to show")
    page.goto(f"{tins}/docs")
    page.wait_for_selector(".method")
    page.locator(".docs summary").first.click()
    check("docs")
    context.close()
