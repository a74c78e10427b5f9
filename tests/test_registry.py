from __future__ import annotations

import pytest

from tessera.errors import ConfigError
from tessera.registry import Registry


def test_names_are_kept_in_order_and_only_once():
    registry: Registry[int] = Registry("codec")
    registry.add("flat", 1)
    registry.add("fast", 2)
    assert list(registry) == ["flat", "fast"]
    assert dict(registry.items()) == {"flat": 1, "fast": 2}
    assert len(registry) == 2
    with pytest.raises(ConfigError, match="registered twice"):
        registry.add("flat", 3)


def test_an_unknown_name_gets_the_nearest_one():
    registry: Registry[int] = Registry("model")
    registry.add("token-r50", 1)
    with pytest.raises(ConfigError, match=r"model 'tokn-r50' is not known\. Did you mean 'token-r50'\?"):
        registry["tokn-r50"]
