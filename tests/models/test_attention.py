"""Attention by association gives the numbers of plain multi-head attention, and costs less."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tessera.errors import ConfigError
from tessera.models.parts.attention import MultiHeadAttention

CASES = list(itertools.product([True, False], [None, "keys", "full"], ["head", "channels"]))


def randomised(**options: object) -> MultiHeadAttention:
    torch.manual_seed(0)
    attention = MultiHeadAttention(32, 4, **options).double()  # type: ignore[arg-type]
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return attention.eval()


def make_mask(kind: str | None) -> torch.Tensor | None:
    generator = torch.Generator().manual_seed(1)
    if kind is None:
        return None
    shape = (2, 1, 1, 17) if kind == "keys" else (2, 4, 3, 17)
    mask = torch.rand(shape, generator=generator) < 0.6
    mask[..., 0] = True  # a query that may look nowhere has no answer
    return mask


@pytest.mark.parametrize(("bias", "mask_kind", "scale"), CASES)
def test_both_writings_agree(bias: bool, mask_kind: str | None, scale: str) -> None:
    attention = randomised(num_queries=3, bias=bias, scale=scale)
    assert attention.by_association
    queries, memory = torch.randn(2, 3, 32, dtype=torch.float64), torch.randn(2, 17, 32, dtype=torch.float64)
    mask = make_mask(mask_kind)
    values, weights = attention.attend_by_association(queries, memory, mask)
    plain_values, plain_weights = attention.attend_plainly(queries, memory, mask)
    torch.testing.assert_close(values, plain_values, rtol=0, atol=1e-10)
    torch.testing.assert_close(weights, plain_weights, rtol=0, atol=1e-10)
    if mask is not None:
        assert (weights.masked_select(~mask.expand_as(weights)) == 0).all()


def test_the_forward_pass_equals_torchs_own() -> None:
    attention = randomised(num_queries=3)
    queries, memory = torch.randn(2, 3, 32, dtype=torch.float64), torch.randn(2, 17, 32, dtype=torch.float64)
    mask = torch.rand(2, 17) < 0.7
    mask[:, 0] = True
    expected, expected_weights = F.multi_head_attention_forward(
        queries.transpose(0, 1),
        memory.transpose(0, 1),
        memory.transpose(0, 1),
        32,
        4,
        None,
        torch.cat([attention.q.bias, attention.k.bias, attention.v.bias]),
        None,
        None,
        False,
        0.0,
        attention.proj.weight,
        attention.proj.bias,
        training=False,
        key_padding_mask=~mask,
        use_separate_proj_weight=True,
        q_proj_weight=attention.q.weight,
        k_proj_weight=attention.k.weight,
        v_proj_weight=attention.v.weight,
        average_attn_weights=False,
    )
    output, weights = attention(queries, memory, mask[:, None, None])
    torch.testing.assert_close(output, expected.transpose(0, 1), rtol=0, atol=1e-10)
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-10)


def test_gradients_agree() -> None:
    attention = randomised(num_queries=3)
    queries, memory = torch.randn(2, 3, 32, dtype=torch.float64), torch.randn(2, 17, 32, dtype=torch.float64)
    gradients = []
    for attend in (attention.attend_by_association, attention.attend_plainly):
        attention.zero_grad()
        attend(queries, memory, None)[0].square().sum().backward()
        gradients.append({name: p.grad for name, p in attention.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and len(gradients[0]) == 6
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-9, atol=1e-10)


def test_dropout_on_the_weights_scales_the_value_bias_with_them() -> None:
    """With dropout a row no longer sums to one, and the bias must come as often as positions were kept."""
    attention = randomised(num_queries=3, weight_dropout=0.5).train()
    queries, memory = torch.randn(2, 3, 32, dtype=torch.float64), torch.randn(2, 17, 32, dtype=torch.float64)
    answers = []
    for attend in (attention.attend_by_association, attention.attend_plainly):
        torch.manual_seed(5)
        answers.append(attend(queries, memory, None)[0])
    torch.testing.assert_close(answers[0], answers[1], rtol=0, atol=1e-10)
    attention.eval()
    assert (answers[0] - attention.attend_plainly(queries, memory, None)[0]).abs().max() > 1e-3


def test_association_is_used_where_it_is_cheaper() -> None:
    assert MultiHeadAttention(64, 8, num_queries=4).by_association
    assert not MultiHeadAttention(32, 8, num_queries=4).by_association
    assert not MultiHeadAttention(64, 8).by_association


def test_association_costs_what_it_says() -> None:
    attention = MultiHeadAttention(256, 8, num_queries=4).eval()
    queries, memory = torch.zeros(1, 4, 256), torch.zeros(1, 768, 256)
    counts = []
    for attend in (attention.attend_by_association, attention.attend_plainly):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            attend(queries, memory, None)
        counts.append(counter.get_total_flops() // 2)
    width, positions, tokens, heads = 256, 768, 4, 8
    assert counts[0] == 3 * tokens * width**2 + 2 * heads * tokens * positions * width + tokens * width
    assert counts[1] == (tokens + 2 * positions) * width**2 + 2 * tokens * positions * width


def test_heads_must_divide_channels() -> None:
    with pytest.raises(ConfigError, match="30 channels cannot be split into 8 heads"):
        MultiHeadAttention(30, 8)
