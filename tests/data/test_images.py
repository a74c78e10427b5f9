"""The two loaders: the field's own numbers for one, what people's files do for the other."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import types
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from tessera.data.images import Limits, load_benchmark, load_photo, read_photo
from tessera.errors import BoxError, ImageError, ImageLimitError


def gradient(width: int, height: int, seed: int = 0) -> np.ndarray:
    """A smooth picture in which every place differs, so that a wrong flip or crop shows."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [255 * x / max(1, width - 1), 255 * y / max(1, height - 1), (x * 3 + y * 5 + seed) % 256]
    return np.stack(planes, axis=-1).astype(np.uint8)


def encoded(pixels: np.ndarray, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, **options)
    return buffer.getvalue()


def oriented_jpeg(pixels: np.ndarray, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(pixels, "JPEG", quality=95, exif=exif)


def png_claiming(width: int, height: int) -> bytes:
    """The smallest file that says it is a picture of that size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def meta(golden_dir: Path) -> dict[str, object]:
    return json.loads((golden_dir / "extract" / "meta.json").read_text())


@pytest.mark.parametrize("i", [0, 1, 2])
def test_benchmark_pixels_equal_the_fields_own(i: int, golden_dir: Path, meta: dict) -> None:
    path = golden_dir / "extract" / f"{list(meta['images'])[i]}.png"
    expected = np.load(golden_dir / "extract" / "resized_u8.npz")
    whole = load_benchmark(path, size=meta["imsize"])
    query = load_benchmark(path, size=meta["imsize"], box=tuple(meta["bbx_x0_y0_x1_y1"][i]))
    np.testing.assert_array_equal(whole, expected[f"db{i}_u8"])
    np.testing.assert_array_equal(query, expected[f"q{i}_u8"])


def test_benchmark_sizes_equal_the_thumbnail_table(meta: dict) -> None:
    for width, height, limit, out_width, out_height in meta["thumbnail_w_h_limit_to_w_h"]:
        pixels = load_benchmark(Image.new("RGB", (width, height)), size=limit)
        assert pixels.shape == (out_height, out_width, 3), (width, height, limit)


def test_benchmark_ignores_exif_and_photo_obeys_it() -> None:
    data = oriented_jpeg(gradient(40, 20), 6)
    assert load_benchmark(data, size=100).shape == (20, 40, 3)
    assert load_photo(data, size=100).shape == (40, 20, 3)


@pytest.mark.parametrize("form", ["JPEG", "BMP", "GIF"])
def test_benchmark_takes_what_a_truncated_file_has_and_photo_refuses(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encoded(gradient(160, 120), form)
    cut = whole[: len(whole) // 2]
    ours = load_benchmark(cut, size=400)
    with pytest.raises(ImageError, match=r"cut short.*Copy the file again"):
        load_photo(cut, size=400)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)  # what the field's code sets for the whole process
    theirs = np.asarray(Image.open(io.BytesIO(cut)).convert("RGB"))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [None, 50])
@pytest.mark.parametrize("box", [None, (20.0, 10.0, 60.0, 40.0)])
def test_photo_rotates_before_the_box(orientation: int, size: int | None, box: tuple | None) -> None:
    data = oriented_jpeg(gradient(96, 64), orientation)
    upright = Image.open(io.BytesIO(data))
    from PIL import ImageOps

    rotated = ImageOps.exif_transpose(upright).convert("RGB")
    photo = read_photo(data, size=size, box=box)
    assert (photo.width, photo.height) == rotated.size
    expected = rotated.crop(tuple(map(int, box))) if box else rotated
    if size is not None and max(expected.size) > size:
        factor = size / max(expected.size)
        expected = expected.resize([max(1, round(side * factor)) for side in expected.size], Image.Resampling.LANCZOS)
    difference = np.abs(np.asarray(expected).astype(int) - photo.pixels.astype(int))
    assert photo.pixels.shape == np.asarray(expected).shape
    assert difference.mean() < (0.01 if size is None else 3.0)


@pytest.mark.parametrize(("form", "options"), [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True})])
def test_lossless_formats_keep_every_pixel(form: str, options: dict) -> None:
    pixels = gradient(31, 17)
    np.testing.assert_array_equal(load_photo(encoded(pixels, form, **options), size=64), pixels)


def test_gif_and_animated_files_give_their_first_frame() -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")]
    for form in ("GIF", "WEBP"):
        buffer = io.BytesIO()
        frames[0].save(
            buffer, form, save_all=True, append_images=frames[1:], **({"lossless": True} if form == "WEBP" else {})
        )
        pixels = load_photo(buffer.getvalue(), size=8)
        assert (pixels == (255, 0, 0)).all(), form


def test_avif_is_read_where_pillow_has_it() -> None:
    from PIL import features

    if not features.check("avif"):
        with pytest.raises(ImageError, match="known format"):
            load_photo(b"\0\0\0\x1cftypavif" + bytes(64), size=8)
        return
    pixels = load_photo(encoded(gradient(32, 32), "AVIF", quality=95), size=64)
    assert np.abs(pixels.astype(int) - gradient(32, 32).astype(int)).mean() < 12


def test_tiff_orientation_is_applied_once() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(gradient(40, 20), "TIFF", exif=exif)
    photo = read_photo(data, size=100)
    assert (photo.width, photo.height) == (20, 40)
    np.testing.assert_array_equal(photo.pixels, np.rot90(gradient(40, 20), -1))


def test_transparent_is_laid_on_white_and_sixteen_bits_are_reduced() -> None:
    layer = np.zeros((4, 4, 4), np.uint8)
    layer[:2] = (10, 20, 30, 255)
    pixels = load_photo(encoded(layer, "PNG"), size=4)
    assert (pixels[:2] == (10, 20, 30)).all()
    assert (pixels[2:] == 255).all()
    wide = np.full((3, 3), 0x8000, np.uint16)
    assert (load_photo(encoded(wide, "PNG"), size=4) == 0x80).all()


@pytest.mark.parametrize("white", [1.0, 255.0, 65535.0])
def test_floats_and_wide_integers_keep_their_greys(white: float) -> None:
    steps = np.tile(np.linspace(0, 1, 16, dtype=np.float32), (4, 1))
    as_seen = np.repeat(np.round(255 * steps).astype(np.uint8)[..., None], 3, axis=2)
    np.testing.assert_array_equal(load_photo(encoded(steps * white, "TIFF"), size=None), as_seen)
    if white > 1:
        integers = np.round(steps * white).astype(np.int32)
        np.testing.assert_array_equal(load_photo(encoded(integers, "TIFF"), size=None), as_seen)


def test_a_float_picture_with_holes_and_more_than_white() -> None:
    heights = np.array([[np.nan, np.inf, -5.0], [0.0, 1e5, 2e5]], np.float32)
    assert load_photo(encoded(heights, "TIFF"), size=None)[..., 0].tolist() == [[0, 0, 0], [0, 128, 255]]
    assert (load_photo(encoded(np.zeros((2, 2), np.float32), "TIFF"), size=None) == 0).all()


def test_heic_is_read_by_the_package_for_it_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    heic = b"\0\0\0\x18ftypheic" + bytes(64)
    monkeypatch.setattr(Image, "OPEN", {name: way for name, way in Image.OPEN.items() if name != "HEIF"})
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ImageError, match=r"HEIC picture.*pip install pillow-heif"):
        load_photo(heic, size=None)

    def register_heif_opener() -> None:
        Image.OPEN["HEIF"] = (lambda *_: Image.new("RGB", (5, 4), "red"), None)

    package = types.SimpleNamespace(register_heif_opener=register_heif_opener)
    monkeypatch.setitem(sys.modules, "pillow_heif", package)
    assert load_photo(heic, size=None).shape == (4, 5, 3)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "LA", "I", "F"])
def test_every_mode_becomes_three_channels(mode: str) -> None:
    image = Image.fromarray(gradient(12, 9)).convert("L" if mode in ("I", "F", "LA") else "RGB").convert(mode)
    pixels = load_photo(image, size=None)
    assert pixels.shape == (9, 12, 3)
    assert pixels.std() > 0


def test_photo_is_reduced_and_never_enlarged() -> None:
    image = Image.fromarray(gradient(300, 200))
    assert load_photo(image, size=150).shape == (100, 150, 3)
    assert load_photo(image, size=5000).shape == (200, 300, 3)
    np.testing.assert_array_equal(load_photo(image, size=5000), gradient(300, 200))
    with pytest.raises(ImageError, match="at least 1"):
        load_photo(image, size=0)


def test_scaled_decoding_stays_close_to_full_decoding() -> None:
    data = encoded(gradient(1600, 1200), "JPEG", quality=92)
    scaled = load_photo(data, size=256)
    full = Image.open(io.BytesIO(data)).convert("RGB").resize((256, 192), Image.Resampling.LANCZOS)
    smooth = np.abs(scaled.astype(int) - np.asarray(full).astype(int))[..., :2]
    assert scaled.shape == (192, 256, 3)
    assert smooth.mean() < 1.5


def test_scaled_decoding_keeps_the_box_in_place() -> None:
    data = encoded(gradient(1601, 1203), "JPEG", quality=95)
    pixels = load_photo(data, size=100, box=(800.0, 600.0, 1600.0, 1200.0))
    assert pixels.shape == (75, 100, 3)
    red, green = pixels[..., 0].astype(float), pixels[..., 1].astype(float)
    assert red[:, 0].mean() == pytest.approx(255 * 804 / 1600, abs=2)
    assert red[:, -1].mean() == pytest.approx(255 * 1596 / 1600, abs=2)
    assert green[0].mean() == pytest.approx(255 * 604 / 1202, abs=2)
    assert green[-1].mean() == pytest.approx(255 * 1196 / 1202, abs=2)


def test_a_sliver_of_a_photo_keeps_a_pixel() -> None:
    assert load_photo(Image.new("RGB", (4000, 3)), size=100).shape == (1, 100, 3)
    assert load_photo(Image.fromarray(gradient(384, 27)), size=1024).shape == (27, 384, 3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text.jpg", b"this is not a picture at all", "not an image in a known format"),
        ("empty.jpg", b"", "is empty"),
        ("header.jpg", b"\xff\xd8\xff\xe0", "known format|damaged"),
        ("half.png", encoded(gradient(64, 64), "PNG")[:200], "damaged or cut short"),
        ("half.webp", encoded(gradient(64, 64), "WEBP")[:60], "known format|damaged"),
        ("half.gif", encoded(gradient(64, 64), "GIF")[:40], "known format|damaged"),
        ("half.tif", encoded(gradient(64, 64), "TIFF")[:100], "known format|damaged"),
    ],
)
def test_damaged_files_give_one_sentence(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ImageError, match=message) as caught:
        load_photo(path, size=64)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_another_format_is_refused() -> None:
    with pytest.raises(ImageError, match="known format"):
        load_photo(encoded(gradient(8, 8), "PPM"), size=8)


def test_a_gigapixel_png_is_refused_before_decoding(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_claiming(50_000, 50_000))
    with pytest.raises(ImageLimitError, match=r"50000 x 50000 pixels, more than the limit"):
        load_photo(path, size=64)
    with pytest.raises(ImageLimitError, match="pixels"):
        load_benchmark(path, size=64)


def test_limits_count_bytes_and_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(gradient(20, 10), "PNG"))
    with pytest.raises(ImageLimitError, match="bytes"):
        load_photo(path, size=64, limits=Limits(max_bytes=10))
    with pytest.raises(ImageLimitError, match="20 x 10"):
        load_photo(path, size=64, limits=Limits(max_pixels=199))
    assert load_photo(path, size=64, limits=Limits(max_pixels=200)).shape == (10, 20, 3)


def test_what_is_no_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="does not exist"):
        load_photo(tmp_path / "none.jpg", size=64)
    with pytest.raises(ImageError, match="not a file"):
        load_photo(tmp_path, size=64)
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(ImageError, match="not a file"):
        load_photo(tmp_path / "pipe.jpg", size=64)
    with pytest.raises(ImageError, match="cannot be opened"):
        load_photo("nul\0byte.jpg", size=64)


def test_a_name_that_is_no_utf8_is_read_and_named(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path) + b"/caf\xe9.png"
    try:
        Path(os.fsdecode(raw)).write_bytes(encoded(gradient(20, 10), "PNG"))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert load_photo(os.fsdecode(raw), size=64).shape == (10, 20, 3)
    Path(os.fsdecode(raw)).write_bytes(b"x")
    with pytest.raises(ImageError) as caught:
        load_photo(os.fsdecode(raw), size=64)
    assert "caf\\xe9.png" in str(caught.value)
    str(caught.value).encode("utf-8")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_does_not_cost_the_picture() -> None:
    data = encoded(gradient(20, 10), "JPEG", exif=b"Exif\0\0MM\0*garbage that is no directory")
    assert load_photo(data, size=64).shape == (10, 20, 3)
    assert load_photo(oriented_jpeg(gradient(20, 10), 77), size=64).shape == (10, 20, 3)


@pytest.mark.parametrize("box", [(200.0, 10.0, 300.0, 20.0), (10.0, 5.0, 10.0, 9.0), (50.0, 5.0, 10.0, 9.0)])
def test_boxes_that_cannot_be_meant_are_refused(box: tuple[float, float, float, float]) -> None:
    with pytest.raises(BoxError, match=r"outside|inside out"):
        load_photo(Image.fromarray(gradient(100, 50)), size=64, box=box)


def test_a_box_over_the_edge_is_clipped() -> None:
    pixels = gradient(100, 50)
    cut = load_photo(Image.fromarray(pixels), size=None, box=(90.0, -20.0, 500.0, 10.0))
    np.testing.assert_array_equal(cut, pixels[:10, 90:])
