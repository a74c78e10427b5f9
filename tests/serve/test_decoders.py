"""Uploads that would hold up everybody: refused before they are decoded, or stopped while they are."""

from __future__ import annotations

import io
import os
import signal
import struct
import time
import zlib

import numpy as np
import pytest
from PIL import Image

from tessera.data.images import Limits, read_photo
from tessera.data.photos.repetition import MAX_PARTS, count_scans
from tessera.errors import BoxError, ImageError, ImageLimitError
from tessera.serve.pictures.decoders import DecoderPool
from tessera.serve.settings import Settings

LIMITS = Limits(max_pixels=100_000_000, max_bytes=32 << 20)


def with_scans(width, height, scans):
    """A progressive JPEG whose last scan, a few bytes, is there many times."""
    buffer = io.BytesIO()
    Image.new("L", (width, height), 128).save(buffer, "JPEG", progressive=True)
    content = buffer.getvalue()
    end, last = content.rindex(b"\xff\xd9"), content.rindex(b"\xff\xda")
    scan = content[content.rindex(b"\xff\xc4", 0, last) : end]
    return content[:end] + scan * scans + content[end:]


def chunk(kind, content=b""):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_of_chunks(count, kind=b"IDAT", content=b"", side=8):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress(bytes(8 * 25)))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(kind, content) * count + rows + chunk(b"IEND")


def gif_of_blocks(count):
    buffer = io.BytesIO()
    Image.new("P", (8, 8)).save(buffer, "GIF")
    content = buffer.getvalue()
    start = 13 + (3 * (2 << (content[10] & 7)) if content[10] & 0x80 else 0)
    return content[:start] + b"\x21\xfe" + b"\x01a" * count + b"\0" + content[start:]


def small_jpeg(**options):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(
        buffer, "JPEG", **options
    )
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        with_scans(2000, 2000, 900),
        png_of_chunks(MAX_PARTS),
        png_of_chunks(MAX_PARTS, b"tEXt", b"a\0b"),
        gif_of_blocks(MAX_PARTS),
        b"\xff\xd8" + b"\xff\xe0\x00\x02" * MAX_PARTS + small_jpeg()[2:],
        b"\xff\xd8" + b"\xff" * (MAX_PARTS + 1) + small_jpeg()[2:],
    ],
    ids=["scans", "png", "png text", "gif", "jpeg segments", "jpeg fill bytes"],
)
def test_what_repeats_itself_without_end_is_refused_before_it_is_decoded(content, tmp_path):
    (tmp_path / "photo").write_bytes(content)
    for source in (content, tmp_path / "photo"):
        started = time.process_time()  # of this process alone: how busy the machine is does not count
        with pytest.raises(ImageLimitError, match="Save it anew"):
            read_photo(source, size=64, limits=LIMITS)
        assert time.process_time() - started < 2


def test_pictures_as_encoders_make_them_pass():
    assert count_scans(io.BytesIO(small_jpeg())) == 1
    assert count_scans(io.BytesIO(small_jpeg(progressive=True))) == 10
    for content in (small_jpeg(progressive=True), with_scans(40, 30, 200), png_of_chunks(1000), gif_of_blocks(1000)):
        read_photo(content, size=64, limits=LIMITS)
    head = small_jpeg()
    scans_apart = head.replace(b"\xff\xda\x00\x0c\x03", b"\xff\xda\x00\x08\x01", 1) * 2  # lacks two components
    assert count_scans(io.BytesIO(scans_apart)) == 2


@pytest.fixture
def pool():
    made = DecoderPool(LIMITS, timeout_s=60)
    yield made
    made.close()


def test_another_process_reads_what_this_one_would(pool, scenes_dir):
    for name, box in (("scene03.jpg", None), ("scene04.jpg", (10, 10, 60.5, 90))):
        content = (scenes_dir / name).read_bytes()
        here, there = read_photo(content, size=64, box=box), pool.read_photo(content, size=64, box=box)
        np.testing.assert_array_equal(there.pixels, here.pixels)
        assert (there.width, there.height, there.suffix) == (here.width, here.height, ".jpg")
    with pytest.raises(ImageError, match="not an image in a known format"):
        pool.read_photo(b"no picture", size=64)
    with pytest.raises(BoxError, match="outside"):
        pool.read_photo(content, size=64, box=(1000, 1000, 1001, 1001))
    with pytest.raises(ImageLimitError, match="limit"):
        pool.read_photo(png_of_chunks(1, side=60000), size=64)
    assert pool.read_photo(content, size=64).pixels.shape  # and goes on


def test_a_picture_that_takes_too_long_is_stopped_and_the_next_is_read(pool, scenes_dir):
    pool.warm()
    slow = with_scans(3000, 3000, 60)
    read_photo(slow, size=64, limits=LIMITS)  # it can be decoded, in some tenths of a second
    pool.timeout_s = 0.01
    with pytest.raises(ImageLimitError, match=r"0\.01 s"):
        pool.read_photo(slow, size=64)
    pool.timeout_s = 60
    assert pool.read_photo((scenes_dir / "scene03.jpg").read_bytes(), size=64).suffix == ".jpg"


def test_a_process_that_dies_is_replaced(pool, scenes_dir):
    content = (scenes_dir / "scene03.jpg").read_bytes()
    pool.read_photo(content, size=64)
    idle = pool._idle.get_nowait()
    os.kill(idle._process.pid, signal.SIGKILL)
    pool._idle.put(idle)
    assert pool.read_photo(content, size=64).suffix == ".jpg"


def test_a_picture_that_takes_too_much_memory_is_an_error():
    large = io.BytesIO()
    Image.new("1", (20000, 5000)).save(large, "PNG")
    starved = DecoderPool(Limits(max_pixels=120_000_000, max_bytes=32 << 20), timeout_s=60)
    starved.memory_bytes = 450 << 20
    try:
        with pytest.raises(ImageError, match="memory"):
            starved.read_photo(large.getvalue(), size=64)
    finally:
        starved.close()


def test_one_slow_upload_does_not_hold_up_the_others(running, served_gallery, picture, check_problem):
    import httpx

    settings = Settings(served_gallery, threads=1, timeout_s=60, decode_timeout_s=1)
    slow = {"file": ("slow.jpg", with_scans(3000, 3000, 100), "image/jpeg")}
    with running(settings) as address, httpx.Client(base_url=address, timeout=280) as client:
        check_problem(client.post("/api/search", files={"file": ("x.jpg", with_scans(2000, 2000, 900))}), 413)
        assert client.post("/api/search", files=slow).status_code in (200, 413)  # by the machine's speed
        assert client.post("/api/search", files=picture()).status_code == 200
