"""Files that are not what they should be: a sentence each, that says what was found and what to do."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tessera.errors import CheckpointError, UsageError
from tessera.models.convert import convert_checkpoint, load_checkpoint

Build = Callable[[str], Any]


@pytest.fixture
def folder(build_original: Build, tmp_path: Path) -> Path:
    return build_original("dinov2").save_folder(tmp_path / "dinov2")


def change(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")


def test_missing_and_extra_keys_are_listed_in_the_files_own_names(folder: Path) -> None:
    change(folder, lambda state: state.pop("encoder.layer.1.attention.attention.key.bias"))
    change(folder, lambda state: state.update({"encoder.layer.1.surprise": torch.zeros(1)}))
    with pytest.raises(CheckpointError, match=r"looks like DINOv2 \(Hugging Face\) but does not match") as caught:
        load_checkpoint(folder)
    assert "Missing keys: encoder.layer.1.attention.attention.key.bias." in str(caught.value)
    assert "Extra keys: encoder.layer.1.surprise." in str(caught.value)


def test_a_misshapen_tensor_is_named(folder: Path) -> None:
    change(folder, lambda state: state.update({"layernorm.weight": torch.zeros(127)}))
    with pytest.raises(CheckpointError, match=r"layernorm.weight \(127,\) instead of \(128,\)"):
        load_checkpoint(folder)


def test_weights_that_are_not_finite_are_named(folder: Path) -> None:
    change(folder, lambda state: state["encoder.layer.0.mlp.fc1.weight"].fill_(torch.nan))
    with pytest.raises(CheckpointError, match=r"NaN or infinite weights: encoder.layer.0.mlp.fc1.weight"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("key", "value", "said"), [("patch_size", 16, "patch 16"), ("num_hidden_layers", 3, "depth 3")]
)
def test_a_configuration_of_another_network_is_refused(folder: Path, key: str, value: int, said: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(CheckpointError, match=rf"its config.json says {said}, its tensors have \d+"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("key", "shape", "said"),
    [
        (
            "embeddings.patch_embeddings.projection.weight",
            (128, 3, 14, 16),
            r"patches of 3 x 14 x 16; 3 x N x N is needed",
        ),
        (
            "embeddings.patch_embeddings.projection.weight",
            (128, 1, 14, 14),
            r"patches of 1 x 14 x 14; 3 x N x N is needed",
        ),
        ("embeddings.position_embeddings", (1, 8, 128), r"has 7 learnt positions, which are no square grid"),
    ],
)
def test_patches_and_grids_that_cannot_be_are_refused(
    folder: Path, key: str, shape: tuple[int, ...], said: str
) -> None:
    change(folder, lambda state: state.update({key: torch.zeros(shape)}))
    with pytest.raises(CheckpointError, match=said):
        load_checkpoint(folder)


def test_weights_of_another_patch_size_are_named_where_a_network_is_to_take_them(folder: Path) -> None:
    backbone = load_checkpoint(folder).backbone
    state = backbone.state_dict() | {"patch_embed.weight": torch.zeros(128, 3, 16, 16)}
    with pytest.raises(
        CheckpointError, match=r"patch_embed.weight: \(128, 3, 16, 16\) where \(128, 3, 14, 14\) is needed"
    ):
        backbone.load_weights(state, "a file")


def test_a_file_without_its_patches_projection_is_refused(folder: Path) -> None:
    change(folder, lambda state: state.pop("embeddings.patch_embeddings.projection.weight"))
    with pytest.raises(CheckpointError, match=r"is of an unknown kind: its keys \(embeddings\.cls_token"):
        load_checkpoint(folder)


def test_a_truncated_download_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="Get the file again from its source"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
        (b"<!DOCTYPE html>", "web page"),
    ],
)
def test_what_a_download_left_in_the_weights_place_is_told(folder: Path, content: bytes, said: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        load_checkpoint(folder)


def test_a_folder_in_shards_is_read_and_one_that_lacks_a_shard_is_refused(
    build_original: Build, tmp_path: Path
) -> None:
    original = build_original("dinov2")
    original.model.save_pretrained(tmp_path, max_shard_size="300KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    images = torch.randn(1, 3, 42, 56)
    with torch.inference_mode():
        answer = load_checkpoint(tmp_path)(images)["descriptor"]
    torch.testing.assert_close(answer, original.descriptor(images), rtol=0, atol=1e-5)
    shards[0].unlink()
    with pytest.raises(CheckpointError, match=f"lacks {shards[0].name}, which its index names"):
        load_checkpoint(tmp_path)


def test_an_index_may_not_point_outside_its_folder(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    index = {"weight_map": {"embeddings.cls_token": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"lacks \.\./elsewhere\.safetensors"):
        load_checkpoint(folder)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no weights: none of model\.safetensors"):
        load_checkpoint(tmp_path)


def test_options_of_one_kind_of_file_are_refused_for_another(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--whitening is for cirtorch's files"):
        convert_checkpoint(folder, tmp_path / "bundle", whitening="some/ss")


def test_heads_that_do_not_divide_the_channels_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="128 channels, which 3 heads do not divide"):
        convert_checkpoint(folder, tmp_path / "bundle", heads=3)


@pytest.mark.parametrize("kind", ["CLIPTextModel", "SiglipTextModel"])
def test_a_text_tower_alone_is_refused(kind: str, tmp_path: Path) -> None:
    import transformers

    config = getattr(transformers, f"{kind.removesuffix('Model')}Config")
    text = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"vocab_size": 30, "bos_token_id": 1, "eos_token_id": 2}
    getattr(transformers, kind)(config(**text)).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="is a text tower: it reads words, not images"):
        load_checkpoint(tmp_path)


def test_openclips_text_tower_alone_is_refused(tmp_path: Path) -> None:
    keys = ("token_embedding.weight", "positional_embedding", "transformer.resblocks.0.ln_1.weight", "ln_final.weight")
    torch.save({key: torch.zeros(4, 8) for key in keys}, tmp_path / "text.pt")
    with pytest.raises(CheckpointError, match="is a text tower: it reads words, not images"):
        load_checkpoint(tmp_path / "text.pt")


def test_a_naflex_network_is_refused(tmp_path: Path) -> None:
    import transformers

    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Siglip2VisionConfig(**shape, patch_size=16, num_patches=4)
    transformers.Siglip2VisionModel(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="is a NaFlex network, which takes patches and masks"):
        load_checkpoint(tmp_path)


def rewrite(source: Path, target: Path, change: Callable[[str, bytes], bytes], compression: int = 0) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return target


def test_a_program_gives_its_weights_and_nothing_of_it_is_run(build_original: Build, tmp_path: Path) -> None:
    """OpenAI gave CLIP as TorchScript archives."""
    path = build_original("clip").save_program(tmp_path)

    def swap(old: bytes, new: bytes) -> Callable[[str, bytes], bytes]:
        return lambda name, data: data.replace(old, new) if name.endswith("data.pkl") else data

    with pytest.raises(CheckpointError, match=r"it asks for posix\.system, and only tensors"):
        load_checkpoint(
            rewrite(path, tmp_path / "evil.pt", swap(b"torch._utils\n_rebuild_tensor_v2", b"posix\nsystem"))
        )
    with pytest.raises(CheckpointError, match="it is no file of weights, or a damaged one"):
        load_checkpoint(rewrite(path, tmp_path / "bomb.pt", lambda _, data: data, zipfile.ZIP_DEFLATED))
    cut = tmp_path / "cut.pt"
    cut.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(CheckpointError, match="it is truncated or damaged"):
        load_checkpoint(cut)
    with pytest.raises(CheckpointError, match="out of bounds"):
        load_checkpoint(rewrite(path, tmp_path / "short.pt", lambda name, data: data[:4] if "/data/" in name else data))


def test_a_program_of_another_kind_is_refused_like_any_file(tmp_path: Path) -> None:
    path = tmp_path / "linear.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(torch.nn.Linear(2, 2)).save(str(path))
    with pytest.raises(CheckpointError, match=r"is of an unknown kind: its keys \(weight, bias"):
        load_checkpoint(path)


def test_what_a_lone_file_cannot_tell_is_assumed_aloud_and_can_be_set(build_original: Build, tmp_path: Path) -> None:
    path = build_original("clip").save_original(tmp_path)
    assumed = convert_checkpoint(path, tmp_path / "bundle").card
    assert assumed.provenance["assumed"] == {"heads": 2, "activation": "gelu"}
    told = convert_checkpoint(path, tmp_path / "bundle", heads=4, activation="quick_gelu").card
    assert told.provenance["assumed"] == {}
    shape = told.architecture["config"]["shape"]
    assert (shape["heads"], shape["activation"]) == (4, "quick_gelu")
    with pytest.raises(CheckpointError, match="has the activation 'relu', which is not known"):
        convert_checkpoint(path, tmp_path / "bundle", activation="relu")


def test_openclips_settings_beside_its_file_are_obeyed(build_original: Build, tmp_path: Path) -> None:
    path = build_original("clip").save_original(tmp_path)
    settings = {
        "model_cfg": {"embed_dim": 24, "quick_gelu": True, "vision_cfg": {"width": 128, "head_width": 32}},
        "preprocess_cfg": {"mean": [0.4, 0.5, 0.6], "std": [0.1, 0.2, 0.3]},
    }
    (tmp_path / "open_clip_config.json").write_text(json.dumps(settings))
    card = convert_checkpoint(path, tmp_path / "bundle").card
    shape = card.architecture["config"]["shape"]
    assert (shape["heads"], shape["activation"]) == (4, "quick_gelu") and card.provenance["assumed"] == {}
    assert card.preprocessing.mean == (0.4, 0.5, 0.6) and card.preprocessing.std == (0.1, 0.2, 0.3)


def test_rotary_periods_of_another_base_are_refused(build_original: Build, tmp_path: Path) -> None:
    path = build_original("dinov3").save_original(tmp_path)
    state = torch.load(path, weights_only=True)
    torch.save({**state, "rope_embed.periods": state["rope_embed.periods"] * 2}, path)
    with pytest.raises(CheckpointError, match="rotary periods other than 100"):
        load_checkpoint(path)
