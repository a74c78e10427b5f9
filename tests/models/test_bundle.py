from __future__ import annotations

import json

import pytest

from tessera.errors import ModelError
from tessera.models.bundle import Bundle, ModelCard


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
        Bundle.open(tmp_path / "b").verify()


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
