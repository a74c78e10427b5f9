"""Planar scenes with known homographies, and how far an estimated homography is from the true one."""

from __future__ import annotations

import cv2
import numpy as np

from tessera.bench.planar_scenes import draw_homography, paint_scene, warp

__all__ = ["draw_homography", "paint_scene", "transfer_error", "warp"]


def transfer_error(estimated: np.ndarray, true: np.ndarray, size: tuple[int, int]) -> float:
    """The mean distance, in pixels, between where both send a grid over the picture."""
    xs, ys = np.meshgrid(np.linspace(0.2, 0.8, 5) * size[0], np.linspace(0.2, 0.8, 5) * size[1])
    grid = np.column_stack([xs.ravel(), ys.ravel()]).astype(np.float64)[None]
    apart = cv2.perspectiveTransform(grid, estimated) - cv2.perspectiveTransform(grid, true)
    return float(np.linalg.norm(apart[0], axis=1).mean())
