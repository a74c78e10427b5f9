"""What a small file can ask of a decoder many times over: counted before anything is decoded.

A progressive JPEG may repeat an empty scan of a few bytes a thousand times, and each goes over every pixel; a PNG or a
GIF may hold millions of chunks of no bytes. Limits on bytes and pixels stop neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from tessera.errors import ImageLimitError

MAX_SCANS = 10  # of a picture with as many pixels as the limits admit; one with fewer pixels may have more
MAX_PARTS = 65536  # an encoder writes some 8 KB a chunk: half a gigabyte
_PIECE_BYTES = 1 << 20
_PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN = 0xDA
_SCAN = b"\xff\xda"


def refuse_many_parts(file: IO[bytes], name: str) -> None:
    """Raise where a file's head, which is read before any limit can be asked, has parts without end."""
    file.seek(0)
    start = file.read(8)
    if start[:2] == b"\xff\xd8":
        parts = sum(1 for _ in _segments(file))
    elif start == b"\x89PNG\r\n\x1a\n":
        parts = count_chunks(file)
    elif start[:3] == b"GIF":
        parts = count_blocks(file)
    else:
        parts = 0
    file.seek(0)
    if parts > MAX_PARTS:
        raise ImageLimitError(f"{name} is made of more than {MAX_PARTS:,} parts. Save it anew.")


def refuse_many_scans(file: IO[bytes], name: str, pixels: int, max_pixels: int) -> None:
    """Raise for a JPEG whose scans would be gone over for longer than those of the largest picture admitted."""
    position = file.tell()
    scans = count_scans(file)
    file.seek(position)
    if scans * pixels > MAX_SCANS * max_pixels:
        raise ImageLimitError(
            f"{name} is a JPEG of {scans} scans over {pixels:,} pixels, which take too long to decode. Save it anew."
        )


def count_scans(file: IO[bytes]) -> int:
    """How often a decoder goes over the pixels of a JPEG: once, or in a progressive one as often as it has scans.

    The marker of a scan cannot occur in compressed data, but may by chance in a thumbnail or a colour profile: a few
    are counted too many. Only the head of a file with one scan is read.
    """
    if not _has_many_scans(file):
        return 1
    file.seek(0)
    count, last = 0, b""
    while piece := file.read(_PIECE_BYTES):
        count += piece.count(_SCAN) + (last == b"\xff" and piece[:1] == b"\xda")
        last = piece[-1:]
    return count


def _has_many_scans(file: IO[bytes]) -> bool:
    """Whether the first scan leaves anything for a second: it is progressive, or lacks some of the components."""
    components = 0
    for marker in _segments(file):
        if marker in _PROGRESSIVE:
            return True
        if marker in _FRAMES:
            components = file.read(6)[5:].ljust(1, b"\0")[0]
        if marker == _START_OF_SCAN:
            return file.read(1).ljust(1, b"\0")[0] < components
    return True  # not as it should be: count


def _segments(file: IO[bytes]) -> Iterator[int]:
    """The markers of a JPEG up to its first scan, one more than MAX_PARTS at most; `file` is then at their content."""
    position = 2
    for _ in range(MAX_PARTS + 1):
        file.seek(position)
        head = file.read(4)
        if len(head) < 4 or head[0] != 0xFF:
            return
        # A marker may have any number of bytes 0xFF before it.
        position += 1 if head[1] == 0xFF else 2 + int.from_bytes(head[2:], "big")
        yield head[1]
        if head[1] == _START_OF_SCAN:
            return


def count_chunks(file: IO[bytes]) -> int:
    """The chunks of a PNG, or one more than MAX_PARTS."""
    position, count = 8, 0
    while count <= MAX_PARTS:
        file.seek(position)
        head = file.read(8)
        if len(head) < 8 or head[4:] == b"IEND":
            break
        position += 12 + int.from_bytes(head[:4], "big")
        count += 1
    return count


def count_blocks(file: IO[bytes]) -> int:
    """The blocks of a GIF's extensions before its first picture, or one more than MAX_PARTS."""
    file.seek(10)
    flags = file.read(1).ljust(1, b"\0")[0]
    file.seek(13 + (3 * (2 << (flags & 7)) if flags & 0x80 else 0))
    count = 0
    while count <= MAX_PARTS and file.read(1) == b"!":
        file.read(1)
        while (size := file.read(1)) not in (b"", b"\0") and count <= MAX_PARTS:
            file.seek(size[0], 1)
            count += 1
        count += 1
    return count
