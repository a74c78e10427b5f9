"""`tessera models get` against a server on loopback that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tessera.cli.main import app
from tessera.errors import ConfigError, DownloadError, UsageError
from tessera.models.backbones import build_shape
from tessera.models.bundle import Bundle
from tessera.models.onnx_export import load_network
from tessera.models.published.known import KNOWN, PUBLISHED, shape_facts
from tessera.models.shapes import SHAPES

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """files: by name. stated: other hashes than the files have. cut: bytes to leave out of every answer."""

    files: dict[str, bytes]
    stated: dict[str, str] = field(default_factory=dict)
    cut: int = 0
    gated: bool = False
    asked: list[str] = field(default_factory=list)

    def hash_of(self, name: str) -> str:
        return self.stated.get(name, hashlib.sha256(self.files[name]).hexdigest())

    def siblings(self) -> list[dict[str, Any]]:
        rows = []
        for name, content in self.files.items():
            row: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": "0"}
            if name.endswith(".safetensors"):
                row["lfs"] = {"sha256": self.hash_of(name), "size": len(content), "pointerSize": 100}
            rows.append(row)
        return rows


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, with_body: bool) -> None:
        self.hub.asked.append(self.path)
        if self.path.startswith("/api/models/"):
            repo = self.path.removeprefix("/api/models/").split("?")[0].split("/revision/")[0]
            body = json.dumps({"id": repo, "sha": COMMIT, "siblings": self.hub.siblings()}).encode()
            return self.reply(200, {"Content-Type": "application/json"}, body)
        match = re.fullmatch(r"/[^/]+/[^/]+/resolve/([0-9a-f]+)/(.+)", self.path.split("?")[0])
        if self.hub.gated:
            return self.reply(403, {"X-Error-Code": "GatedRepo"}, b"")
        if match is None or match[1] != COMMIT or match[2] not in self.hub.files:
            return self.reply(404, {"X-Error-Code": "EntryNotFound"}, b"")
        content = self.hub.files[match[2]]
        headers = {
            "ETag": f'"{self.hub.hash_of(match[2])}"',
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(content)),
        }
        body = content[: len(content) - self.hub.cut] if with_body else content
        return self.reply(200, headers, body, with_body)

    def reply(self, code: int, headers: dict[str, str], body: bytes, with_body: bool = True) -> None:
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@pytest.fixture
def hub(build_original: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    folder = build_original("dinov2").save_folder(tmp_path / "published")
    handler = type("Bound", (Handler,), {"hub": Hub({path.name: path.read_bytes() for path in folder.iterdir()})})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield handler.hub
    server.shutdown()
    server.server_close()


def get(*words: str) -> Any:
    return CliRunner().invoke(app, ["models", "get", *words], catch_exceptions=False)


def test_a_published_network_becomes_a_bundle(hub: Hub, build_original: Callable[[str], Any], tmp_path: Path) -> None:
    answer = get("dinov2-s14", "-o", "bundle", "--json")
    assert answer.exit_code == 0 and "facebook/dinov2-small" in answer.stderr and "Licence: Apache-2.0" in answer.stderr
    told = json.loads(answer.stdout)
    assert told["licence"] == "Apache-2.0" and told["commit"] == COMMIT
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.card.licence == "Apache-2.0" and bundle.card.provenance["origin"]["repo"] == "facebook/dinov2-small"
    images = torch.randn(1, 3, 42, 56)
    with torch.inference_mode():
        descriptor = load_network(bundle)(images)["descriptor"]
    torch.testing.assert_close(descriptor, build_original("dinov2").descriptor(images), rtol=0, atol=1e-5)
    assert not any("README" in path for path in hub.asked)  # no more than is needed


def test_a_wrong_hash_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.stated["model.safetensors"] = "0" * 64
    with pytest.raises(DownloadError, match=r"has the hash [0-9a-f]{16}\.\.\., and 0{16}\.\.\. the hub states"):
        get("dinov2-s14", "-o", "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_truncated_download_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.cut = 10
    with pytest.raises(DownloadError, match=r"Run the command again|run\s+the command again"):
        get("dinov2-s14", "-o", "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_licence_that_is_not_free_is_asked_about(hub: Hub) -> None:
    with pytest.raises(UsageError, match=r"licence of dinov3-s16 is not a free one\. Read it, and give --yes"):
        get("dinov3-s16")
    assert not any("/resolve/" in path for path in hub.asked)
    assert get("dinov3-s16", "--yes", "-o", "bundle").exit_code == 0  # the server gives its one model by any name


def test_a_model_that_must_be_asked_for_is_one_sentence(hub: Hub) -> None:
    hub.gated = True
    with pytest.raises(DownloadError, match="is given only to those who accepted its licence"):
        get("dinov3-s16", "--yes")


def test_a_hub_out_of_reach_is_one_sentence(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="could not be downloaded"):
        get("dinov2-s14")


def test_unknown_names_and_the_table(hub: Hub) -> None:
    with pytest.raises(ConfigError, match=r"published model 'dinov2-s' is not known\. Did you mean 'dinov2-s14'"):
        get("dinov2-s")
    rows = json.loads(get("--json").stdout)["published"]
    assert [row["name"] for row in rows] == list(KNOWN) and all(row["parameters"] > 1e6 for row in rows)
    assert hub.asked == []
    (small,) = (row for row in rows if row["name"] == "dinov2-s14")
    assert small["published"] == {"oxford_hard": 43.2, "knn": 79.0} and small["seconds"] > 0
    assert set(PUBLISHED) < set(KNOWN)  # no figure of a name that is not there; some have none
    assert re.search(r"dinov2-s14\s.*Oxford Hard 43\.2, k-NN 79\.0", get().stdout)


def test_the_tables_parameters_are_those_of_the_networks() -> None:
    for name in ("dinov2-s14", "dinov2-g14-reg", "clip-b32", "siglip-b16", "dinov3-splus16", "dinov3-convnext-t"):
        with torch.device("meta"):
            backbone = build_shape(SHAPES[name])
        counted = sum(parameter.numel() for parameter in backbone.parameters())
        assert SHAPES[name].parameters == counted and shape_facts(KNOWN[name])["parameters"] == counted
