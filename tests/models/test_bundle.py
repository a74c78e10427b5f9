from __future__ import annotations

import json
import shutil

import pytest

from tessera.errors import BundleDamagedError, ModelError
from tessera.models import bundle as bundle_module
from tessera.models.bundle import PACKAGED_DIR, Bundle, ModelCard


def make_bundle(folder):
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"graph")
    return Bundle.seal(folder, ModelCard(name="b", kind="global", architecture={"model": "gem"}, dim=8))


def test_a_sealed_bundle_opens_and_verifies(tmp_path):
    sealed = make_bundle(tmp_path / "b")
    opened = Bundle.open(tmp_path / "b")
    assert opened.card == sealed.card
    assert len(opened.card.fingerprint) == 16
    opened.verify()


def test_changed_weights_are_noticed(tmp_path):
    make_bundle(tmp_path / "b")
    (tmp_path / "b" / "model.onnx").write_bytes(b"another graph")
    with pytest.raises(ModelError, match="changed or damaged"):
        Bundle.open(tmp_path / "b")


def test_one_flipped_bit_in_any_file_is_noticed_when_a_bundle_is_opened(tmp_path):
    for name in ("model.onnx", "weights.safetensors", "places.onnx"):
        folder = shutil.copytree(PACKAGED_DIR / "lite", tmp_path / name)
        Bundle.open(folder)
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
        with pytest.raises(BundleDamagedError, match="changed or damaged"):
            Bundle.open(folder)
    (folder / "model.onnx").unlink()
    with pytest.raises(BundleDamagedError, match="incomplete"):
        Bundle.open(folder)


def test_a_bundle_is_hashed_once_a_process(tmp_path, monkeypatch):
    make_bundle(tmp_path / "b")
    Bundle.open(tmp_path / "b")
    monkeypatch.setattr(bundle_module, "hash_file", lambda path: pytest.fail("hashed again"))
    assert Bundle.open(tmp_path / "b").card.name == "b"


@pytest.mark.parametrize(("name", "said"), [("lit", "is not known"), ("no/such/folder", "no bundle at no/such/folder")])
def test_an_unknown_bundle_says_what_there_is(name, said):
    with pytest.raises(ModelError, match=f"{said}.*lite"):
        Bundle.open(name)


def test_a_folder_without_a_card_and_a_damaged_card_are_refused(tmp_path):
    with pytest.raises(ModelError, match=r"no model\.json"):
        Bundle.open(tmp_path)
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        Bundle.open(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps({"name": "x", "knd": "global"}))
    with pytest.raises(ModelError, match="Did you mean 'kind'"):
        Bundle.open(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"dim": 0},
        {"dim": 10**12},
        {"stride": 0},
        {"num_tokens": -1},
        {"preprocessing": {"std": [0.2, 0.0, 0.2]}},
        {"preprocessing": {"std": [0.2, float("nan"), 0.2]}},
        {"preprocessing": {"mean": [0.2]}},
        {"preprocessing": {"size": 10**9}},
        {"preprocessing": {"scales": []}},
        {"preprocessing": {"scales": [1e9]}},
    ],
)
def test_numbers_that_no_network_has_are_refused(tmp_path, change):
    make_bundle(tmp_path / "b")
    card = json.loads((tmp_path / "b" / "model.json").read_text())
    card["preprocessing"] |= change.get("preprocessing", {})
    card |= {key: value for key, value in change.items() if key != "preprocessing"}
    (tmp_path / "b" / "model.json").write_text(json.dumps(card))
    with pytest.raises(ModelError, match="cannot be meant"):
        Bundle.open(tmp_path / "b")
