"""The page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path

import pytest

from tessera.refiners import EXPANSIONS, RERANKERS

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
    # Playwright's own event loop is still closing when pytest looks for what was left open.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

PATIENCE_MS = 120_000  # a busy machine may take its time: what is tested is what happens, not when


def open_page(browser, **options):
    context = browser.new_context(reduced_motion="reduce", **options)
    context.set_default_timeout(PATIENCE_MS)
    return context.new_page()


def settled(page) -> None:
    """The results of the last search are on the page; call it when the answer has come."""
    playwright.expect(page.locator("body")).not_to_have_class(re.compile("busy"))


@pytest.fixture
def page(browser, address):
    page = open_page(browser, viewport={"width": 1280, "height": 850})
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(address)
    page.wait_for_selector(".tile")
    yield page
    page.context.close()
    assert faults == []


def scores(page) -> list[float]:
    page.wait_for_selector(".tile .score")
    return [float(text.split()[0]) for text in page.locator(".tile .score").all_inner_texts()]


def upload(page, path: Path):
    """Choose a file; returns the service's answer."""
    with page.expect_response(lambda answer: "/api/search" in answer.url) as answer:
        page.set_input_files("#file", path)
    return answer.value.json()


def search_with(tile):
    """Open a picture of the gallery, and search with it; returns the service's answer."""
    page = tile.page
    tile.click()
    with page.expect_response(lambda answer: "/search" in answer.url) as answer:
        page.locator("#large-search").click()
    page.wait_for_selector(".tile .score")
    return answer.value.json()


def draw_box(page, x0, y0, x1, y1):
    frame = page.locator("#stage").bounding_box()
    at = lambda x, y: (frame["x"] + x * frame["width"], frame["y"] + y * frame["height"])  # noqa: E731
    page.mouse.move(*at(x0, y0))
    page.mouse.down()
    page.mouse.move(*at((x0 + x1) / 2, (y0 + y1) / 2))
    with page.expect_response(lambda answer: "search" in answer.url and answer.status == 200) as answer:
        page.mouse.move(*at(x1, y1))
        page.mouse.up()
    return answer.value.json()


def test_upload_box_results_and_back(page, scenes_dir):
    expect = playwright.expect
    expect(page.locator("#count")).to_have_text("12 pictures")
    found = upload(page, scenes_dir / "scene03.jpg")["results"]
    expect(page.locator(".tile").first).to_have_attribute("aria-label", re.compile(r"Result 1 of 12: scene03\.jpg"))
    whole = scores(page)
    assert len(whole) == 12
    assert whole == sorted(whole, reverse=True)
    boxed = draw_box(page, 0.1, 0.1, 0.6, 0.5)["results"]
    assert boxed[0]["score"] != found[0]["score"]
    expect(page.locator("#box")).to_be_visible()
    expect(page.locator("#box-hint")).to_have_text("Searching for what is in the box")
    with page.expect_response(lambda answer: "search" in answer.url):
        page.locator("#clear-box").click()
    expect(page.locator("#box")).to_be_hidden()
    page.go_back()  # a box that comes or goes is a step
    expect(page.locator("#box")).to_be_visible()
    page.go_back()
    expect(page.locator("#box")).to_be_hidden()
    expect(page.locator("#query")).to_be_visible()
    page.go_back()
    expect(page.locator("#query")).to_be_hidden()
    page.go_forward()
    expect(page.locator("#query")).to_be_visible()
    assert len(scores(page)) == 12


def test_a_pasted_and_a_dropped_picture_are_searched(page, scenes_dir):
    carry = """([kind, type, data]) => {
        const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0));
        const carried = new DataTransfer();
        carried.items.add(new File([bytes], "carried.jpg", { type: "image/jpeg" }));
        const event = kind === "paste" ? new ClipboardEvent("paste", { clipboardData: carried })
                                       : new DragEvent("drop", { dataTransfer: carried, cancelable: true });
        document.dispatchEvent(event);
    }"""
    for kind, name in (("paste", "scene04.jpg"), ("drop", "scene07.jpg")):
        data = base64.b64encode((scenes_dir / name).read_bytes()).decode()
        page.evaluate(carry, [kind, "image/jpeg", data])
        first = page.locator(".tile").first
        playwright.expect(first).to_have_attribute("aria-label", re.compile(f"Result 1 of 12: {re.escape(name)}"))


