"""The paper's network: its equations, its ablations, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tessera.errors import ConfigError
from tessera.models.model_registry import build_model
from tessera.models.parts.lfsa import SecondOrderAttention
from tessera.models.parts.token_refinement import RefinementBlock
from tessera.models.parts.tokenizers import AttentionTokenizer, QuantisedTokenizer
from tessera.models.token import TokenConfig, TokenHead

SMALL = {"backbone": "tiny", "channels": 16, "heads": 4, "dim": 24}

# Tables 3 to 6: components, halves of the refinement, tokenizers, numbers of tokens.
ABLATIONS = {
    "table 3 row 1": {"lfsa": False, "tokenizer": "mean", "blocks": 0},
    "table 3 row 2": {"lfsa": False, "blocks": 0},
    "table 3 row 3": {"blocks": 0},
    "table 3 row 4": {"lfsa": False},
    "table 3 row 5": {},
    "table 4 row 2": {"self_attention": False},
    "table 4 row 3": {"cross_attention": False},
    "table 5 vq": {"tokenizer": "vq"},
    "table 5 learned": {"tokenizer": "learned"},
    **{f"table 6 L={count}": {"num_tokens": count} for count in (1, 2, 3, 4, 6, 8)},
    "literal scale": {"scale": "channels"},
    "literal width": {"channels": None},
}


def perturb(module: torch.nn.Module, std: float = 0.1) -> None:
    """Away from the zeros and ones of a fresh network, which hide mistakes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * std)


@pytest.mark.parametrize("overrides", ABLATIONS.values(), ids=ABLATIONS.keys())
def test_every_ablation_is_a_configuration(overrides: dict[str, object]) -> None:
    network = build_model("token", **{**SMALL, **overrides}).eval()
    perturb(network)
    outputs = network(torch.randn(2, 3, 64, 96))
    assert outputs["descriptor"].shape == (2, 24)
    torch.testing.assert_close(outputs["descriptor"].norm(dim=1), torch.ones(2))
    assert (outputs["descriptor"][0] - outputs["descriptor"][1]).abs().max() > 1e-4
    count = network.num_tokens
    if overrides.get("tokenizer") == "mean":
        assert count == 0 and set(outputs) == {"descriptor"}
    else:
        assert outputs["attention"].shape == (2, count, 2, 3)
        assert outputs["parts"].shape == (2, count + 1, 24)


@pytest.mark.parametrize(
    "overrides", [{}, {"blocks": 0}, {"cross_attention": False}, {"tokenizer": "learned"}], ids=str
)
def test_parts_sum_to_the_raw_descriptor(overrides: dict[str, object]) -> None:
    network = build_model("token", **{**SMALL, **overrides}).eval()
    perturb(network)
    images = torch.randn(2, 3, 64, 96)
    outputs = network(images)
    raw = network.describe_raw(images)
    torch.testing.assert_close(outputs["parts"].sum(dim=1), raw, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outputs["descriptor"], torch.nn.functional.normalize(raw, dim=1), rtol=0, atol=1e-6)
    assert (outputs["parts"][:, -1] == 0).all()  # W_g has no bias


def test_attention_is_the_last_cross_attention_else_the_tokenizers_claims() -> None:
    images = torch.randn(1, 3, 64, 96)
    crossed = build_model("token", **SMALL).eval()(images)["attention"]
    torch.testing.assert_close(crossed.sum(dim=(2, 3)), torch.ones(1, 4))
    claimed = build_model("token", **SMALL, cross_attention=False).eval()(images)["attention"]
    torch.testing.assert_close(claimed.sum(dim=1), torch.ones(1, 2, 3))


