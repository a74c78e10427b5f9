"""Whether a gallery is as it should be after a fault."""

from __future__ import annotations

import os
import select
import signal
import sqlite3
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from acts import CATALOG, Yard

HUNG_S = 300  # no act takes ten seconds, on a busy machine a minute


def verify(
    folder: Path, yard: Yard, told: dict[str, str], *, damaged: bool = False, in_log: bool = False
) -> str | None:
    """Why the gallery is not as it should be, or None. damaged: it may have lost rows, but must say so.

    in_log: what is damaged is the log, which must be left to Tessera: SQLite alone would delete it.
    """
    import tessera
    from tessera.errors import GalleryDamagedError
    from tessera.gallery.check import check_catalog_file

    def look() -> str | None:
        if damaged and not in_log and (unnoticed := unnoticed_damage(folder, yard)):
            return unnoticed
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
            for record in gallery.images(limit=1000):
                number = Path(record.path).stem.removeprefix("photo")
                if number.isdigit() and int(number) < 8 and record.metadata not in ({"seed": int(number)}, {}):
                    return f"{record.path} has the metadata {record.metadata}"
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
            gallery.index(str(yard.folder / "remo*"))
            if gallery.find(yard.folder / "removed" / "removed.png") is not None and not (damaged and said):
                return "removed.png was removed and is back"
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


def verify_old(folder: Path, yard: Yard) -> str | None:
    """The same for a gallery of 0.1."""
    import tessera

    def look() -> str | None:
        with tessera.Gallery(folder, yard.old / "bundle") as gallery:
            report = gallery.check(repair=True)
            if not (report.ok and gallery.check().ok):
                return f"not repaired: {[finding.message for finding in report.findings]}"
            gallery.index(yard.old / "photos")
            found = {Path(record.path).name: record.metadata for record in gallery.images()}
            if len(found) != 6 or found["photo1.png"] != {"place": "Pisa", "year": "1990"}:
                return f"there are {found}"
            hit = gallery.search(yard.old / "photos" / "photo2.png", 1)[0]
            return None if Path(hit.path).name == "photo2.png" else f"photo2.png finds {hit}"

    return admit_tessera_errors(look, admitted=False)


def unnoticed_damage(folder: Path, yard: Yard) -> str | None:
    """What has changed in a gallery that `check` calls sound, and which hits a search gave that it must not."""
    import tessera
    from tessera.gallery.check import check_catalog_file

    query = yard.photos / "photo00.png"
    try:
        before, original = rows_of(folder), rows_of(yard.gallery)
    except (sqlite3.Error, UnicodeDecodeError):  # the second from a column's name in the schema
        return None
    try:
        with tessera.Gallery(folder, yard.bundle, create=False) as gallery:
            # A gallery may be refused, and hits may be missing with what is damaged; they may not be wrong ones.
            found = gallery.search(query, 1)
            if found and Path(found[0].path).name == query.name and found[0].score < 0.99:
                return f"{query.name} finds itself with {found[0].score}"
        if check_catalog_file(folder, repair=False):
            return None
        with tessera.Gallery(folder, yard.bundle, create=False) as gallery:
            if not gallery.check().ok:
                return None
    except tessera.TesseraError:
        return None
    changed = [name for name, rows in original.items() if rows != before.get(name)]
    return f"called sound, though {changed} have changed" if changed else None


def rows_of(folder: Path) -> dict[str, list[object]]:
    with closing(sqlite3.connect(folder / CATALOG)) as connection:
        connection.text_factory = bytes
        names = [row[0].decode() for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        ordered = {name: sorted(map(repr, connection.execute(f"SELECT * FROM {name}"))) for name in names}
        return {name: list(rows) for name, rows in ordered.items()}


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
    """What an act says, made in a process of its own; one that hangs is ended, with whatever it has forked."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(writing, (act() or "").encode(errors="replace")[:60000])
        os._exit(0)
    os.close(writing)
    said, deadline = b"", time.monotonic() + HUNG_S
    while True:
        if not select.select([reading], [], [], max(0, deadline - time.monotonic()))[0]:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            return f"hung for {HUNG_S} s"
        if not (piece := os.read(reading, 65536)):
            break
        said += piece
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and not (may_be_killed and os.WTERMSIG(status) == signal.SIGKILL):
        return f"ended by signal {os.WTERMSIG(status)}"
    return said.decode() or None
