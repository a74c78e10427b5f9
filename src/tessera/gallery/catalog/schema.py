"""The catalogue's tables, their versions, and what an SQLite error means to a person.

Three tables of rows: `images`, small, one a path; `contents`, one a distinct file content and model, with the
descriptor; `local_features`, one a content. Walking over a million paths therefore reads
no descriptor, two copies of a photo share one, and another model leaves the local features as they are.

An id never changes its descriptor: a changed file gets a new id, and an id is never given twice. An index that knows
the last id it holds and the removals since its generation can therefore catch up without comparing anything.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.errors import GalleryDamagedError, GalleryError, GalleryLockedError, StorageError, TesseraError
from tessera.gallery.catalog.checksums import row_checksum, seal_in_sql
from tessera.gallery.catalog.metadata import readable_metadata
from tessera.storage import atomic_path

APPLICATION_ID = 0x54455353  # "TESS"; `file` and other programs tell a gallery's catalogue by it
BUSY_TIMEOUT_S = 10.0
PAGE_BYTES = 16384  # a descriptor of 1024 x fp16 fills more than half of the usual 4096, wasting nearly the rest


@dataclass(frozen=True)
class Seal:
    """Give rows the checksums of a guard once all columns are there: later versions may have added some to it."""

    guard: str


# One entry a version: the statements that lead from the version before. Never edit an entry that was released.
MIGRATIONS: list[tuple[str | Seal, ...]] = [
    (
        "CREATE TABLE settings (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
        """CREATE TABLE contents (
            id INTEGER PRIMARY KEY,
            hash BLOB NOT NULL,
            fingerprint TEXT NOT NULL,
            width INTEGER NOT NULL,
            height INTEGER NOT NULL,
            descriptor BLOB NOT NULL,
            UNIQUE (hash, fingerprint))""",
        """CREATE TABLE images (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            path BLOB NOT NULL UNIQUE,
            size INTEGER NOT NULL,
            mtime_ns INTEGER NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('ok', 'failed')),
            error TEXT,
            content_id INTEGER REFERENCES contents (id),
            metadata TEXT NOT NULL DEFAULT '{}',
            CHECK ((state = 'ok') = (content_id IS NOT NULL)))""",
        "CREATE INDEX images_by_content ON images (content_id)",
        "CREATE TABLE removals (id INTEGER PRIMARY KEY, generation INTEGER NOT NULL)",
        "INSERT INTO settings VALUES ('generation', 0), ('removals_since', 0), ('searchable', 0)",
    ),
    ("CREATE INDEX images_failed ON images (id) WHERE state = 'failed'",),
    (
        *(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER" for table in ("settings", "contents", "images")),
        "UPDATE images SET metadata = tessera_metadata(CAST(metadata AS BLOB)) WHERE NOT json_valid(metadata)",
        *(Seal(f"{table}.checksum") for table in ("settings", "contents", "images")),
    ),
    (
        """CREATE TABLE local_features (
            id INTEGER PRIMARY KEY,
            hash BLOB NOT NULL,
            fingerprint TEXT NOT NULL,
            features BLOB NOT NULL,
            checksum INTEGER NOT NULL,
            UNIQUE (hash, fingerprint))""",
    ),
    (
        # What the file itself says (NULL: not looked at yet), the time of its sidecar, and its place in a group.
        "ALTER TABLE images ADD COLUMN facts TEXT",
        "ALTER TABLE images ADD COLUMN sidecar_ns INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE images ADD COLUMN group_id INTEGER",
        "ALTER TABLE images ADD COLUMN group_rank INTEGER",
        "CREATE INDEX images_by_group ON images (group_id, group_rank) WHERE group_id IS NOT NULL",
        "ALTER TABLE contents ADD COLUMN signature BLOB",
        # Removed on purpose: a picture with the hash of its content, or a folder.
        "CREATE TABLE ignored (path BLOB PRIMARY KEY, hash BLOB) WITHOUT ROWID",
        # Pairs of contents that were compared, by hash, so that another run need not compare them again.
        """CREATE TABLE pairs (
            kind TEXT NOT NULL,
            first BLOB NOT NULL,
            second BLOB NOT NULL,
            score REAL NOT NULL,
            PRIMARY KEY (kind, first, second)) WITHOUT ROWID""",
    ),
    (
        *(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER" for table in ("removals", "ignored", "pairs")),
        "ALTER TABLE images ADD COLUMN facts_checksum INTEGER",
        "ALTER TABLE contents ADD COLUMN signature_checksum INTEGER",
        "UPDATE images SET facts = NULL WHERE NOT json_valid(coalesce(facts, '{}'))",
        *(Seal(f"{table}.checksum") for table in ("removals", "ignored", "pairs")),
        *(Seal(guard) for guard in ("images.facts_checksum", "contents.signature_checksum")),
    ),
]
# Both say the disk is full: the second is what a quota or a file-size limit gives.
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_OUT_OF_REACH = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}


@contextlib.contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite raises inside the block into an error of Tessera that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: Path) -> TesseraError:
    code = _error_code(error)
    if code in _FULL:
        return StorageError(
            f"The disk is full, or {path} cannot be written ({error}). Free some space and run the command again; "
            "nothing that was already stored is lost."
        )
    if code in _DAMAGED:
        return GalleryDamagedError(
            f"The catalogue {path} is damaged ({error}). `tessera check --repair` saves what can still be read."
        )
    if code in _BUSY:
        return GalleryLockedError(f"Another process is writing to {path}. Wait until it has finished, then try again.")
    if code in _OUT_OF_REACH:
        return StorageError(f"{path} could not be opened or written ({error}). Check its permissions.")
    return GalleryError(f"The catalogue {path} could not be used: {error}. `tessera check` looks for the cause.")


class FrozenConnection(sqlite3.Connection):
    """To a catalogue as the file is at this moment: it sees no later change, so it is not to be kept."""


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode: transactions are opened by name, so that none is opened by accident."""
    connection = _connect(path)
    try:
        connection.execute("PRAGMA synchronous = FULL")  # a commit that was acknowledged survives a power cut
        if read_only:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA schema_version")  # the first to touch the log
    except sqlite3.Error as error:
        connection.close()
        if read_only and _error_code(error) in _OUT_OF_REACH | _FULL and not _has_log(path):
            return _connect_frozen(path)
        raise
    return connection


