"""Attack a gallery: kills, failing system calls, power cuts, flipped bits and cut tails, each case from its own seed.

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
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
PRELOADED = "TESSERA_FAULTS_SHIM"
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS)
CATALOG = "catalog.sqlite"
FORGET_SYNCS = False
Act = Callable[[Path, Callable[[str, str], None]], None]


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


class Yard:
    """Where the cases are: pictures, bundles and galleries to copy, made once in a process of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.photos, self.gallery, self.large = folder / "photos", folder / "gallery", folder / "large"
        self.bundle, self.other = folder / "bundle", folder / "other"

    def make(self) -> None:
        sys.path.insert(0, str(HERE.parents[1] / "tests"))
        import tessera

        tests = importlib.import_module("conftest")
        tests.make_small_bundle(self.bundle, seed=0, dim=16)
        tests.make_small_bundle(self.other, seed=1, dim=24)
        for seed in range(12):
            tests.age(tests.paint(self.photos / f"photo{seed:02}.png", seed))
        with tessera.Gallery(self.gallery, self.bundle) as gallery:
            for seed in range(8):
                gallery.index(self.photos / f"photo{seed:02}.png", metadata={"seed": seed})


class Acts:
    """What is interrupted. Each tells what it has acknowledged: ("there", name), ("gone", name) or ("any", name)."""

    def __init__(self, yard: Yard, numbers: random.Random) -> None:
        self.yard = yard
        self.order = numbers.sample(range(12), 12)

    def index(self, folder: Path, tell: Callable[[str, str], None]) -> None:
        import tessera

        with tessera.Gallery(folder) as gallery:
            for number in self.order:
                name = f"photo{number:02}.png"
                gallery.index(self.yard.photos / name)
                tell("there", name)

    def remove(self, folder: Path, tell: Callable[[str, str], None]) -> None:
        import tessera

        with tessera.Gallery(folder) as gallery:
            for number in [number for number in self.order if number < 8][:4]:
                name = f"photo{number:02}.png"
                tell("any", name)
                gallery.remove(self.yard.photos / name)
                tell("gone", name)

    def rebuild(self, folder: Path, tell: Callable[[str, str], None]) -> None:
        import tessera

        with tessera.Gallery(folder, self.yard.other) as gallery:
            gallery.index(rebuild=True)

    def repair(self, folder: Path, tell: Callable[[str, str], None]) -> None:
        from tessera.gallery.check import check_catalog_file

        check_catalog_file(folder, repair=True)

    def reindex(self, folder: Path, tell: Callable[[str, str], None]) -> None:
        """The index file written anew at every change."""
        import tessera

        with tessera.Gallery(folder) as gallery:
            for number in self.order[:4]:
                gallery.index(self.yard.photos / f"photo{number:02}.png", rebuild=True)
                tell("there", f"photo{number:02}.png")

    def upload(self, folder: Path, tell: Callable[[str, str], None]) -> None:
        import tessera
        from tessera.serve import uploads
        from tessera.storage import write_atomically

        with tessera.Gallery(folder) as gallery:
            for number in self.order[:4]:
                content = (self.yard.photos / f"photo{number:02}.png").read_bytes() + b"uploaded"
                with gallery.writing():
                    target = uploads.place_for(content, f"upload{number:02}", ".png", folder)
                    write_atomically(target, content)
                    gallery.index_file(target)
                tell("there", target.name)


def spoil_state(folder: Path) -> None:
    """What a repair is needed for."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(folder / CATALOG)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE images SET state = 'oj' WHERE id = 3")
        connection.commit()


class Case:
    def __init__(self, seed: int, yard: Yard, shim: ctypes.CDLL) -> None:
        self.seed, self.yard, self.shim = seed, yard, shim
        self.numbers = random.Random(seed)
        self.kind = self.numbers.choice(["kill", "kill", "error", "error", "power", "flip", "flip", "cut"])
        names = ["index", "remove", "rebuild", "repair", "reindex", "upload"]
        self.act_name = "damage" if self.kind in ("flip", "cut") else self.numbers.choice(names)
        self.folder = yard.folder / "cases" / str(seed)
        self.told = self.folder.with_suffix(".told")

    def run(self) -> str | None:
        """Why the case failed, or None."""
        shutil.copytree(self.yard.gallery, self.folder)
        if self.act_name == "repair":
            spoil_state(self.folder)
        try:
            if self.kind in ("flip", "cut"):
                self._damage()
                return in_child(lambda: verify(self.folder, self.yard, {}, damaged=True))
            act: Act = getattr(Acts(self.yard, random.Random(self.seed)), self.act_name)
            failed = self._power(act) if self.kind == "power" else self._interrupt(act)
            return failed or in_child(lambda: verify(self.folder, self.yard, self._told()))
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
        sys.path.insert(0, str(HERE))
        from disk import Disk, read_changes

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

    def _damage(self) -> None:
        """Turn one bit of one file, or cut its end off."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file() and path.stat().st_size > 1)
        path = self.numbers.choice([*files, *[self.folder / CATALOG] * len(files)])
        content = bytearray(path.read_bytes())
        if self.kind == "cut":
            del content[self.numbers.randrange(1, len(content)) :]
        else:
            content[self.numbers.randrange(len(content))] ^= 1 << self.numbers.randrange(8)
        path.write_bytes(content)

    def _tell(self, what: str, name: str) -> None:
        with self.told.open("a") as file:
            file.write(f"{what} {name}\n")

    def _told(self) -> dict[str, str]:
        """The last that was said of each name."""
        lines = self.told.read_text().splitlines() if self.told.exists() else []
        return {name: what for what, name in (line.split() for line in lines if line)}