def test_tokens_are_means_over_what_they_claim() -> None:
    """Eq. 1 and 2 in loops."""
    torch.manual_seed(0)
    tokenizer = AttentionTokenizer(6, 3).double()
    torch.nn.init.normal_(tokenizer.weight)
    features = torch.randn(2, 5, 6, dtype=torch.float64)
    tokens, claims = tokenizer(features)
    for b in range(2):
        numerator, mass = torch.zeros(3, 6, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        for s in range(5):
            exponentials = torch.stack([torch.exp(tokenizer.weight[i] @ features[b, s]) for i in range(3)])
            share = exponentials / exponentials.sum()
            torch.testing.assert_close(claims[b, :, s], share)
            numerator += share[:, None] * features[b, s]
            mass += share
        torch.testing.assert_close(tokens[b], numerator / mass[:, None])


def test_refinement_is_the_papers_equations() -> None:
    """Eq. 6 to 10 head by head: T + LayerNorm(branch), no norm before attention, W_M in both halves."""
    torch.manual_seed(0)
    block = RefinementBlock(8, 3, heads=2).double().eval()
    perturb(block, 0.3)
    tokens, features = torch.randn(1, 3, 8, dtype=torch.float64), torch.randn(1, 7, 8, dtype=torch.float64)

    def attend(attention: torch.nn.Module, queries: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        q, k, v = queries @ attention.q.weight.T, memory @ attention.k.weight.T, memory @ attention.v.weight.T
        heads = []
        for head in range(2):
            part = slice(4 * head, 4 * head + 4)
            similarity = torch.softmax(q[:, part] @ k[:, part].T / 4**0.5, dim=-1)
            heads.append(similarity @ v[:, part])
        return torch.cat(heads, dim=-1) @ attention.proj.weight.T

    expected = tokens[0] + block.self_norm(attend(block.self_attention, tokens[0], tokens[0]))
    expected = expected + block.cross_norm(attend(block.cross_attention, expected, features[0]))
    torch.testing.assert_close(block(tokens, features)[0][0], expected, rtol=0, atol=1e-10)


def test_scale_option_is_the_literal_equation() -> None:
    block = RefinementBlock(32, 4, heads=8, scale="channels")
    assert block.cross_attention is not None
    assert block.cross_attention.scale == pytest.approx(32**-0.5)
    default = RefinementBlock(32, 4, heads=8).cross_attention
    assert default is not None and default.scale == pytest.approx(4**-0.5)


def test_second_order_attention_equals_loops() -> None:
    torch.manual_seed(0)
    block = SecondOrderAttention(6).double().eval()
    perturb(block, 0.4)
    x = torch.randn(1, 6, 2, 3, dtype=torch.float64)
    f, g, h = (part(x)[0].flatten(1) for part in (block.f, block.g, block.h))
    gathered = torch.zeros_like(h)
    for i in range(6):
        weights = torch.softmax(torch.stack([f[:, i] @ g[:, j] for j in range(6)]) * 3**-0.5, dim=0)
        gathered[:, i] = h @ weights
    expected = x + block.v(gathered.view(1, 3, 2, 3))
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-10)


def test_a_new_second_order_block_changes_nothing() -> None:
    x = torch.randn(1, 8, 3, 3)
    assert torch.equal(SecondOrderAttention(8).eval()(x), x)


def test_vq_rows_follow_their_features() -> None:
    tokenizer = QuantisedTokenizer(2, 3, decay=0.9)
    tokenizer.tokens.copy_(torch.tensor([[0.0, 0.0], [4.0, 4.0], [-50.0, 0.0]]))
    features = torch.tensor([[[0.0, 1.0], [1.0, 0.0], [5.0, 5.0]]], requires_grad=True)
    tokens, _ = tokenizer.train()(features)
    torch.testing.assert_close(tokens[0], torch.tensor([[0.0, 0.0], [4.0, 4.0], [-50.0, 0.0]]))  # of before the step
    torch.testing.assert_close(tokenizer.tokens, torch.tensor([[0.05, 0.05], [4.1, 4.1], [-50.0, 0.0]]))
    assert not tokens.requires_grad
    before = tokenizer.tokens.clone()
    tokenizer.eval()(features)
    assert torch.equal(tokenizer.tokens, before)


def test_vq_trains_through_the_rest_of_the_network() -> None:
    network = build_model("token", **SMALL, tokenizer="vq").train()
    network.describe_raw(torch.randn(2, 3, 64, 64)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert "head.tokenizer.tokens" in network.state_dict()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"tokenizer": "learned", "cross_attention": False}, "descriptor would be constant"),
        ({"tokenizer": "vq", "blocks": 0}, "descriptor would be constant"),
        ({"self_attention": False, "cross_attention": False}, "does nothing"),
        ({"tokenizer": "mean"}, "nothing to refine"),
        ({"tokenizer": "atention"}, "Did you mean 'attention'"),
        ({"num_tokens": 0}, "at least one token"),
        ({"heads": 5}, "cannot be split into 5 heads"),
        ({"num_token": 3}, "Did you mean 'num_tokens'"),
    ],
)
def test_meaningless_configurations_are_refused(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model("token", **{**SMALL, **overrides})


def test_row_one_of_table_3_is_spocs_mean_with_the_same_layer() -> None:
    head = TokenHead(32, TokenConfig(channels=None, lfsa=False, tokenizer="mean", blocks=0, dim=24))
    features = torch.randn(2, 32, 3, 4)
    torch.testing.assert_close(head.describe(features), features.mean(dim=(2, 3)) @ head.projection.weight.T)


def test_a_shared_block_of_the_projection_is_that_block_repeated() -> None:
    config = TokenConfig(channels=None, lfsa=False, blocks=0, num_tokens=3, dim=7, bias=True)
    own, shared = (TokenHead(5, replace(config, shared=value)).double().eval() for value in (False, True))
    assert shared.projection.weight.shape == (7, 5)
    with torch.no_grad():
        shared.tokenizer.weight.normal_()
        weights = shared.state_dict()
        own.load_state_dict(weights | {"projection.weight": weights["projection.weight"].repeat(1, 3)})
        features = torch.rand(2, 5, 4, 6, dtype=torch.float64)
        for key, expected in own(features).items():
            torch.testing.assert_close(shared(features)[key], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(shared.describe(features), own.describe(features), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            shared.position_contributions(features), own.position_contributions(features), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("power", [1.0, 3.0])
def test_what_the_places_add_is_what_the_tokens_add(power: float) -> None:
    config = TokenConfig(channels=None, lfsa=False, blocks=0, power=power, num_tokens=3, dim=7)
    head = TokenHead(5, config).double().eval()
    with torch.no_grad():
        head.tokenizer.weight.normal_()
        features = torch.rand(2, 5, 4, 6, dtype=torch.float64)
        added, parts = head.position_contributions(features), head(features)["parts"]
    assert added.shape == (2, 3, 7, 4, 6)
    torch.testing.assert_close(added.sum(dim=(-1, -2)), parts[:, :3], rtol=1e-10, atol=1e-12)
    elsewhere = features.clone()
    elsewhere[..., 0, 0] = 0
    assert torch.all(head.position_contributions(elsewhere)[..., 0, 0].abs() < 1e-4)
