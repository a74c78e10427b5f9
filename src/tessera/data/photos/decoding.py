"""Opening picture files safely: which formats, how many bytes and pixels, and what each failure means to a person."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, UnidentifiedImageError

from tessera import errors
from tessera.data.photos.repetition import refuse_many_parts, refuse_many_scans
from tessera.errors import ImageError, ImageLimitError
from tessera.installation import add_command

# Tried in this order. HEIF is there only with the package pillow-heif, AVIF where Pillow was built with it.
SUFFIXES = {
    "JPEG": ".jpg",
    "PNG": ".png",
    "WEBP": ".webp",
    "TIFF": ".tif",
    "GIF": ".gif",
    "BMP": ".bmp",
    "AVIF": ".avif",
    "HEIF": ".heic",
}
FORMATS = tuple(SUFFIXES)

_ORIENTATION = 0x0112
# Pillow rotates these by itself while it decodes.
_ROTATED_BY_DECODER = {"TIFF", "HEIF"}
_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
# What may be white where a format does not say: floats from 0 to 1, and 8 or 16 bits in wider numbers.
_WHITES = (1.0, 255.0, 65535.0)


@dataclass(frozen=True)
class Limits:
    """What a picture may cost. Checked before anything is decoded: a small file can claim a gigapixel."""

    max_pixels: int = 200_000_000
    max_bytes: int = 512 * 1024 * 1024


DEFAULT_LIMITS = Limits()


@dataclass
class OpenedImage:
    """A picture whose header has been read and found within the limits; nothing is decoded yet."""

    image: Image.Image
    name: str
    orientation: int  # EXIF, 1 to 8; 1 where nothing is left to rotate
    owned: IO[bytes] | None

    @property
    def rotated_size(self) -> tuple[int, int]:
        width, height = self.image.size
        return (height, width) if self.orientation >= 5 else (width, height)

    @property
    def suffix(self) -> str:
        """What a file of this format ends in. A JPEG may hold several pictures, and Pillow calls it MPO then."""
        form = self.image.format or ""
        return SUFFIXES.get("JPEG" if form == "MPO" else form, "")

    def close(self) -> None:
        if self.owned is not None:
            self.image.close()
            self.owned.close()


def printable(source: object) -> str:
    """A name for messages: the path, where the picture has one."""
    return errors.printable(source) if isinstance(source, str | os.PathLike) else "the file"


def open_image(
    source: str | os.PathLike[str] | bytes | Image.Image, limits: Limits, *, rotate: bool = True
) -> OpenedImage:
    """Read the header of a picture and hold it against the limits."""
    name = printable(source)
    if isinstance(source, Image.Image):
        _check_pixels(name, source.size, limits)
        return OpenedImage(source, name, _orientation(source) if rotate else 1, None)
    file = io.BytesIO(source) if isinstance(source, bytes) else _open_file(source, name)
    try:
        size = len(source) if isinstance(source, bytes) else os.fstat(file.fileno()).st_size
        if size == 0:
            raise ImageError(f"{name} is empty (0 bytes). Copy the file again, or remove it.")
        if size > limits.max_bytes:
            raise ImageLimitError(
                f"{name} has {size:,} bytes, more than the limit of {limits.max_bytes:,}. Make it smaller."
            )
        with _reading(name):
            refuse_many_parts(file, name)
            image = _identify(file, name)
            _check_pixels(name, image.size, limits)
            if image.format in ("JPEG", "MPO"):
                refuse_many_scans(file, name, image.width * image.height, limits.max_pixels)
            orientation = _orientation(image) if rotate else 1
    except BaseException:
        file.close()
        raise
    return OpenedImage(image, name, orientation, file)


def to_rgb(opened: OpenedImage, *, tolerant: bool = False, plain: bool = False) -> Image.Image:
    """Decode to RGB.

    tolerant: take what could be read of a truncated file. It is decided here and not by Pillow's global switch, which
    would let truncated files through in every other thread too.
    plain: exactly Pillow's `convert("RGB")`. Otherwise greys of more than 8 bits are brought to 8, where Pillow clips
    them to white or black, and transparent pictures are laid on white, where Pillow shows whatever colour was hidden.
    """
    image = opened.image
    with _reading(opened.name):
        try:
            image.load()
        except OSError:
            if not tolerant or not isinstance(image, ImageFile.ImageFile):
                raise
            image = _load_truncated(image, opened)
        if plain:
            return image.convert("RGB")
        if image.mode.startswith("I;16"):
            wide = np.asarray(image)
            return Image.fromarray((wide >> 8).astype(np.uint8)).convert("RGB")
        if image.mode in ("F", "I"):
            return Image.fromarray(_to_bytes(np.asarray(image))).convert("RGB")
        if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or (image.mode == "P" and "transparency" in image.info):
            layer = image.convert("RGBA")
            ground = Image.new("RGBA", layer.size, "white")
            return Image.alpha_composite(ground, layer).convert("RGB")
        return image.convert("RGB")


def _to_bytes(greys: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Floats or 32-bit integers as 8 bits: white is the least of the usual whites that none of them exceeds."""
    finite = np.nan_to_num(greys.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    brightest = float(finite.max())
    white = next((white for white in _WHITES if brightest <= white), brightest)
    levels: npt.NDArray[np.uint8] = np.clip(finite * (255 / white) + 0.5, 0, 255).astype(np.uint8)
    return levels


def _load_truncated(image: ImageFile.ImageFile, opened: OpenedImage) -> Image.Image:
    """What there is of a truncated file, as Pillow's global switch would give it."""
    if image.format == "JPEG" and opened.owned is not None:
        # An end marker makes the decoder flush the rows that it holds back.
        opened.owned.seek(0)
        ended = _identify(io.BytesIO(opened.owned.read() + b"\xff\xd9"), opened.name)
        ended.load()
        return ended
    image.tile = []  # nothing more to decode: keep the rows that are there
    image.load()
    return image


def _open_file(path: str | os.PathLike[str], name: str) -> IO[bytes]:
    try:
        # Opening a named pipe would wait for ever, so ask first.
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  # Path refuses no name that os accepts, but costs
            raise ImageError(f"{name} is not a file. Give the path of an image.")
        return open(path, "rb")  # noqa: PTH123
    except FileNotFoundError:
        raise ImageError(f"{name} does not exist. Check the path.") from None
    except PermissionError:
        raise ImageError(f"{name} may not be read. Check its permissions.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ImageError(f"{name} cannot be opened: {reason}. Check the path.") from error


def _identify(file: IO[bytes], name: str) -> Image.Image:
    """Open with the formats of FORMATS only.

    `Image.open` would warn about, or refuse, large pictures by a global setting of Pillow before our own limits are
    asked; so its table of formats is gone through here.
    """
    _load_plugins()
    prefix = file.read(16)
    is_heif = prefix[4:8] == b"ftyp" and prefix[8:12] in _HEIF_BRANDS
    if is_heif:
        _admit_heif()
    for form in FORMATS:
        if form not in Image.OPEN:
            continue
        factory, accept = Image.OPEN[form]
        answer = accept(prefix) if accept is not None else True
        if isinstance(answer, str) or not answer:
            continue
        file.seek(0)
        with contextlib.suppress(SyntaxError, IndexError, TypeError, KeyError, EOFError):
            return factory(file, b"")
    if is_heif and "HEIF" not in Image.OPEN:
        raise ImageError(
            f"{name} is a HEIC picture, which needs a package that is not installed: {add_command('pillow-heif')}. "
            "Or convert it."
        )
    known = ", ".join(form for form in FORMATS if form in Image.OPEN)
    raise ImageError(f"{name} is not an image in a known format ({known}). Convert it, or remove it.")


@functools.cache
def _load_plugins() -> None:
    """What FORMATS need, and not the forty others that `Image.init` would load before the first picture is read."""
    Image.preinit()
    for plugin in ("WebPImagePlugin", "TiffImagePlugin", "AvifImagePlugin"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"PIL.{plugin}")


def _admit_heif() -> None:
    """Let Pillow read HEIF where the package for it is installed, which must be told to offer itself."""
    if "HEIF" not in Image.OPEN:
        with contextlib.suppress(ImportError):
            from pillow_heif import register_heif_opener

            register_heif_opener()


def _check_pixels(name: str, size: tuple[int, int], limits: Limits) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(f"{name} has no pixels ({width} x {height}).")
    if width * height > limits.max_pixels:
        raise ImageLimitError(
            f"{name} has {width} x {height} pixels, more than the limit of {limits.max_pixels:,}. Make it smaller."
        )


def _orientation(image: Image.Image) -> int:
    if image.format in _ROTATED_BY_DECODER:
        return 1
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # EXIF is free text from anywhere; a picture with a broken block is still a picture
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn whatever Pillow raises on a damaged file into one sentence."""
    try:
        yield
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageLimitError(f"{name} is too large to decode: {error}. Make it smaller.") from error
    except MemoryError as error:
        raise ImageLimitError(f"{name} needs more memory than there is. Make it smaller.") from error
    except UnidentifiedImageError as error:
        raise ImageError(f"{name} is not an image that can be read. Convert it, or remove it.") from error
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, ArithmeticError) as error:
        raise ImageError(f"{name} is damaged or cut short: {error}. Copy the file again, or remove it.") from error
    except Exception as error:  # struct.error, zlib.error and what else decoders raise
        raise ImageError(f"{name} is damaged: {type(error).__name__}: {error}. Copy the file again.") from error