def verify(folder: Path, yard: Yard, told: dict[str, str], *, damaged: bool = False) -> str | None:
    """Why the gallery is not as it should be, or None. damaged: it may have lost rows, but must say so."""
    import tessera
    from tessera.errors import GalleryDamagedError
    from tessera.gallery.check import check_catalog_file

    def look() -> str | None:
        try:
            findings = check_catalog_file(folder, repair=True)
        except GalleryDamagedError as error:
            return None if damaged else str(error)
        with tessera.Gallery(folder) as gallery:
            model = gallery.stats()["model"]
        bundle = yard.other if model == str(yard.other) else yard.bundle
        with tessera.Gallery(folder, bundle) as gallery:
            report = gallery.check(repair=True)
            if not report.ok:
                return f"not repaired: {[finding.message for finding in report.findings]}"
            if not gallery.check().ok:
                return f"not sound after a repair: {[finding.message for finding in gallery.check().findings]}"
            names = [Path(record.path).name for record in gallery.images(limit=1000)]
            if len(names) != len(set(names)):
                return f"twice there: {names}"
            said = any(finding.kind == "damage" for finding in [*findings, *report.findings])
            expected = {f"photo{seed:02}.png": "there" for seed in range(8)} | told
            for name, what in expected.items():
                if what == "there" and name not in names and not (damaged and said):
                    return f"{name} was acknowledged and is lost; there are {names}"
                if what == "gone" and name in names:
                    return f"{name} was removed and is back"
            for record in gallery.images(limit=1000):
                if not Path(record.path).is_file() and yard.photos in Path(record.path).parents:
                    return f"{record.path} was never there"
            gallery.index(yard.photos)
            for seed in range(0, 12, 4):
                path = yard.photos / f"photo{seed:02}.png"
                if told.get(path.name) in ("gone", "any"):
                    if told[path.name] == "gone" and gallery.find(path) is not None:
                        return f"{path.name} was removed, and indexing brought it back"
                    continue  # what was removed stays away
                hit = gallery.search(path, 1)[0]
                if Path(hit.path).name not in (path.name, f"upload{seed:02}.png") or hit.score < 0.99:
                    return f"{path.name} finds {hit}"
        return None

    return admit_tessera_errors(look, admitted=False)


def admit_tessera_errors(act: Callable[[], str | object | None], *, admitted: bool = True) -> str | None:
    from tessera.errors import TesseraError

    try:
        said = act()
        return said if isinstance(said, str) else None
    except TesseraError as error:
        return None if admitted else f"{type(error).__name__}: {error}"
    except BaseException:
        return traceback.format_exc()


def in_child(act: Callable[[], str | None], *, may_be_killed: bool = False) -> str | None:
    """What an act says, made in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(writing, (act() or "").encode(errors="replace")[:60000])
        os._exit(0)
    os.close(writing)
    said = b""
    while piece := os.read(reading, 65536):
        said += piece
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and not (may_be_killed and os.WTERMSIG(status) == signal.SIGKILL):
        return f"ended by signal {os.WTERMSIG(status)}"
    return said.decode() or None


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
    import tessera.serve.uploads  # noqa: F401 - all before the first fork
    from tessera.gallery.engines import faiss_engine

    faiss_engine.SAVE_AFTER = 2
    started, counts, failures = time.monotonic(), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="tessera-faults-") as name:
        yard = Yard(Path(name))
        if failed := in_child(lambda: admit_tessera_errors(yard.make, admitted=False)):
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
