"""How it is run for others: the banner, a path prefix, the page of the API."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import httpx
import pytest

from tessera.errors import UsageError
from tessera.serve.banner import describe_addresses, machine_addresses, page_urls
from tessera.serve.settings import Settings


def test_on_loopback_the_banner_is_one_line():
    said = describe_addresses(Settings(Path("g")), 8642, for_a_terminal=True)
    assert said == "Tessera is at http://127.0.0.1:8642 (stop it with Ctrl-C)"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_for_all_addresses_the_banner_has_real_ones(host):
    settings = Settings(Path("g"), host=host, key="s e/cret")
    said = describe_addresses(settings, 9000, for_a_terminal=False)
    assert "0.0.0.0" not in said
    assert "[::]" not in said
    assert "secret" not in said
    assert all(f"{address}" in said for address in machine_addresses())
    assert not any(ipaddress.ip_address(address).is_unspecified for address in machine_addresses())


def test_a_terminal_gets_a_code_that_leads_to_the_page_with_its_key(monkeypatch):
    drawn = []
    monkeypatch.setattr("tessera.serve.banner.draw_code", lambda text: drawn.append(text) or "code")
    describe_addresses(Settings(Path("g"), host="192.168.1.9", key="a b#c"), 80, for_a_terminal=True)
    assert drawn == ["http://192.168.1.9:80#key=a%20b%23c"]


def test_the_code_is_drawn_in_half_blocks():
    said = describe_addresses(Settings(Path("g"), host="192.168.1.9", key="k" * 32), 80, for_a_terminal=True)
    code = said.splitlines()[2:]
    assert len(code) > 12
    assert len({len(line) for line in code}) <= 2
    assert set("".join(code)) & set("▀▄█")


def test_an_address_of_six_is_in_brackets_and_a_prefix_ends_in_a_slash():
    assert page_urls(Settings(Path("g"), host="fd00::7", key="k", root_path="/photos"), 80) == [
        "http://[fd00::7]:80/photos/"
    ]


@pytest.mark.parametrize("wrong", ["photos", "/photos/", "/", "/a b", "/a//b", "/a?b"])
def test_a_wrong_prefix_is_refused(wrong):
    with pytest.raises(UsageError, match="/photos"):
        Settings(Path("g"), root_path=wrong)


@pytest.mark.parametrize("sent", ["", "/photos"])
def test_behind_a_proxy_that_keeps_or_takes_off_the_prefix(served_gallery, running, sent):
    settings = Settings(served_gallery, threads=1, key="k", root_path="/photos", timeout_s=280)
    with running(settings) as address, httpx.Client(base_url=address + sent, timeout=120) as client:
        assert client.get("/").text.startswith("<!doctype html>")
        assert client.get("/style.css").status_code == 200
        assert client.get("/api/stats").status_code == 401
        answer = client.post("/api/session", json={"key": "k"})
        assert "Path=/photos" in answer.headers["set-cookie"]
        assert client.get("/api/stats", headers={"Authorization": "Bearer k"}).json()["images"] == 12
        assert client.get("/openapi.json").json()["servers"] == [{"url": "/photos"}]
        metrics = client.get("/metrics", headers={"Authorization": "Bearer k"}).text
        assert 'route="/api/stats"' in metrics


def test_the_log_has_the_level_that_was_asked_for(capfd):
    import logging

    from tessera.serve.observing.logs import log_to_stderr

    root, own = logging.getLogger(), logging.getLogger("tessera")
    before = (root.handlers, own.handlers, own.level)
    try:
        log_to_stderr("warning")
        logging.getLogger("tessera.serve.access").info("quiet")
        logging.getLogger("tessera.serve").warning("loud")
    finally:
        root.handlers, own.handlers = before[:2]
        own.setLevel(before[2])
        logging.captureWarnings(False)
    said = capfd.readouterr().err
    assert "loud" in said
    assert "quiet" not in said
