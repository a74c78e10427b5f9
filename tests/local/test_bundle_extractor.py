"""HOW through a bundle and both runtimes against the numbers of its own code; bundles of other kinds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tessera.errors import ModelError, UsageError
from tessera.extract.scales import rescale
from tessera.local.bundle_extractor import BundleExtractor, select_strongest
from tessera.models.model_registry import build_model
from tessera.models.onnx_export import export_bundle, make_card

STEMS = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}


@pytest.fixture(scope="module")
def golden(golden_dir: Path):
    with np.load(golden_dir / "how" / "how_r18.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def how_bundle(fill, golden_dir: Path, tmp_path_factory):
    spec = json.loads((golden_dir / "how" / "how_r18_spec.json").read_text())
    state = {}
    for key, value in fill.seeded_state_dict(spec, 4321).items():
        stem, _, rest = key.removeprefix("features.").partition(".")
        state[f"backbone.{STEMS[stem]}.{rest}" if key.startswith("features.") else key] = value
    network = build_model("how-r18")
    network.load_state_dict(state)
    folder = tmp_path_factory.mktemp("how") / "how-r18"
    return export_bundle(network, folder, make_card(network, "how-r18"))


@pytest.fixture(scope="module")
def picture(fill, golden_dir: Path):
    meta = json.loads((golden_dir / "how" / "meta.json").read_text())
    return fill.synthetic_rgb(*meta["image"]["h_w_seed"])


@pytest.mark.parametrize("runtime", ["onnx", "torch"])
def test_the_strongest_of_seven_scales_are_hows(how_bundle, picture, golden, runtime):
    top = BundleExtractor(how_bundle, count=50, runtime=runtime).select(picture)
    assert np.abs(top.strengths - golden["top50_att"]).max() < 1e-5
    assert np.array_equal(top.cells, golden["top50_xy"])
    assert np.array_equal(top.scales, golden["top50_scale_f16"])
    assert top.scales.dtype == np.float16
    assert np.abs(top.features - golden["top50_vecs"]).max() <= 1e-5 * np.abs(golden["top50_vecs"]).max()


def test_all_features_are_kept_where_there_are_fewer_than_asked(how_bundle, picture, golden):
    everything = BundleExtractor(how_bundle, count=1000).select(picture)
    assert len(everything.strengths) == len(golden["top1000_att"]) == 318
    assert np.abs(everything.strengths - golden["top1000_att"]).max() < 1e-5
    lengths = np.linalg.norm(everything.features, axis=1)
    assert np.allclose(np.sort(lengths), np.sort(golden["top1000_vec_l2norm"]), rtol=1e-4)


def test_positions_lie_in_the_image_and_scales_are_cells(how_bundle, picture):
    features = BundleExtractor(how_bundle, count=1000).extract(picture)
    height, width = picture.shape[:2]
    assert features.image_size == (width, height)
    assert (features.positions >= 0).all()
    assert (features.positions <= [width - 1, height - 1]).all()
    strongest_at_one = features.positions[np.isclose(features.scales, 16.0)]
    assert len(strongest_at_one) == 42  # the 6 x 7 cells of scale 1
    assert set(np.unique(strongest_at_one[:, 0])) == {16.0 + 32 * x for x in range(7)}


def test_one_pixel_gives_features(how_bundle):
    assert len(BundleExtractor(how_bundle).extract(np.full((1, 1, 3), 9, np.uint8))) > 0


@pytest.mark.parametrize("model", ["delf-r50", "delg-local-r50"])
def test_delf_and_delg_give_unit_features(model, tmp_path):
    torch.manual_seed(0)
    network = build_model(model, backbone="tiny", local_dim=16, hidden=8)
    bundle = export_bundle(network, tmp_path / model, make_card(network, model))
    image = np.random.default_rng(0).integers(0, 256, (96, 130, 3), dtype=np.uint8)
    features = BundleExtractor(bundle, count=20, scales=(1.0, 0.5)).extract(image)
    assert features.descriptors.shape == (20, 16)  # of the 15 + 6 cells
    assert np.allclose(np.linalg.norm(features.descriptors, axis=1), 1, atol=1e-5)
    assert (np.diff(features.strengths) <= 0).all()


def test_a_global_bundle_is_refused(token_bundle):
    with pytest.raises(ModelError, match="no local features"):
        BundleExtractor(token_bundle)


def test_nothing_to_select_is_refused(how_bundle):
    with pytest.raises(UsageError, match="at least one"):
        BundleExtractor(how_bundle, count=0)
    with pytest.raises(UsageError, match="at least one"):
        BundleExtractor(how_bundle, scales=())


def test_rescaling_with_a_recomputed_step_is_torchs():
    images = np.random.default_rng(1).normal(size=(1, 2, 161, 210)).astype(np.float32)
    for scale in (2.0, 1.414, 0.707, 0.353, 0.25):
        expected = torch.nn.functional.interpolate(
            torch.from_numpy(images), scale_factor=scale, mode="bilinear", recompute_scale_factor=True
        ).numpy()
        assert np.abs(rescale(images, scale, recompute=True) - expected).max() < 2e-6


def test_selection_sorts_over_all_scales_at_once():
    maps = [
        {
            "features": np.full((1, 2, 1), value, np.float32),
            "strengths": np.array([strengths], np.float32),
            "positions": np.zeros((1, 2, 2), np.int64),
        }
        for value, strengths in ((1.0, [4.0, 1.0]), (2.0, [2.0, 3.0]))
    ]
    chosen = select_strongest(maps, (1.0, 1.414), 3)
    assert chosen.features.ravel().tolist() == [1.0, 2.0, 2.0]
    assert chosen.strengths.tolist() == [1.0, 0.75, 0.5]
    assert chosen.scales.tolist() == [1.0, 1.4140625, 1.4140625]


def test_verification_allows_half_a_cell_where_positions_are_cells(how_bundle):
    from tessera.local.sift import SiftExtractor
    from tessera.local.spatial_reranking import open_reranker

    network = BundleExtractor(how_bundle)
    assert open_reranker("sp", extractor=network).compare.keywords["config"].threshold_px == network.cell_px / 2
    assert open_reranker("sp", extractor=SiftExtractor()).compare.keywords["config"].threshold_px == 4
