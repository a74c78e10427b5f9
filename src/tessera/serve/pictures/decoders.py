"""Uploads are decoded in processes of their own, which are killed when a picture takes too long or too much memory.

A decoder cannot be interrupted, and what strangers send may keep one busy for minutes or crash it. Here the service
loses a process, and starts another for the next upload. Pictures of the gallery are read in the service itself: they
were uploaded through here, or lie on this machine's disks.

A request is a line of JSON and the picture's bytes; the answer a line of JSON and the pixels.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from typing import IO, Any

import numpy as np

from tessera import errors
from tessera.data.images import Box, Limits, Photo, read_photo
from tessera.errors import ImageError, ImageLimitError, TesseraError

# Pixels in three forms of four channels at most, and what Python and its libraries reserve.
_PIXEL_BYTES, _OWN_BYTES = 24, 1 << 30
_READY = b"ready\n"


class DecoderPool:
    """As many processes as pictures are decoded at once; each is used again until it fails."""

    def __init__(self, limits: Limits, *, timeout_s: float) -> None:
        self.limits = limits
        self.timeout_s = timeout_s
        self.memory_bytes = _OWN_BYTES + _PIXEL_BYTES * limits.max_pixels
        self._idle: queue.LifoQueue[_Decoder] = queue.LifoQueue()
        self._closed = False

    def warm(self) -> None:
        """Have one process ready before the first upload."""
        if self._idle.empty():
            self._idle.put(self._start())

    def read_photo(self, content: bytes, *, size: int, box: Box | None = None) -> Photo:
        """As `tessera.data.images.read_photo`, within the time and the memory."""
        request = {"bytes": len(content), "size": size, "box": box}
        try:
            answer, pixels = self._ask(self._borrow(), request, content)
        except _DiedError:  # perhaps while it was idle: a picture that ends a second one is to blame itself
            try:
                answer, pixels = self._ask(self._start(), request, content)
            except _DiedError:
                raise ImageError("This picture cannot be decoded: it takes too much memory, or is damaged.") from None
        if "error" in answer:
            raise _error(answer["error"], answer["message"])
        rows = np.frombuffer(pixels, np.uint8).reshape(answer["shape"])
        return Photo(rows, answer["width"], answer["height"], answer["suffix"])

    def _ask(self, decoder: _Decoder, request: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        watch = threading.Timer(self.timeout_s, decoder.stop)
        watch.daemon = True
        watch.start()
        try:
            answer = decoder.ask(request, content)
        except (OSError, ValueError) as error:  # it has died: its pipe is broken, or its answer cut short
            decoder.kill()
            if decoder.was_stopped:
                raise ImageLimitError(f"This picture takes more than {self.timeout_s:g} s to decode.") from None
            raise _DiedError from error
        finally:
            watch.cancel()
        self._idle.put(decoder)
        if self._closed:
            self.close()
        return answer

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().kill()

    def _borrow(self) -> _Decoder:
        with contextlib.suppress(queue.Empty):
            while True:
                decoder = self._idle.get_nowait()
                if decoder.is_alive:
                    return decoder
                decoder.kill()
        return self._start()

    def _start(self) -> _Decoder:
        return _Decoder(self.limits, self.memory_bytes)


class _DiedError(Exception):
    pass


class _Decoder:
    """One such process, from this side. Its standard input ends with this process, and it with that."""

    def __init__(self, limits: Limits, memory_bytes: int) -> None:
        numbers = (limits.max_pixels, limits.max_bytes, memory_bytes)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tessera.serve.pictures.decoders", *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.was_stopped = False
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        if self._answers.readline() != _READY:
            self.kill()
            raise ImageError("Uploads cannot be decoded: the process that does it could not be started.")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        self._requests.write(json.dumps(request).encode() + b"\n")
        self._requests.write(content)
        self._requests.flush()
        answer = json.loads(self._answers.readline())
        pixels = self._answers.read(answer.get("bytes", 0))
        if len(pixels) != answer.get("bytes", 0):
            raise ValueError("cut short")
        return answer, pixels

    def stop(self) -> None:
        """From another thread, while somebody waits for the answer: who meets its end."""
        self.was_stopped = True
        self._process.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(OSError, ValueError):
                pipe.close()


def _error(kind: str, message: str) -> TesseraError:
    """An error of the other process, if it is one that decoding may give."""
    known = getattr(errors, kind, None) if kind in errors.__all__ else None
    return known(message) if isinstance(known, type) and issubclass(known, TesseraError) else ImageError(message)


def serve_requests(requests: IO[bytes], answers: IO[bytes], limits: Limits) -> None:
    """The other side: decode until there is nothing more to read."""
    answers.write(_READY)
    answers.flush()
    while line := requests.readline():
        request = json.loads(line)
        content = requests.read(request["bytes"])
        pixels = b""
        try:
            photo = read_photo(
                content, size=request["size"], box=request["box"] and tuple(request["box"]), limits=limits
            )
            pixels = photo.pixels.tobytes()
            answer = {
                "bytes": len(pixels),
                "shape": photo.pixels.shape,
                "width": photo.width,
                "height": photo.height,
                "suffix": photo.suffix,
            }
        except TesseraError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.write(pixels)
        answers.flush()


def _limit_memory(memory_bytes: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    admitted = Limits(max_pixels=int(sys.argv[1]), max_bytes=int(sys.argv[2]))
    _limit_memory(int(sys.argv[3]))
    serve_requests(sys.stdin.buffer, sys.stdout.buffer, admitted)
