"""One writer a gallery, across processes and across threads; readers need no lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tessera.errors import GalleryLockedError
from tessera.storage import storage_error

LOCK_NAME = "lock"


@contextlib.contextmanager
def writer_lock(gallery_dir: Path) -> Iterator[None]:
    """Hold the writer's lock of a gallery, or say which process does.

    The kernel frees the lock when its holder dies, so a killed run leaves nothing to clean up; the file itself stays,
    because unlinking a lock file lets two holders in.
    """
    lock_path = gallery_dir / LOCK_NAME
    try:
        handle = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise storage_error(error, lock_path) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GalleryLockedError(_locked_message(handle, gallery_dir)) from None
        # A full disk must not stop a writer here: the id only serves another process's message.
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def _locked_message(handle: int, gallery_dir: Path) -> str:
    holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
    if holder == str(os.getpid()):
        who = f"another part of this process (pid {holder})"
    else:
        who = f"another process (pid {holder or 'not known'})"
    return f"{gallery_dir} is being written by {who}. Wait until it has finished, then try again; searching goes on."
