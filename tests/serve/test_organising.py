"""Groups, copies, order and files of a gallery: over HTTP, and on the page."""

from __future__ import annotations

import csv
import io
import re
import shutil
import zipfile

import httpx
import numpy as np
import pytest
from PIL import Image

from tessera.gallery.gallery import Gallery
from tessera.serve.settings import Settings

PATIENCE_MS = 120_000


def draw(seed: int, side: int = 320) -> Image.Image:
    """Blocks of colour that no other seed has: local features find their corners."""
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 255, (20, 20, 3), dtype=np.uint8)).resize((side, side), 0)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, running, token_bundle):
    """A service on five drawn pictures: one has an exact and a smaller copy; (address, folder)."""
    folder = tmp_path_factory.mktemp("drawn") / "photos"
    for name, seed, date in (
        ("rome/tower.png", 1, "2019:06:02"),
        ("rome/bridge.png", 2, "2021:03:04"),
        ("gate.png", 3, ""),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        if date:
            exif[0x8769] = {0x9003: f"{date} 10:00:00"}
        draw(seed).save(folder / name, exif=exif)
    shutil.copy(folder / "rome/tower.png", folder / "tower-again.png")
    draw(1).resize((200, 200), Image.Resampling.LANCZOS).save(folder / "tower-small.jpg", quality=90)
    path = folder.parent / "g.tessera"
    with Gallery(path, model=str(token_bundle), threads=1) as gallery:
        assert gallery.index(folder).added == 5
    with running(Settings(path, threads=1, timeout_s=280)) as address:
        yield address, folder


@pytest.fixture
def client(drawn):
    with httpx.Client(base_url=drawn[0], timeout=280) as session:
        yield session


def find(client: httpx.Client, kind: str, eventually) -> dict:
    """Find groups or copies, wait until that is done by the service's own word, and give them."""
    assert client.post(f"/api/{kind}/find").status_code == 202
    eventually(lambda: client.get("/api/organising").json()["finding"] is None)
    assert client.get("/api/organising").json()["failure"] == ""
    return client.get(f"/api/{kind}").json()


def names(client: httpx.Client, **params) -> list[str]:
    return [image["name"] for image in client.get("/api/images", params=params).json()["images"]]


def test_order_names_folders_and_months(client):
    newest, oldest = names(client, sort="newest"), names(client, sort="oldest")
    assert newest[0] == "bridge.png"
    assert oldest[-1] not in ("bridge.png", "tower.png", "tower-again.png")  # without a date: last
    by_name = names(client, sort="name")
    assert by_name == sorted(by_name)
    paged, after = [], 0
    while after is not None:
        page = client.get("/api/images", params={"sort": "newest", "limit": 2, "after": after}).json()
        paged += [image["name"] for image in page["images"]]
        after = page["next"]
    assert paged == newest
    assert sorted(names(client, where="name~TOWER")) == ["tower-again.png", "tower-small.jpg", "tower.png"]
    assert sorted(names(client, where="folder=rome")) == ["bridge.png", "tower.png"]
    assert client.get("/api/facets").json()["counts"]["folder"] == {"rome": 2}
    months = client.get("/api/months").json()
    assert [entry["month"] for entry in months["months"]] == ["2021-03", "2019-06"]
    assert months["undated"] == 2
    assert sorted(names(client, sort="oldest", month="2019-06")) == ["tower-again.png", "tower.png"]
    assert sorted(names(client, month="undated")) == ["gate.png", "tower-small.jpg"]
    assert client.get("/api/images", params={"month": "june"}).status_code == 422


def test_the_group_of_a_picture(client, eventually, check_problem):
    ids = {image["name"]: image["id"] for image in client.get("/api/images").json()["images"]}
    found = find(client, "groups", eventually)["groups"][0]
    of_one = client.get(f"/api/images/{found['images'][-1]['id']}/group").json()
    assert of_one == found
    assert client.get(f"/api/images/{ids['gate.png']}/group").json() == {"id": None, "images": []}
    check_problem(client.get("/api/images/4000/group"), 404)


def test_files_come_as_they_are_one_or_many(client, drawn, check_problem):
    ids = {image["name"]: image["id"] for image in client.get("/api/images").json()["images"]}
    content = (drawn[1] / "gate.png").read_bytes()
    assert client.get(f"/api/images/{ids['gate.png']}/original").content == content
    answer = client.post("/api/archive", data={"ids": f"{ids['gate.png']},{ids['tower.png']}"})
    with zipfile.ZipFile(io.BytesIO(answer.content)) as packed:
        assert sorted(packed.namelist()) == ["gate.png", "tower.png"]
        assert packed.read("gate.png") == content
    check_problem(client.post("/api/archive", data={"ids": "1,x"}), 422)
    check_problem(client.post("/api/archive", data={"ids": "4000"}), 404)
    listed = client.post("/api/list", data={"ids": f"{ids['gate.png']},{ids['tower.png']}"})
    assert listed.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(listed.text)))
    assert [row["path"] for row in rows] == [str(drawn[1] / "gate.png"), str(drawn[1] / "rome" / "tower.png")]
    assert [row["date"] for row in rows] == ["", "2019-06-02T10:00:00"]
    check_problem(client.post("/api/list", data={"ids": "4000"}), 404)
    assert client.get(f"/api/images/{ids['gate.png']}/path").json()["path"] == str(drawn[1] / "gate.png")
    elsewhere = {"origin": "http://evil.example"}
    check_problem(client.post(f"/api/images/{ids['gate.png']}/reveal", headers=elsewhere), 403)
    check_problem(client.post("/api/groups/find", headers=elsewhere), 403)