def test_the_box_moves_and_resizes_by_pointer(page, scenes_dir):
    upload(page, scenes_dir / "scene03.jpg")
    draw_box(page, 0.2, 0.2, 0.6, 0.6)

    def drag(x, y, by_x, by_y):
        before = page.locator("#box").bounding_box()
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + by_x, y + by_y, steps=2)
        with page.expect_request(lambda request: "search" in request.url):
            page.mouse.up()
        after = page.locator("#box").bounding_box()
        return [round(after[key] - before[key]) for key in ("x", "y", "width", "height")]

    frame = page.locator("#box").bounding_box()
    middle = frame["x"] + frame["width"] / 2, frame["y"] + frame["height"] / 2
    assert drag(*middle, 20, 10) == pytest.approx([20, 10, 0, 0], abs=2)
    frame = page.locator("#box").bounding_box()
    corner = frame["x"] + frame["width"] - 1, frame["y"] + frame["height"] - 1
    assert drag(*corner, 15, 12) == pytest.approx([0, 0, 15, 12], abs=2)


def test_all_of_it_by_keyboard(page):
    page.locator(".tile").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.className") == "tile"
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#large-search")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_selector(".tile .score")
    with page.expect_response(lambda answer: "box=" in answer.url):
        page.locator("#add-box").press("Enter")
    playwright.expect(page.locator("#box")).to_be_focused()
    before = page.locator("#box").bounding_box()
    page.keyboard.press("ArrowRight")
    assert page.locator("#box").bounding_box()["x"] > before["x"]
    page.keyboard.press("Shift+ArrowDown")
    assert page.locator("#box").bounding_box()["height"] > before["height"]
    with page.expect_response(lambda answer: "search" in answer.url and "box=" not in answer.url):
        page.keyboard.press("Delete")
    settled(page)
    playwright.expect(page.locator("#box")).to_be_hidden()
    page.locator(".unfold button").press("Enter")  # the others are hardly alike
    page.locator(".tile").nth(1).press("Enter")
    page.locator("#why-tokens button").first.press("Enter")
    playwright.expect(page.locator("#why-tokens button").first).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#why")).to_be_hidden()
    playwright.expect(page.locator(".tile").nth(1)).to_be_focused()


def test_a_gallery_picture_by_link_and_why(page, eventually):
    search_with(page.locator(".tile").nth(4))
    assert "image=" in page.url
    link = page.url
    first = page.locator(".tile").first.get_attribute("aria-label")
    page.goto(link)  # a link reproduces the search
    page.wait_for_selector(".tile .score")
    assert page.locator(".tile").first.get_attribute("aria-label") == first
    page.locator(".tile").nth(1).focus()
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#why")).to_be_visible()
    page.wait_for_selector("#why-tokens button")
    assert page.locator("#why-tokens button").count() == 4
    added = [float(text.replace("−", "-")) for text in page.locator("#why-tokens .added").all_inner_texts()]
    assert len(added) == 4  # the constant is shared out among the tokens
    similarity = float(re.search(r"Similarity ([\d.]+)", page.locator("#why-sum").inner_text()).group(1))
    assert sum(added) == pytest.approx(similarity, abs=0.0035)  # each is rounded
    token = page.locator("#why-tokens button").first
    token.hover()
    playwright.expect(token).to_have_class("lit")
    playwright.expect(token).to_have_attribute("aria-pressed", "false")
    playwright.expect(page.locator("#why-query canvas.on")).to_have_count(1)
    playwright.expect(page.locator("#why-other canvas.on")).to_have_count(1)
    painted = "canvas => canvas.width"  # 300 unless it was painted, with as many as the picture has
    eventually(lambda: page.locator("#why-query canvas.on").evaluate(painted) in (120, 160))
    token.click()
    page.mouse.move(1, 1)
    playwright.expect(token).to_have_class("lit")  # a click keeps it lit
    playwright.expect(token).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("ArrowRight")
    playwright.expect(page.locator("#why-title")).to_have_text("Result 3 of 12")
    reasons = page.url
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#why")).to_be_hidden()
    playwright.expect(page).to_have_url(link)  # as if it had never been open
    page.go_forward()
    playwright.expect(page.locator("#why-title")).to_have_text("Result 3 of 12")
    page.go_back()
    playwright.expect(page.locator("#why")).to_be_hidden()
    page.goto(reasons)  # and a link reproduces the reasons
    playwright.expect(page.locator("#why-title")).to_have_text("Result 3 of 12")
    page.locator("#why-close").click()
    playwright.expect(page).to_have_url(link)


