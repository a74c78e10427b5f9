"""Views of a photo: whole, cropped, in part, and harder ones to tune on; sizes and light vary.

Pictures are uint8 H W 3. Shapes are few, so that views of many photos make one batch. The same seed and photo give the
same views on every machine with the same OpenCV.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Picture = NDArray[np.uint8]
Rng = np.random.Generator

ASPECTS = {"wide": (3, 4), "tall": (4, 3), "square": (1, 1)}  # H : W
LARGE_SIDES, SMALL_SIDES = (192, 256, 320), (160, 192, 256)  # of a view, by how much there is to see
KINDS = 3
GRAIN = 32


def make_view(photo: Picture, kind: int, rng: Rng) -> Picture:
    """kind: 0 the whole photo, 1 most of it, 2 a part; the last two often in another light."""
    height, width = photo.shape[:2]
    part = photo
    if kind == 1:
        part = crop(photo, rng, 0.55, 0.95, (width / height * 0.8, width / height * 1.25))
    elif kind == 2:
        part = crop(photo, rng, 0.15, 0.6)
    side = int(rng.choice(LARGE_SIDES if max(part.shape[:2]) > 250 else SMALL_SIDES))
    picture = resize(part, *shape_of(nearest_aspect(part), side))
    if kind and rng.random() < 0.6:
        picture = degrade(recolour(picture, rng, 0.5), rng, 0.5)
    return picture


def normalise(pictures: Picture, backbone: torch.nn.Module) -> Tensor:
    """B H W 3 in 0..255 to B 3 H W as the backbone wants it."""
    mean, std = (torch.tensor(values)[:, None, None] * 255 for values in (backbone.mean, backbone.std))
    images = torch.from_numpy(pictures).permute(0, 3, 1, 2).float()
    return ((images - mean) / std).contiguous(memory_format=torch.channels_last)


def nearest_aspect(picture: Picture) -> str:
    ratio = picture.shape[1] / picture.shape[0]
    return "wide" if ratio > 1.15 else "tall" if ratio < 0.87 else "square"


def shape_of(aspect: str, longer: int) -> tuple[int, int]:
    """Height and width, multiples of the network's stride."""
    height, width = ASPECTS[aspect]
    grains = longer / max(height, width) / GRAIN
    return round(height * grains) * GRAIN, round(width * grains) * GRAIN


def resize(picture: Picture, height: int, width: int) -> Picture:
    shrinks = picture.shape[0] * picture.shape[1] > height * width * 1.2
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(picture, (width, height), interpolation=how), np.uint8)


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
    changed: NDArray[np.uint8] = np.clip(x, 0, 255).astype(np.uint8)
    return changed


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


def make_hard_view(photo: Picture, background: Picture, shape: tuple[int, int], rng: Rng) -> Picture:
    """A part of a photo at a given height and width: now and then tilted or pasted onto another photo, in any light."""
    if rng.random() < 0.2:
        photo = tilt(photo, rng.uniform(-15, 15))
    ratio = shape[1] / shape[0]
    picture = resize(crop(photo, rng, 0.35, 1.0, (ratio / 1.35, ratio * 1.35)), *shape)
    if rng.random() < 0.1:
        picture = paste(picture, background, rng.uniform(0.5, 0.85), rng)
    if rng.random() < 0.8:
        picture = recolour(picture, rng, 1.0)
    if rng.random() < 0.5:
        picture = degrade(picture, rng, 1.0)
    return picture


def tilt(photo: Picture, degrees: float) -> Picture:
    """Turned about its middle and enlarged a little; what lies outside is mirrored in."""
    height, width = photo.shape[:2]
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, 1.15)
    return np.asarray(cv2.warpAffine(photo, matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101), np.uint8)


def paste(picture: Picture, background: Picture, share: float, rng: Rng) -> Picture:
    """The picture at a share of its sides, somewhere on another one."""
    height, width = picture.shape[:2]
    h, w = int(height * share), int(width * share)
    y, x = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
    scene = resize(background, height, width).copy()
    scene[y : y + h, x : x + w] = resize(picture, h, w)
    return scene


def make_strong_view(photo: Picture, background: Picture, shape: tuple[int, int], rng: Rng) -> Picture:
    """As copy detection sees a photo: turned, in perspective, mirrored, a small part, pasted, in any light."""
    if rng.random() < 0.5:
        photo = warp(tilt(photo, rng.uniform(-35, 35)), 0.18, rng)
    if rng.random() < 0.1:
        photo = np.ascontiguousarray(np.rot90(photo, rng.choice([-1, 1])))
    if rng.random() < 0.2:
        photo = np.ascontiguousarray(photo[:, ::-1])
    ratio = shape[1] / shape[0]
    picture = resize(crop(photo, rng, 0.2, 1.0, (ratio / 1.5, ratio * 1.5)), *shape)
    if rng.random() < 0.4:
        picture = paste(picture, background, rng.uniform(0.4, 0.85), rng)
    return degrade(recolour(picture, rng, 1.3), rng, 1.5)


def warp(photo: Picture, share: float, rng: Rng) -> Picture:
    """In perspective: every corner moves by up to a share of the sides; what lies outside is mirrored in."""
    height, width = photo.shape[:2]
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    moved = corners + rng.uniform(-share, share, (4, 2)).astype(np.float32) * (width, height)
    matrix = cv2.getPerspectiveTransform(corners, moved.astype(np.float32))
    return np.asarray(cv2.warpPerspective(photo, matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101), np.uint8)