def test_a_file_that_changed_is_not_given(running, tmp_path, token_bundle, check_problem):
    (tmp_path / "photos").mkdir()
    draw(5).save(tmp_path / "photos" / "a.png")
    with Gallery(tmp_path / "g", model=str(token_bundle), threads=1) as gallery:
        gallery.index(tmp_path / "photos")
    (tmp_path / "photos" / "a.png").write_bytes(b"something secret")
    with running(Settings(tmp_path / "g", threads=1, timeout_s=280, key="k")) as address:
        headers = {"authorization": "Bearer k"}
        check_problem(httpx.get(f"{address}/api/images/1/original", headers=headers, timeout=60), 410)
        check_problem(httpx.get(f"{address}/api/images/1/path", headers=headers, timeout=60), 403)
        listed = httpx.post(f"{address}/api/list", data={"ids": "1"}, headers=headers, timeout=60).text
        assert listed.splitlines() == ["id,name", "1,a.png"]  # no path: it is for this machine alone
        check_problem(httpx.post(f"{address}/api/groups/find", headers=headers, timeout=60), 403)


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here: apt-get install chromium")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("width", [1280, 390])
def test_copies_and_order_on_the_page(browser, drawn, client, eventually, width):
    expect = pytest.importorskip("playwright.sync_api").expect
    found = find(client, "duplicates", eventually)
    context = browser.new_context(reduced_motion="reduce", viewport={"width": width, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"{drawn[0]}/?view=duplicates")
    expect(page.locator("#find")).to_have_text("Find copies")
    expect(page.locator(".set")).to_have_count(found["total"])
    expect(page.locator("#summary")).to_contain_text(f"{found['copies']} copies")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator(".pick").first.click()
    expect(page.locator("#large-title")).to_have_text(found["groups"][0]["keep"]["name"])
    expect(page.locator("#large-facts")).to_contain_text(str(drawn[1]))
    if width > 500:
        page.locator("#large-path").click()
        expect(page.locator("#large-facts")).to_contain_text(found["groups"][0]["keep"]["name"])
    page.locator("#large-close").click()
    page.locator('[data-view="groups"]').click()
    expect(page.locator("#find")).to_have_text("Find groups")
    page.locator('[data-view=""]').click()
    expect(page.locator(".tile")).to_have_count(5)
    expect(page.locator(".tile").first).to_have_attribute("data-name", "bridge.png")  # most have a date: the newest
    page.select_option("#sort", "name")
    expect(page.locator(".tile").first).to_have_attribute("data-name", "bridge.png")
    assert "sort=name" in page.url
    page.select_option("#sort", "oldest")
    expect(page.locator(".tile").first).to_have_attribute("data-name", re.compile("^tower"))
    page.locator("#name").press_sequentially("gate")  # no Enter: names are searched while they are typed
    expect(page.locator(".tile")).to_have_count(1)
    page.go_back()  # the whole word is one step
    expect(page.locator(".tile")).to_have_count(5)
    page.fill("#name", "gate")
    page.locator("#name").press("Enter")
    expect(page.locator(".tile")).to_have_count(1)
    page.locator("#chips button").click()
    expect(page.locator(".tile")).to_have_count(5)
    expect(page.locator("#name")).to_have_value("")
    if width < 500:  # the timeline is there instead, where there is one
        expect(page.locator("#month")).to_be_hidden()
        page.select_option("#sort", "name")
    page.select_option("#month", "2019-06")
    expect(page.locator(".tile")).to_have_count(2)
    context.close()
    assert faults == []


def test_what_a_person_takes_apart_stays_apart(client, eventually):
    found = find(client, "duplicates", eventually)
    assert found["total"] == 1
    group = found["groups"][0]
    assert {copy["kind"] for copy in group["copies"]} >= {"exact"}
    ids = [group["keep"]["id"], *(copy["id"] for copy in group["copies"])]
    assert client.post("/api/duplicates/apart", json={"ids": ids}).status_code == 204
    assert client.get("/api/duplicates").json()["total"] == 0
    assert find(client, "duplicates", eventually)["total"] == 0
    find(client, "groups", eventually)
