"""How far an estimated homography is from the true one."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest


@pytest.fixture(scope="session")
def transfer_error() -> Callable[..., float]:
    """The mean distance, in pixels, between where two homographies send a grid over a picture."""

    def measure(estimated: np.ndarray, true: np.ndarray, size: tuple[int, int]) -> float:
        xs, ys = np.meshgrid(np.linspace(0.2, 0.8, 5) * size[0], np.linspace(0.2, 0.8, 5) * size[1])
        grid = np.column_stack([xs.ravel(), ys.ravel()]).astype(np.float64)[None]
        apart = cv2.perspectiveTransform(grid, estimated) - cv2.perspectiveTransform(grid, true)
        return float(np.linalg.norm(apart[0], axis=1).mean())

    return measure