def _connect_frozen(path: Path) -> sqlite3.Connection:
    """Read a catalogue where nothing may be written, not even the log that readers share with a writer.

    SQLite then must be told that the file stays as it is, which holds as long as no writer's log lies beside it.
    """
    return _connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", FrozenConnection)


def _connect(database: str | Path, kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    connection = sqlite3.connect(
        database,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        factory=kind,
        uri=kind is FrozenConnection,
    )
    connection.create_function("tessera_checksum", -1, row_checksum, deterministic=True)
    connection.create_function("tessera_metadata", 1, readable_metadata, deterministic=True)
    return connection


def _has_log(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.with_name(f"{path.name}-wal").stat().st_size > 0
    return False


def _error_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def latest_version() -> int:
    return len(MIGRATIONS)


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new catalogue, or bring an older one up to this version. For the holder of the lock."""
    version = check_identity(connection, path)
    if version == latest_version():
        return
    if version > 0:
        _back_up(connection, path.with_name(f"{path.name}.version-{version}"))
    if version == 0:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        _alter(connection, MIGRATIONS[version:])
        for guard in {one.guard: None for step in MIGRATIONS[version:] for one in step if isinstance(one, Seal)}:
            connection.execute(seal_in_sql(guard))
        if version == 0:
            put_setting(connection, "uuid", uuid.uuid4().hex)
        put_setting(connection, "version", len(MIGRATIONS))  # with a checksum, which the head of the file has not
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _alter(connection: sqlite3.Connection, steps: Sequence[tuple[str | Seal, ...]]) -> None:
    for step in steps:
        for statement in step:
            if not isinstance(statement, Seal):
                connection.execute(statement)


def put_setting(connection: sqlite3.Connection, key: str, value: Any) -> None:
    connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?, ?)", (key, value, row_checksum(key, value)))


def _back_up(connection: sqlite3.Connection, backup: Path) -> None:
    """Keep the catalogue as the version before had it, whole or not at all, until somebody deletes it."""
    with atomic_path(backup) as temporary, contextlib.closing(sqlite3.connect(temporary)) as copy:
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file


def check_identity(connection: sqlite3.Connection, path: Path) -> int:
    """The catalogue's version, 0 for an empty file; an error for a file of another program or of a newer Tessera.

    Where its head says another version than its settings, or its tables are not those of the version, it is damaged.
    """
    application_id = int(connection.execute("PRAGMA application_id").fetchone()[0])
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    tables = _tables(connection)
    if not tables:
        return 0
    stated = _stated_version(connection)
    if application_id != APPLICATION_ID and stated is None:
        raise GalleryError(f"{path} is an SQLite file of another program, not a gallery's catalogue. Choose another.")
    if version > len(MIGRATIONS):
        newer = (
            f"{path} was made by a newer Tessera (catalogue version {version}; this one knows {len(MIGRATIONS)}). "
            "Update Tessera."
        )
        if stated in (None, version):
            raise GalleryError(newer)
        raise GalleryDamagedError(
            f"{newer} But its settings say version {stated}: if no newer Tessera was ever here, it is damaged, and "
            "`tessera check --repair` puts it right."
        )
    if application_id != APPLICATION_ID or stated not in (None, version) or tables != _tables_of_version(version):
        raise GalleryDamagedError(
            f"The catalogue {path} is damaged: its head or its tables are not those of any version. "
            "`tessera check --repair` saves what can still be read."
        )
    return version


def _tables(connection: sqlite3.Connection) -> tuple[tuple[Any, ...], ...]:
    """What the schema says of tables and indexes; the names of tables that SQLite adds by itself are left out."""
    return tuple(
        connection.execute(
            "SELECT type, name, tbl_name, CAST(sql AS BLOB) FROM sqlite_master "
            "WHERE name NOT LIKE 'sqlite~_stat_' ESCAPE '~' ORDER BY name"
        ).fetchall()
    )


@functools.cache
def _tables_of_version(version: int) -> tuple[tuple[Any, ...], ...]:
    with contextlib.closing(_connect(":memory:")) as connection:
        _alter(connection, MIGRATIONS[:version])
        return _tables(connection)


def _stated_version(connection: sqlite3.Connection) -> int | None:
    """The version that the settings name, if they do and have their checksum: versions before the sixth do not."""
    with contextlib.suppress(sqlite3.OperationalError):
        row = connection.execute("SELECT value, checksum FROM settings WHERE key = 'version'").fetchone()
        if row is not None and row[1] == row_checksum("version", row[0]):
            return int(row[0])
    return None
