"""Videos that cannot be decoded: one sentence, and nothing from the decoder's own log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from pathlib import Path
from tessera.data.photos.video import read_frame, scene_frames
from tessera.errors import ImageError

for decode in (lambda path: read_frame(path, 1.0), lambda path: list(scene_frames(path))):
    try:
        decode(Path(sys.argv[1]))
    except ImageError as error:
        print(error)
"""


def test_a_decoder_says_nothing_of_its_own(tmp_path: Path) -> None:
    """In a process of its own: FFmpeg reads its level once, and writes past Python."""
    film = tmp_path / "bad.mp4"
    film.write_bytes(b"garbage")
    done = subprocess.run([sys.executable, "-c", PROGRAM, film], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == f"{film} could not be decoded as a video. Convert it, or leave it out.\n" * 2