def test_filters_are_applied_and_removed(page):
    page.select_option("#filter-key", "place")
    page.fill("#filter-value", "north")
    page.locator("#filters button").click()
    playwright.expect(page.locator(".tile")).to_have_count(5)
    assert "where=place" in page.url
    page.select_option("#filter-key", "year")
    page.fill("#filter-value", ">=2002")
    page.locator("#filters button").click()
    playwright.expect(page.locator(".tile")).to_have_count(3)
    page.locator("#chips button").first.click()
    page.locator("#chips button").click()
    playwright.expect(page.locator(".tile")).to_have_count(12)


def test_a_link_reproduces_a_box_and_the_options(page, address):
    page.goto(f"{address}/?image=4&box=0.1000,0.2000,0.7000,0.8000&k=50&where=place%3Dnorth")
    assert len(scores(page)) == 5
    playwright.expect(page.locator("#box")).to_be_visible()
    playwright.expect(page.locator("#k")).to_have_value("50")
    playwright.expect(page.locator("#chips")).to_contain_text("place: north")


def test_nonsense_in_a_link_is_left_out(page, address):
    page.goto(f"{address}/?image=4&box=5,5,9,9&expand=magic&rerank=&k=many")
    assert len(scores(page)) == 12
    playwright.expect(page.locator("#box")).to_be_hidden()
    playwright.expect(page.locator("#expand")).to_have_value("")
    page.goto(f"{address}/?image=4&box=0.5,-1,7,0.5")  # cut to the picture
    assert len(scores(page)) == 12
    stage, box = (page.locator(part).bounding_box() for part in ("#stage", "#box"))
    assert box["x"] + box["width"] == pytest.approx(stage["x"] + stage["width"], abs=2)
    assert box["width"] == pytest.approx(stage["width"] / 2, abs=2)


def test_a_box_on_a_large_gallery_picture_is_in_its_own_pixels(browser, running, tmp_path, token_bundle, scenes_dir):
    """The page shows a smaller copy; the service counts in the picture's pixels."""
    from PIL import Image

    from tessera.gallery.gallery import Gallery
    from tessera.serve.settings import Settings

    (tmp_path / "photos").mkdir()
    with Image.open(scenes_dir / "scene03.jpg") as scene:
        scene.resize((2400, 1800)).save(tmp_path / "photos" / "large.jpg")
    with Gallery(tmp_path / "g.tessera", model=str(token_bundle), threads=1) as gallery:
        gallery.index(tmp_path / "photos")
    with running(Settings(tmp_path / "g.tessera", threads=1, timeout_s=280)) as address:
        page = open_page(browser)
        with page.expect_request(lambda request: "search" in request.url) as asked:
            page.goto(f"{address}/?image=1&box=0.2500,0.5000,0.7500,1.0000")
        assert "box=600%2C900%2C1800%2C1800" in asked.value.url
        scores(page)
        page.context.close()


def test_an_upload_that_a_link_cannot_reach_is_told(page, address):
    page.goto(f"{address}/?upload=3")
    playwright.expect(page.locator("#notice")).to_contain_text("Choose it again")
    playwright.expect(page.locator(".tile")).to_have_count(12)


def test_a_picture_whose_file_has_gone_says_so(page, address):
    page.route("**/api/images/2/thumbnail", lambda route: route.fulfill(status=410, json={"title": "Gone"}))
    page.goto(address)
    playwright.expect(page.locator('.tile[data-id="2"]')).to_have_class("tile gone")


