"""Shapes that agree in different colours are different things; another light is not."""

from __future__ import annotations

import numpy as np

from tessera.local.colours import colour_difference

POINTS = np.array([[0.1, 0.1], [0.9, 0.1], [0.9, 0.9], [0.1, 0.9]])


def label(colour: tuple[int, int, int]) -> np.ndarray:
    """A label: a blue frame, and a field of a colour of its own."""
    image = np.full((120, 160, 3), (20, 60, 160), np.uint8)
    image[30:90, 40:120] = colour
    return image


def test_one_brand_in_two_colours() -> None:
    orange, teal = label((220, 120, 20)), label((20, 140, 140))
    assert colour_difference(orange, teal, np.eye(3), POINTS) > 0.2
    assert colour_difference(orange, orange, np.eye(3), POINTS) == 0.0


def test_another_light_is_no_other_thing() -> None:
    orange = label((220, 120, 20))
    darker = (orange * 0.7).astype(np.uint8)
    warmer = np.clip(orange.astype(int) + np.array([25, 5, -10]), 0, 255).astype(np.uint8)
    assert colour_difference(orange, darker, np.eye(3), POINTS) == 0.0
    assert colour_difference(orange, warmer, np.eye(3), POINTS) == 0.0


def test_no_light_turns_a_red_label_blue() -> None:
    def printed(ground: tuple[int, int, int]) -> np.ndarray:
        image = np.full((120, 160, 3), ground, np.uint8)
        image[50:70, 40:120] = (235, 225, 200)  # the lettering, the same on both
        return image

    red, navy = printed((115, 40, 40)), printed((35, 45, 80))
    assert colour_difference(red, navy, np.eye(3), POINTS) > 0.5
    by_lamplight = np.clip(red * np.array([1.1, 1.0, 0.75]), 0, 255).astype(np.uint8)
    assert colour_difference(red, by_lamplight, np.eye(3), POINTS) == 0.0


def test_nothing_to_compare_is_no_difference() -> None:
    orange = label((220, 120, 20))
    away = np.array([[1.0, 0, 5], [0, 1, 5], [0, 0, 1]])
    assert colour_difference(orange, orange, away, POINTS) == 0.0
    assert colour_difference(orange[:1, :1], orange, np.eye(3), POINTS) == 0.0
