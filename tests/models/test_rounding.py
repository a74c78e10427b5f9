"""How far ONNX's attention may be from torch's: as far as float32 itself is from float64, and no further."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import torch

from tessera.models.model_registry import build_model
from tessera.models.onnx_export import export_bundle, make_card


def test_sharp_attention_differs_by_rounding_alone(tmp_path: Path) -> None:
    """Logits of tens lose digits before the softmax, in either runtime: both are as far from float64 as each other."""
    torch.manual_seed(0)
    network = build_model("token-released", backbone="tiny", channels=64, heads=4, dim=32).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith((".q.weight", ".k.weight")):
                parameter.copy_(torch.randn_like(parameter) * 3)  # 0.02 at the start: these logits are sharp
    bundle = export_bundle(network, tmp_path / "bundle", make_card(network, "sharp"))
    image = torch.randn(1, 3, 160, 224)
    with torch.inference_mode():
        single = network(image)["attention"].double()
        exact = network.double()(image.double())["attention"]
    session = onnxruntime.InferenceSession(str(bundle.onnx_path), providers=["CPUExecutionProvider"])
    answer = torch.from_numpy(session.run(["attention"], {"images": image.numpy()})[0]).double()
    assert exact.amax() > 0.2  # sharp: 35 positions would have 0.03 each
    torch_error, onnx_error, between = (
        float((first - second).abs().max() / exact.max())
        for first, second in ((single, exact), (answer, exact), (answer, single))
    )
    assert 1e-7 < torch_error < 1e-4
    assert onnx_error < 4 * torch_error and between < 4 * torch_error