def test_errors_say_what_to_do(page, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no picture at all")
    upload(page, tmp_path / "broken.jpg")
    playwright.expect(page.locator("#notice")).to_contain_text("Convert it")
    playwright.expect(page.locator(".tile")).to_have_count(0)  # nothing that belongs to another query
    page.go_back()
    playwright.expect(page.locator(".tile")).to_have_count(12)
    playwright.expect(page.locator("#notice")).to_be_hidden()


def test_a_service_that_went_away_is_waited_for(page):
    search_with(page.locator(".tile").first)
    page.route("**/api/**", lambda route: route.abort())
    page.route("**/ready", lambda route: route.abort())
    page.select_option("#k", "50")
    playwright.expect(page.locator("#notice")).to_contain_text("does not answer")
    page.unroute("**/api/**")
    page.unroute("**/ready")
    playwright.expect(page.locator("#notice")).to_be_hidden()  # it goes on by itself
    playwright.expect(page.locator("#k")).to_have_value("50")


def test_a_gallery_that_is_loading_is_waited_for(browser, address):
    page = open_page(browser)
    problem = {"title": "Service Unavailable", "status": 503, "detail": "The gallery is being opened."}
    loading = re.compile(r"/(ready|api/.*)$")
    page.route(loading, lambda route: route.fulfill(status=503, json=problem))
    page.goto(address)
    playwright.expect(page.locator("#welcome progress")).to_be_visible()
    playwright.expect(page.locator("#welcome")).to_contain_text("being opened")
    playwright.expect(page.locator("#welcome .elapsed")).to_have_text(re.compile(r"^[1-9]\d* s$"))  # it goes on
    page.unroute(loading)
    page.wait_for_selector(".tile")
    page.context.close()


def test_two_hundred_hits_are_one_grid(page):
    image = {"name": "a.jpg", "width": 160, "height": 120, "metadata": {}, "inliers": None}
    results = [{**image, "id": 1 + rank % 12, "rank": rank, "score": 1 - rank / 400} for rank in range(200)]
    timing = {"embed": 1.0, "search": 1.0, "total": 2.0}
    page.route("**/search?**", lambda route: route.fulfill(json={"results": results, "timing_ms": timing, "note": ""}))
    search_with(page.locator(".tile").first)
    playwright.expect(page.locator(".tile .score")).to_have_count(200)
    assert page.locator(".tile img[loading=lazy]").count() == 200
    page.locator(".tile").nth(199).scroll_into_view_if_needed()
    playwright.expect(page.locator(".tile").nth(199)).to_be_in_viewport()
    playwright.expect(page.locator("#choose")).to_be_in_viewport()  # the bar stays


def test_a_screen_reader_finds_names_for_everything(page):
    assert 'heading "Search a gallery by picture" [level=1]' in page.locator("main").aria_snapshot()
    first = page.locator(".tile").first.get_attribute("aria-label")
    assert re.fullmatch(r"Open scene\d\d\.jpg, place: \w+, year: \d+", first)
    search_with(page.locator(".tile").first)
    label = page.locator(".tile").first.get_attribute("aria-label")
    assert re.fullmatch(r"Result 1 of 12: \S+, score 1\.00\. place: \w+\. year: \d+\. See why\.", label)
    page.locator("#add-box").click()
    settled(page)
    page.locator(".tile").nth(1).click()
    page.wait_for_selector("#why-tokens button")
    reasons = page.locator("#why").aria_snapshot()
    assert re.search(r'button "Token \d [+−][\d.]+ ', reasons)
    assert "1 2 3 4" not in reasons  # the numbers of the frames
    nameless = """() => [...document.querySelectorAll("button, input, select, img, a, dialog, [role=application]")]
        .filter((one) => !one.hidden && !["file", "hidden"].includes(one.type) && !(one.getAttribute("aria-label")
            || one.textContent.trim() || one.hasAttribute("alt") || one.labels?.length
            || one.getAttribute("aria-labelledby"))
    ).map((one) => one.outerHTML)"""
    assert page.evaluate(nameless) == []


def test_nothing_comes_from_elsewhere(browser, address):
    page = open_page(browser)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}/?image=3&why=3")
    page.wait_for_selector("#why-tokens button")
    assert len(asked) > 10
    assert all(url.startswith((address, "blob:", "data:")) for url in asked)
    page.context.close()


