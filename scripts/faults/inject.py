"""Attack a gallery: kills, failing calls, power cuts, damaged and hostile files, each case from its own seed.

python scripts/faults/inject.py --cases 1000 --seed 0            the whole run: a line a kind, and each failure's seed
python scripts/faults/inject.py --cases 1 --seed 417             one case again, by the seed that was printed

After each case: what was acknowledged is there exactly once, what was removed is gone, `check --repair` makes the
gallery sound, the next run goes on, and every picture is found by itself. An error must be a TesseraError.

Needs gcc (shim.c is preloaded) and the packages of the extra `dev`.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from acts import ACTS, CATALOG, LOGGED, MANY_PROCESSES, Act, Acts, Yard, spoil_state  # noqa: E402
from disk import Disk, read_changes  # noqa: E402
from verify import admit_tessera_errors, in_child, verify, verify_old  # noqa: E402

PRELOADED = "TESSERA_FAULTS_SHIM"
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS)
DAMAGE = ("flip", "cut", "sector", "hostile", "log")
MEMORY = 8 << 30  # bytes of addresses; what a damaged file asks for must not be taken
FORGET_SYNCS = False
BOMB = b"cos\nsystem\n(S'touch %s'\ntR."


def preload() -> ctypes.CDLL:
    """This program again, with the shim before the system's library."""
    if PRELOADED not in os.environ:
        library = Path(tempfile.mkdtemp(prefix="tessera-faults-")) / "shim.so"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, HERE / "shim.c", "-ldl"], check=True)
        settings = {"LD_PRELOAD": str(library), PRELOADED: str(library), "ORT_DISABLE_TELEMETRY": "1"}
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | settings | threads)
    shim = ctypes.CDLL(os.environ[PRELOADED])
    shim.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    shim.fault_count.restype = ctypes.c_long
    shim.fault_mark.argtypes = [ctypes.c_int64]
    return shim


