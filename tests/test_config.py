from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from tessera.config import fingerprint, from_mapping, to_mapping
from tessera.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    kind: Literal["linear", "cosine"] = "linear"


@dataclass(frozen=True)
class Outer:
    name: str
    scales: tuple[float, ...] = (1.0,)
    pair: tuple[int, int] = (1, 2)
    limit: int | None = None
    inner: Inner = field(default_factory=Inner)


def test_round_trip_keeps_every_value():
    config = from_mapping(Outer, {"name": "a", "scales": [1, 0.5], "limit": 3, "inner": {"rate": 1, "kind": "cosine"}})
    assert config == Outer("a", (1.0, 0.5), (1, 2), 3, Inner(1.0, "cosine"))
    assert isinstance(config.inner.rate, float)
    assert from_mapping(Outer, to_mapping(config)) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nmae": "a"}, "Did you mean 'name'"),
        ({"name": "a", "inner": {"rte": 1}}, "Did you mean 'inner.rate'"),
        ({"name": "a", "inner": {"kind": "cosin"}}, "Did you mean 'cosine'"),
        ({"name": 3}, "name must be of type str"),
        ({"name": "a", "limit": True}, "limit must be of type int"),
        ({"name": "a", "scales": "1,2"}, "scales must be a list"),
        ({"name": "a", "pair": [1]}, "pair must have 2 values, not 1"),
        ({"name": "a", "inner": 3}, "inner must be a table"),
        ({}, "needs name"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(values, words):
    with pytest.raises(ConfigError, match=words):
        from_mapping(Outer, values)


def test_fingerprint_is_of_content_not_of_order():
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint(Outer("a")) != fingerprint(Outer("b"))
