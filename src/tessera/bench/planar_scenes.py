"""Planar scenes with known homographies: pictures of shapes and noise, and warped views of them."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


def paint_scene(seed: int, size: tuple[int, int] = (320, 240)) -> Pixels:
    """A picture with corners and blobs at many scales; no two seeds share anything."""
    random = np.random.default_rng(seed)
    width, height = size
    picture = np.zeros((height, width, 3), np.uint8)
    picture[:] = random.integers(60, 200, 3)
    for _ in range(140):
        colour = tuple(int(value) for value in random.integers(0, 256, 3))
        centre = random.integers((0, 0), (width, height))
        side = int(random.gamma(2.0, 8.0)) + 3
        corners = centre + random.normal(scale=side, size=(int(random.integers(3, 7)), 2))
        cv2.fillConvexPoly(picture, cv2.convexHull(corners.astype(np.int32)), colour, cv2.LINE_AA)
    grain = random.normal(scale=6, size=picture.shape)
    painted: Pixels = np.clip(picture + grain, 0, 255).astype(np.uint8)
    return painted


def draw_homography(seed: int, size: tuple[int, int] = (320, 240)) -> npt.NDArray[np.float64]:
    """A camera that has moved: each corner of the picture shifts by up to an eighth, and all turns and zooms a bit."""
    random = np.random.default_rng(10_000 + seed)
    width, height = size
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    angle, zoom = random.uniform(-0.3, 0.3), random.uniform(0.7, 1.2)
    turn = zoom * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    moved = (corners - corners.mean(axis=0)) @ turn.T + corners.mean(axis=0)
    moved = moved + random.uniform(-0.125, 0.125, (4, 2)) * [width, height]
    homography: npt.NDArray[np.float64] = cv2.getPerspectiveTransform(corners, moved.astype(np.float32))
    return homography


def warp(picture: Pixels, homography: npt.NDArray[np.float64], seed: int) -> Pixels:
    """The other view, with another exposure and its own noise."""
    random = np.random.default_rng(20_000 + seed)
    height, width = picture.shape[:2]
    view = cv2.warpPerspective(picture, homography, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    view = view * random.uniform(0.7, 1.25) + random.normal(scale=5, size=view.shape)
    clipped: Pixels = np.clip(view, 0, 255).astype(np.uint8)
    return clipped
