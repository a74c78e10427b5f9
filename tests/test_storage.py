from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.errors import StorageError
from tessera.storage import atomic_path, hash_file, write_atomically


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
