"""What the cases are made of: pictures, bundles and galleries to copy, and what is interrupted."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from small_gallery import age, make_small_bundle, paint

HERE = Path(__file__).parent
CATALOG = "catalog.sqlite"
ACTS = ("index", "remove", "rebuild", "repair", "reindex", "upload", "prune", "group", "recode", "migrate", "upgrade")
MANY_PROCESSES = ("fork", "together")
LOGGED = tuple(f"photo{seed:02}.png" for seed in range(8, 12))  # what is in the log of the gallery `killed`
Act = Callable[[Path, Callable[[str, str], None]], None]


class Yard:
    """Where the cases are: pictures, bundles and galleries to copy, made once in a process of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.photos, self.gallery = folder / "photos", folder / "gallery"
        self.bundle, self.other = folder / "bundle", folder / "other"
        self.vanished, self.old = folder / "vanished", folder / "old"
        self.killed = folder / "killed"

    def make(self) -> None:
        import tessera

        make_small_bundle(self.bundle, seed=0, dim=16)
        make_small_bundle(self.other, seed=1, dim=24)
        for seed in range(12):
            age(paint(self.photos / f"photo{seed:02}.png", seed))
        with tessera.Gallery(self.gallery, self.bundle) as gallery:
            for seed in range(8):
                gallery.index(self.photos / f"photo{seed:02}.png", metadata={"seed": seed})
            for seed in range(20, 23):  # files that are gone since
                paint(self.vanished / f"vanished{seed}.png", seed)
            gallery.index(self.vanished)
            shutil.rmtree(self.vanished)
            gallery.index(paint(self.folder / "removed" / "removed.png", 30))
            gallery.remove(self.folder / "removed" / "removed.png")
            gallery.ignore(self.folder / "passed-over")
            records = gallery.images(limit=100)
            with gallery._catalog.write() as batch:
                batch.set_groups({3: [records[1].id, records[0].id]})
                batch.add_compared_pairs("match", {(str(records[0].content_hash), str(records[1].content_hash)): 30.0})
        with zipfile.ZipFile(HERE.parents[1] / "tests" / "golden" / "galleries" / "gallery-0.1.zip") as archive:
            archive.extractall(self.old)

    def kill_a_writer(self) -> str | None:
        """A gallery whose writer was killed, so that what it committed is in the log. For a process of its own."""
        import tessera

        shutil.copytree(self.gallery, self.killed)
        gallery = tessera.Gallery(self.killed)
        for name in LOGGED:
            gallery.index(self.photos / name)
        os.kill(os.getpid(), signal.SIGKILL)
        return None


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
        from tessera.serve.pictures import uploads
        from tessera.storage import write_atomically

        with tessera.Gallery(folder) as gallery:
            for number in self.order[:4]:
                content = (self.yard.photos / f"photo{number:02}.png").read_bytes() + b"uploaded"
                with gallery.writing():
                    target = uploads.place_for(content, f"upload{number:02}", ".png", folder)
                    write_atomically(target, content)
                    gallery.index_file(target)
                tell("there", target.name)

    def prune(self, folder: Path, tell: Callable[[str, str], None]) -> None:
        import tessera

        names = [f"vanished{seed}.png" for seed in range(20, 23)]
        with tessera.Gallery(folder) as gallery:
            for name in names:
                tell("any", name)
            gallery.index(self.yard.vanished, prune=True)
            for name in names:
                tell("gone", name)

    def group(self, folder: Path, tell: Callable[[str, str], None]) -> None:
        """Compare, keep what was compared, and keep groups."""
        import tessera

        with tessera.Gallery(folder) as gallery:
            gallery.duplicates()
            gallery.groups()

    def recode(self, folder: Path, tell: Callable[[str, str], None]) -> None:
        """Another codec: the index is built anew."""
        import tessera

        with tessera.Gallery(folder, codec="fast") as gallery:
            gallery.index(self.yard.photos / "photo00.png")

    def migrate(self, folder: Path, tell: Callable[[str, str], None]) -> None:
        """Fill an engine from the catalogue and make it the gallery's, again and again."""
        import tessera

        with tessera.Gallery(folder) as gallery:
            for _ in range(3):
                gallery.migrate("faiss")

    def upgrade(self, folder: Path, tell: Callable[[str, str], None]) -> None:
        """A gallery of 0.1 is opened, which brings it up to date."""
        import tessera

        with tessera.Gallery(folder, self.yard.old / "bundle") as gallery:
            gallery.index(self.yard.old / "photos")

    def fork(self, folder: Path, tell: Callable[[str, str], None]) -> None:
        """A process that has a gallery open forks, and both go on with it."""
        import tessera
        from tessera.errors import GalleryLockedError

        with tessera.Gallery(folder) as gallery:
            gallery.index(self.yard.photos / "photo08.png")
            gallery.search(1)
            child = os.fork()
            for number in (9,) if child else (10, 11):
                name = f"photo{number:02}.png"
                while True:
                    try:
                        gallery.index(self.yard.photos / name)
                        gallery.search(1)
                        tell("there", name)
                        break
                    except GalleryLockedError:
                        time.sleep(0.01)
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)

    def together(self, folder: Path, tell: Callable[[str, str], None]) -> None:
        """Two writers and a reader at once, each with a gallery of its own; the reader must never see an error."""
        import tessera
        from tessera.errors import GalleryLockedError

        def write(act: Act) -> None:
            with contextlib.suppress(GalleryLockedError):
                act(folder, tell)

        children = []
        for act in (self.index, self.remove):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for _ in range(3):
                        write(act)
                    status = 0
                except tessera.TesseraError:  # of the fault that is injected
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        with tessera.Gallery(folder, create=False) as gallery:
            for _ in range(10):
                found = [hit.path for hit in gallery.search(self.yard.photos / "photo11.png", 20)]
                if len(found) != len(set(found)):
                    raise AssertionError(f"a reader saw an image twice: {found}")
        for child in children:
            _, status = os.waitpid(child, 0)
            if os.WIFEXITED(status) and os.WEXITSTATUS(status):
                raise AssertionError("a writer ended with an error that is none of Tessera's")


def spoil_state(folder: Path) -> None:
    """What a repair is needed for."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(folder / CATALOG)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE images SET state = 'oj' WHERE id = 3")
        connection.commit()