class Case:
    def __init__(self, seed: int, yard: Yard, shim: ctypes.CDLL) -> None:
        self.seed, self.yard, self.shim = seed, yard, shim
        self.numbers = random.Random(seed)
        kinds = ["kill", "kill", "kill", "error", "error", "power", "power", "flip", "flip", "cut", "sector", "hostile"]
        kinds.append("log")
        self.kind = self.numbers.choice(kinds)
        acts = ACTS if self.kind == "power" else (*ACTS, *MANY_PROCESSES)
        self.act_name = "damage" if self.kind in DAMAGE else self.numbers.choice(acts)
        self.folder = yard.folder / "cases" / str(seed)
        self.told = self.folder.with_suffix(".told")

    def run(self) -> str | None:
        """Why the case failed, or None."""
        is_old = self.act_name == "upgrade"
        original = self.yard.killed if self.kind == "log" else self.yard.gallery
        shutil.copytree(self.yard.old / "gallery.tessera" if is_old else original, self.folder)
        if self.act_name == "repair":
            spoil_state(self.folder)
        try:
            if self.kind == "log":
                return self._damage_log()
            if self.kind in DAMAGE:
                return self._damage()
            act: Act = getattr(Acts(self.yard, random.Random(self.seed)), self.act_name)
            failed = self._power(act) if self.kind == "power" else self._interrupt(act)
            look = verify_old if is_old else partial(verify, told=self._told())
            return failed or in_child(lambda: look(self.folder, self.yard))
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.told.unlink(missing_ok=True)

    def _interrupt(self, act: Act) -> str | None:
        """Let the n-th change fail, or be the last."""
        n = self.numbers.randint(1, self.numbers.choice([20, 60, 200]))
        action = self.numbers.choice([2, 3]) if self.kind == "kill" else self.numbers.choice([1, 4])
        error = self.numbers.choice(ERRORS)

        def attempt() -> str | None:
            self.shim.fault_arm(str(self.folder).encode(), n, action, error)
            return admit_tessera_errors(lambda: act(self.folder, self._tell))

        return in_child(attempt, may_be_killed=self.kind == "kill")

    def _power(self, act: Act) -> str | None:
        """Record a whole run, then cut the power at a moment of it."""
        recording = self.folder.with_suffix(".recording")
        disk = Disk(self.folder)
        told: list[tuple[str, str]] = []

        def attempt() -> str | None:
            handle = os.open(recording, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self.shim.fault_arm(str(self.folder).encode(), 0, 0, 0)
            self.shim.fault_record(handle)

            def tell(what: str, name: str) -> None:
                told.append((what, name))
                self.shim.fault_mark(len(told))
                self._tell(what, name)

            return admit_tessera_errors(lambda: act(self.folder, tell))

        failed = in_child(attempt)
        if failed:
            return failed
        changes = list(read_changes(recording.read_bytes()))
        recording.unlink()
        kept = changes[: self.numbers.randint(0, len(changes))]
        for change in kept:
            if change.kind != "S" or not FORGET_SYNCS:
                disk.apply(change)
        acknowledged = max((change.number for change in kept if change.kind == "M"), default=0)
        lines = self.told.read_text().splitlines() if self.told.exists() else []
        begun = [f"any {line.split()[1]}" for line in lines[acknowledged : acknowledged + 2]]
        self.told.write_text("\n".join([*lines[:acknowledged], *begun]))
        shutil.rmtree(self.folder)
        disk.cut_power(self.folder, self.numbers)
        return None

    def _damage(self) -> str | None:
        """Turn one bit of one file, overwrite a sector, cut its end off, or put something else in its place."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file() and path.stat().st_size > 1)
        path = self.numbers.choice([*files, *[self.folder / CATALOG] * len(files)])
        content = bytearray(path.read_bytes())
        at = self.numbers.randrange(1, len(content))
        marker = self.folder.with_suffix(".marker")
        if self.kind == "cut":
            del content[at:]
        elif self.kind == "flip":
            content[at] ^= 1 << self.numbers.randrange(8)
        elif self.kind == "sector":
            start = at // 512 * 512
            garbage = self.numbers.choice([bytes(512), self.numbers.randbytes(512)])
            content[start : start + 512] = garbage[: len(content[start : start + 512])]
        else:
            bomb = BOMB % str(marker).encode()
            absurd = (
                b'{"segments":[{"name":"../..","images":1e999,"last_id":' + b"9" * 400 + b'}],"files":{"a":[[[[]]]]}}'
            )
            large = content[:16] + b"\xff" * 64 + content[80:]
            garbage = self.numbers.randbytes(4000)
            hostile = [bomb, absurd, bytes(large), b"", b"\0", b"[" * 100_000, garbage]
            content = bytearray(self.numbers.choice(hostile))
        path.write_bytes(content)

        def look() -> str | None:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            said = verify(self.folder, self.yard, {}, damaged=True)
            return said or ("code in a file was run" if marker.exists() else None)

        said = in_child(look)
        is_replaced = self.kind == "hostile" and path.name == CATALOG
        return None if is_replaced and said and said.startswith("Gallery") else said and f"{path.name} at {at}: {said}"

    def _damage_log(self) -> str | None:
        """Damage the log that a killed writer left, or delete it: what it held is there, or its loss is said."""
        path = self.folder / f"{CATALOG}-wal"
        content = bytearray(path.read_bytes())
        at = self.numbers.randrange(len(content))
        how = self.numbers.choice(["flip", "flip", "cut", "sector", "delete"])
        if how == "flip":
            content[at] ^= 1 << self.numbers.randrange(8)
        elif how == "sector":
            content[at // 512 * 512 : at // 512 * 512 + 512] = self.numbers.randbytes(512)
        else:
            del content[at if how == "cut" else 0 :]
        path.unlink()
        if content:
            path.write_bytes(content)
        told = dict.fromkeys(LOGGED, "there")
        said = in_child(lambda: verify(self.folder, self.yard, told, damaged=True, in_log=True))
        return said and f"{path.name}, {how} at {at}: {said}"

    def _tell(self, what: str, name: str) -> None:
        with self.told.open("a") as file:
            file.write(f"{what} {name}\n")

    def _told(self) -> dict[str, str]:
        """The last that was said of each name."""
        lines = self.told.read_text().splitlines() if self.told.exists() else []
        return {name: what for what, name in (line.split() for line in lines if line)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others follow")
    parser.add_argument("--forget-syncs", action="store_true", help="plant a fault: power cuts must then fail")
    options = parser.parse_args()
    global FORGET_SYNCS  # noqa: PLW0603
    FORGET_SYNCS = options.forget_syncs
    shim = preload()
    import tessera.extract.extractor
    import tessera.gallery.gallery
    import tessera.gallery.search.query
    import tessera.serve.pictures.uploads  # noqa: F401 - all before the first fork
    from tessera.gallery.engines import faiss_engine, postings_index

    faiss_engine.SAVE_AFTER = postings_index.SAVE_AFTER = 2  # so that files are written and merged all the time
    started, counts, failures = time.monotonic(), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="tessera-faults-") as name:
        yard = Yard(Path(name))
        failed = in_child(lambda: admit_tessera_errors(yard.make, admitted=False))
        if failed := failed or in_child(yard.kill_a_writer, may_be_killed=True):
            print(failed)
            return 2
        for seed in range(options.seed, options.seed + options.cases):
            case = Case(seed, yard, shim)
            failed = case.run()
            counts[f"{case.kind} {case.act_name}"] += 1
            if failed:
                failures += 1
                print(f"FAILED seed {seed} ({case.kind}, {case.act_name}): {failed}", flush=True)
    for kind, count in sorted(counts.items()):
        print(f"{count:5} {kind}")
    print(f"{options.cases} cases, {failures} failed, {time.monotonic() - started:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
