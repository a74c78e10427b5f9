"""Six views of a photo, for training without names: whole, jittered, zoomed, small, pasted into clutter, warped.

Pictures are uint8 H W 3. Sizes are few, so that views of many photos make one batch. The same seed and photo give the
same views on every machine with the same OpenCV.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
Rng = np.random.Generator

SIZES = {"small": (192, 192), "square": (256, 256), "wide": (224, 320), "tall": (320, 224)}  # H W
NUM_VIEWS = 6


@dataclass(frozen=True)
class View:
    """size: a key of SIZES. clutter: the photo it was pasted into, which is no negative of it; -1 for none."""

    size: str
    picture: Picture
    clutter: int = -1


def make_views(photo: Picture, rng: Rng, others: Sequence[int], load: Callable[[int], Picture]) -> list[View]:
    """others: photos of other landmarks, for clutter and occlusion; load: the picture of one."""
    height, width = photo.shape[:2]
    aspect = width / height
    whole = "wide" if width >= height else "tall"
    views = [View(whole, fit(crop(photo, rng, 0.75, 1, (aspect * 0.9, aspect * 1.1)), whole))]
    loose = fit(crop(photo, rng, 0.5, 1, (aspect * 0.75, aspect * 1.33)), whole)
    views.append(View(whole, degrade(recolour(loose, rng, 1), rng, 1)))
    zoomed = fit(crop(photo, rng, 0.25, 0.6), "square")
    views.append(View("square", degrade(recolour(zoomed, rng, 0.7), rng, 0.5)))
    part = crop(photo, rng, 0.12, 0.5) if rng.random() < 0.5 else crop(photo, rng, 0.5, 1)
    views.append(View("small", degrade(recolour(fit(part, "small"), rng, 1), rng, 1)))
    pasted, clutter = paste(photo, rng, others, load, whole)
    views.append(View(whole, recolour(pasted, rng, 0.5), clutter))
    size = "square" if rng.random() < 0.6 else "small"
    warped = fit(warp(crop(photo, rng, 0.4, 1), rng), size)
    if rng.random() < 0.6:
        warped = occlude(warped, rng, others, load)
    views.append(View(size, degrade(recolour(warped, rng, 0.8), rng, 0.6)))
    return views


def crop(photo: Picture, rng: Rng, low: float, high: float, aspects: tuple[float, float] = (3 / 4, 4 / 3)) -> Picture:
    """A box of low..high of the area; the whole photo when ten tries do not fit."""
    height, width = photo.shape[:2]
    for _ in range(10):
        area = rng.uniform(low, high) * height * width
        aspect = np.exp(rng.uniform(np.log(aspects[0]), np.log(aspects[1])))
        w, h = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if 8 < w <= width and 8 < h <= height:
            x, y = rng.integers(0, width - w + 1), rng.integers(0, height - h + 1)
            return photo[y : y + h, x : x + w]
    return photo


def fit(picture: Picture, size: str) -> Picture:
    height, width = SIZES[size]
    shrinks = picture.shape[0] * picture.shape[1] > height * width * 1.5
    return resize(picture, height, width, cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)


def resize(picture: Picture, height: int, width: int, how: int = cv2.INTER_AREA) -> Picture:
    return np.asarray(cv2.resize(picture, (width, height), interpolation=how), np.uint8)


def recolour(picture: Picture, rng: Rng, strength: float) -> Picture:
    """Brightness, contrast, saturation, tint, now and then grey."""
    x = picture.astype(np.float32) * (1 + rng.uniform(-0.4, 0.4) * strength)
    mean = x.mean()
    x = (x - mean) * (1 + rng.uniform(-0.4, 0.4) * strength) + mean
    grey = x.mean(axis=2, keepdims=True)
    x = grey + (x - grey) * (1 + rng.uniform(-0.5, 0.5) * strength)
    x *= 1 + rng.uniform(-0.1, 0.1, (1, 1, 3)) * strength
    if rng.random() < 0.1 * strength:
        x = np.repeat(x.mean(axis=2, keepdims=True), 3, axis=2)
    return np.clip(x, 0, 255).astype(np.uint8)


def degrade(picture: Picture, rng: Rng, strength: float) -> Picture:
    """Blur, JPEG, noise, each now and then."""
    if rng.random() < 0.35 * strength:
        picture = np.asarray(cv2.GaussianBlur(picture, (0, 0), rng.uniform(0.4, 1.8)), np.uint8)
    if rng.random() < 0.3 * strength:
        coded = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(20, 70))])[1]
        picture = np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR), np.uint8)
    if rng.random() < 0.2 * strength:
        picture = np.clip(picture + rng.normal(0, rng.uniform(2, 10), picture.shape), 0, 255).astype(np.uint8)
    return picture


def warp(picture: Picture, rng: Rng, shift: float = 0.18, turn_deg: float = 15) -> Picture:
    """Another point of view: corners moved by up to `shift` of a side, then a turn; the border is reflected."""
    height, width = picture.shape[:2]
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    moved = corners + rng.uniform(-shift, shift, (4, 2)) * [width, height]
    perspective = cv2.getPerspectiveTransform(corners, moved.astype(np.float32))
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), rng.uniform(-turn_deg, turn_deg), 1.1)
    matrix = np.vstack([turn, [0, 0, 1]]) @ perspective
    bent = cv2.warpPerspective(picture, matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(bent, np.uint8)


def occlude(picture: Picture, rng: Rng, others: Sequence[int], load: Callable[[int], Picture]) -> Picture:
    """One or two patches of other photos on top."""
    height, width = picture.shape[:2]
    covered = picture.copy()
    for _ in range(rng.integers(1, 3)):
        patch = crop(load(int(rng.choice(others))), rng, 0.05, 0.4)
        h, w = int(height * rng.uniform(0.15, 0.45)), int(width * rng.uniform(0.15, 0.45))
        y, x = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
        covered[y : y + h, x : x + w] = resize(patch, h, w)
    return covered


def paste(
    photo: Picture, rng: Rng, others: Sequence[int], load: Callable[[int], Picture], size: str
) -> tuple[Picture, int]:
    """A crop of the photo on 8 to 55 % of another photo, hard-edged or blended. Returns the number of the other too."""
    number = int(rng.choice(others))
    canvas = fit(crop(load(number), rng, 0.5, 1), size).copy()
    height, width = SIZES[size]
    thing = crop(photo, rng, 0.5, 1)
    share = np.exp(rng.uniform(np.log(0.08), np.log(0.55)))
    scale = (share * height * width / (thing.shape[0] * thing.shape[1])) ** 0.5
    scale = min(scale, height / thing.shape[0], width / thing.shape[1])
    h, w = max(8, int(thing.shape[0] * scale)), max(8, int(thing.shape[1] * scale))
    y, x = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
    mask = blend_mask(h, w, rng)[..., None]
    region = canvas[y : y + h, x : x + w]
    canvas[y : y + h, x : x + w] = (resize(thing, h, w) * mask + region * (1 - mask)).astype(np.uint8)
    return canvas, number


def blend_mask(height: int, width: int, rng: Rng) -> NDArray[np.float32]:
    """All ones, or an ellipse or a smaller rectangle with soft edges."""
    if rng.random() >= 0.6:
        return np.ones((height, width), np.float32)
    mask = np.zeros((height, width), np.float32)
    if rng.random() < 0.5:
        cv2.ellipse(mask, (width // 2, height // 2), (width // 2, height // 2), 0, 0, 360, 1.0, -1)
    else:
        y, x = height // 12, width // 12
        mask[y : height - y, x : width - x] = 1
    return np.asarray(cv2.GaussianBlur(mask, (0, 0), max(1, min(height, width) / 30)), np.float32)
