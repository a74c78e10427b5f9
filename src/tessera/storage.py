"""Files that are either whole or not there: write to a temporary name, sync, rename, sync the folder; caches too."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tessera.errors import StorageError

_CHUNK_BYTES = 1 << 20
_ABANDONED_S = 60  # between a temporary file's making and its locking there is a moment
_BUSY_TIMEOUT_S = 60.0  # for another process that is writing the same file


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; when the block ends well, it takes the target's place durably.

    A crash at any moment leaves the old file or the new one, never a part of either. A symbolic link stays, and what it
    leads to is replaced. What is no file, as /dev/null, is an error: it would be a file from then on.
    """
    target = Path(os.path.realpath(target))
    if target.exists() and not target.is_file():
        raise StorageError(f"{target} is no file that could be replaced. Name a file.")
    try:
        make_folder(target.parent)
        remove_abandoned(target.parent)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise storage_error(error, target) from error
    temporary = Path(name)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # as long as this process lives: see `remove_abandoned`
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise storage_error(error, target) from error
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each of which survives a power cut: its name is synced into its parent."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of `atomic_path` whose process was killed: their locks are free."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > _ABANDONED_S:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def write_atomically(target: Path, content: bytes) -> None:
    """Replace `target` by `content`, durably."""
    with atomic_path(target) as temporary:
        temporary.write_bytes(content)


def move_file(origin: Path, target: Path) -> None:
    """Give a file another name, on another disk too. A name that is taken is an error; the file is always somewhere."""
    try:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        try:
            origin.rename(target)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        with atomic_path(target) as temporary:
            shutil.copyfile(origin, temporary)
        shutil.copystat(origin, target)
        origin.unlink()
    except OSError as error:
        raise storage_error(error, target) from error


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut (a no-op where folders cannot be opened)."""
    with contextlib.suppress(PermissionError, IsADirectoryError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def open_database(path: Path, table: str) -> sqlite3.Connection:
    """Open a SQLite file whose content can be made again, or make it with one table (a CREATE TABLE IF NOT EXISTS).

    A damaged file is set aside under the name `.damaged`. One that is busy or may not be opened is not damaged: that is
    an error.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _open_table(path, table)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
        set_aside(path)
        return _open_table(path, table)
    except sqlite3.DatabaseError as error:
        raise StorageError(f"{path} cannot be opened ({error}). Check its permissions and the space left.") from error
    except OSError as error:
        raise storage_error(error, path) from error


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite speaks of what is in the file, rather than of who uses it or of the disk."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def set_aside(path: Path) -> Path:
    """Give a damaged SQLite file, whose content can be made again, the name `.damaged`."""
    aside = path.with_suffix(".damaged")
    path.replace(aside)
    for log in ("-wal", "-shm"):
        path.with_name(path.name + log).unlink(missing_ok=True)
    return aside


def _open_table(path: Path, table: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
    try:
        _use_log(database)
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute(table)
        database.commit()
    except sqlite3.Error:
        database.close()
        raise
    return database


def _use_log(database: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait for another process that does the same to a new file."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def hash_file(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def storage_error(error: OSError, path: Path) -> StorageError:
    """Say what a failed write means to a person."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"The disk is full: {path} could not be written. Free some space and run the command again; "
            "nothing that was already stored is lost."
        )
    return StorageError(f"{path} could not be written: {error.strerror or error}. Check the permissions of its folder.")


def parse_json(text: str | bytes) -> Any:
    """What a JSON of a file says; ValueError where it cannot be read, one that is nested too deeply included."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
