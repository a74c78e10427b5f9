from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tessera import storage
from tessera.errors import StorageError
from tessera.serve.pictures.uploads import discard
from tessera.storage import atomic_path, hash_file, open_database, write_atomically


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    target = tmp_path / "index.bin"
    write_atomically(target, b"old")
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError("stop")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_is_a_sentence(tmp_path):
    with pytest.raises(StorageError, match="disk is full"), atomic_path(tmp_path / "index.bin"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_a_device_stays_a_device_and_a_link_a_link(tmp_path):
    """`--csv /dev/null`, by the superuser of a container, would make a file of it for everybody."""
    os.mkfifo(tmp_path / "device")
    (tmp_path / "link").symlink_to(tmp_path / "device")
    for target in (tmp_path / "device", tmp_path / "link", tmp_path):
        with pytest.raises(StorageError, match="is no file that could be replaced"):
            write_atomically(target, b"new")
    assert (tmp_path / "device").is_fifo()
    (tmp_path / "other").symlink_to("file")
    for content in (b"first", b"second"):
        write_atomically(tmp_path / "other", content)
        assert (tmp_path / "file").read_bytes() == content and (tmp_path / "other").is_symlink()


def test_a_kill_in_the_middle_of_a_write_leaves_the_old_file_whole(tmp_path):
    target = tmp_path / "index.bin"
    write_atomically(target, b"old" * 1000)
    script = (
        "import os, signal, sys; from pathlib import Path; from tessera.storage import atomic_path\n"
        "with atomic_path(Path(sys.argv[1])) as t:\n"
        "    t.write_bytes(b'new'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert target.read_bytes() == b"old" * 1000


def test_hash_is_of_content(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"")
    assert hash_file(tmp_path / "a") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


TABLE = "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY)"


def test_a_database_keeps_what_it_has_and_is_set_aside_only_when_damaged(tmp_path: Path):
    path = tmp_path / "deep" / "cache.sqlite"
    for key in ("a", "b"):
        database = open_database(path, TABLE)
        database.execute("INSERT INTO entries VALUES (?)", (key,))
        database.commit()
        assert len(database.execute("SELECT * FROM entries").fetchall()) == ("a", "b").index(key) + 1
        database.close()
    path.write_bytes(b"this was a database" * 100)
    path.with_name("cache.sqlite-wal").write_bytes(b"and this its log")
    database = open_database(path, TABLE)
    assert database.execute("SELECT * FROM entries").fetchall() == []
    database.close()
    assert path.with_suffix(".damaged").read_bytes().startswith(b"this was")


def test_a_database_that_is_busy_or_out_of_reach_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "cache.sqlite"
    open_database(path, TABLE).close()
    connect = sqlite3.connect
    monkeypatch.setattr(storage, "_BUSY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(sqlite3, "connect", lambda where, **options: connect(where, **options | {"timeout": 0}))
    holder = connect(path)
    holder.execute("PRAGMA locking_mode=EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StorageError, match="cannot be opened"):
        open_database(path, TABLE)
    holder.close()
    with pytest.raises(StorageError):
        open_database(path / "below" / "cache.sqlite", TABLE)
    open_database(path, TABLE).close()
    assert not path.with_suffix(".damaged").exists()


def test_the_name_of_a_new_folder_is_synced_into_its_parent(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(storage, "sync_folder", synced.append)
    storage.write_atomically(tmp_path / "a" / "b" / "file", b"content")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    abandoned, fresh = tmp_path / ".file.abcd.tmp", tmp_path / ".file.efgh.tmp"
    for path in (abandoned, fresh):
        path.write_bytes(b"half")
    os.utime(abandoned, (0, 0))
    with storage.atomic_path(tmp_path / "other") as mine:
        mine.write_bytes(b"x")
        os.utime(mine, (0, 0))
        storage.write_atomically(tmp_path / "file", b"content")  # while another is still being written
        assert mine.exists()
    assert not abandoned.exists()
    assert fresh.exists()  # it may be somebody's that was made this moment


def test_a_file_that_cannot_be_removed_is_no_traceback(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        storage.write_atomically(tmp_path / "file", b"content")
        discard(tmp_path / "file")
        with pytest.raises(StorageError), storage.atomic_path(tmp_path / "other"):
            raise OSError(5, "Input/output error")
    assert (tmp_path / "file").read_bytes() == b"content"