def test_a_phones_width(browser, address):
    page = open_page(browser, viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True)
    page.goto(f"{address}/?where=year%3E%3D2000&where=place%21%3Dnowhere-at-all-that-is-long&where=year%3C2100")
    page.wait_for_selector(".tile")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".bar").bounding_box()["height"] < 150  # filters in use take one line
    page.locator(".tile").first.tap()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    with page.expect_response(lambda answer: "/search" in answer.url):
        page.locator("#large-search").tap()
    page.wait_for_selector(".tile .score")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    frame = page.locator("#stage").bounding_box()
    page.wait_for_selector("#add-box")
    with page.expect_response(lambda answer: "box=" in answer.url):
        page.touchscreen.tap(frame["x"] + 40, frame["y"] + 40)  # a box around what was tapped, kept inside the picture
    x0, y0, x1, y1 = map(float, page.evaluate("new URLSearchParams(location.search).get('box')").split(","))
    assert (y0, y1, x1 - x0) == pytest.approx((0, 0.5, 0.5), abs=2e-4)
    settled(page)
    page.locator(".tile").nth(1).tap()
    page.locator("#why-tokens button").first.tap()
    playwright.expect(page.locator("#why-tokens button").first).to_have_attribute("aria-pressed", "true")
    playwright.expect(page.locator("#why-other canvas.on")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.context.close()


def test_an_empty_gallery_tells_what_to_do(browser, running, tmp_path, token_bundle, scenes_dir):
    from tessera.gallery.gallery import Gallery
    from tessera.serve.settings import Settings

    with Gallery(tmp_path / "empty.tessera", model=str(token_bundle), threads=1):
        pass
    with running(Settings(tmp_path / "empty.tessera", threads=1, timeout_s=280)) as address:
        page = open_page(browser)
        page.goto(address)
        playwright.expect(page.locator("#welcome")).to_contain_text("This gallery is empty")
        playwright.expect(page.locator("#welcome pre")).to_contain_text("tessera index")
        upload(page, scenes_dir / "scene03.jpg")
        playwright.expect(page.locator("#summary code")).to_have_text("tessera index")
        page.context.close()


def test_a_key_is_asked_for(browser, running, served_gallery):
    from tessera.serve.settings import Settings

    with running(Settings(served_gallery, key="open sesame", threads=1, timeout_s=280)) as address:
        page = open_page(browser)
        page.goto(address)
        page.fill("#ask-key", "wrong")
        page.locator("#ask .primary").click()
        playwright.expect(page.locator("#ask-note")).to_contain_text("not accepted")
        page.fill("#ask-key", "open sesame")
        page.locator("#ask .primary").click()
        page.wait_for_selector(".tile")
        page.context.close()


def test_the_page_offers_what_the_service_can_do(page, address):
    page.goto(f"{address}/?image=4")
    page.wait_for_selector(".tile .score")
    for stage, table in (("expand", EXPANSIONS), ("rerank", RERANKERS)):
        offered = page.locator(f"#{stage} option").evaluate_all("options => options.map(({ value }) => value)")
        assert offered == ["", *(name for name, entry in table.items() if not entry.missing)]


def test_what_is_not_installed_is_not_offered(page, address):
    def without_geometry(route):
        answer = route.fetch()
        known = [{**entry, "available": entry["name"] != "sp"} for entry in answer.json()["refiners"]]
        route.fulfill(response=answer, json={"refiners": known})

    page.route("**/api/refiners", without_geometry)
    page.goto(f"{address}/?image=4&rerank=sp")
    page.wait_for_selector(".tile .score")
    assert page.locator('#rerank option[value="sp"]').count() == 0
    playwright.expect(page.locator("#rerank")).to_have_value("")
