"""Twelve ways in which a photo comes back: the copies that `tessera duplicates` must find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw, ImageEnhance, ImageOps


def _scaled(image: Image.Image, share: float) -> Image.Image:
    return image.resize(
        (max(8, round(image.width * share)), max(8, round(image.height * share))), Image.Resampling.LANCZOS
    )


def _cropped(image: Image.Image, left: float, top: float, side: float) -> Image.Image:
    x, y = round(left * image.width), round(top * image.height)
    return image.crop((x, y, x + round(side * image.width), y + round(side * image.height)))


def _captioned(image: Image.Image) -> Image.Image:
    copy = image.copy()
    draw = ImageDraw.Draw(copy)
    height = max(10, image.height // 10)
    draw.rectangle((0, image.height - height, image.width, image.height), fill="black")
    draw.text((4, image.height - height + 1), "HOLIDAYS 2019 (c) somebody", fill="white", font_size=max(8, height - 4))
    draw.text((image.width // 4, image.height // 3), "SAMPLE", fill="yellow", font_size=max(10, image.height // 8))
    return copy


def _greyed(image: Image.Image) -> Image.Image:
    return ImageEnhance.Contrast(
        ImageEnhance.Brightness(ImageOps.grayscale(image).convert("RGB")).enhance(1.2)
    ).enhance(0.8)


ALTERATIONS: dict[str, tuple[Callable[[Image.Image], Image.Image], str, int]] = {
    "half": (lambda image: _scaled(image, 0.5), "jpg", 90),
    "third": (lambda image: _scaled(image, 1 / 3), "jpg", 85),
    "quality30": (lambda image: image, "jpg", 30),
    "webp": (lambda image: image, "webp", 60),
    "crop80": (lambda image: _cropped(image, 0.1, 0.1, 0.8), "jpg", 90),
    "crop70": (lambda image: _cropped(image, 0.02, 0.25, 0.7), "jpg", 90),
    "turned90": (lambda image: image.transpose(Image.Transpose.ROTATE_90), "jpg", 90),
    "turned180": (lambda image: image.transpose(Image.Transpose.ROTATE_180), "jpg", 90),
    "turned270": (lambda image: image.transpose(Image.Transpose.ROTATE_270), "jpg", 90),
    "border": (lambda image: ImageOps.expand(image, max(image.size) // 12, "white"), "jpg", 90),
    "text": (_captioned, "jpg", 90),
    "grey": (_greyed, "jpg", 80),
}


def write_altered(original: Path, folder: Path) -> None:
    """Write the original's twelve copies to `folder/KIND/NAME`."""
    with Image.open(original) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    for kind, (alter, suffix, quality) in ALTERATIONS.items():
        target = folder / kind / f"{original.stem}.{suffix}"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            alter(image).save(target, quality=quality)
