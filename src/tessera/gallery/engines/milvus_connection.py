"""A connection to Milvus that outlives the server's restarts: what passes is waited out, the rest is one sentence."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from tessera.errors import EngineUnavailableError, GalleryError, GalleryLockedError, StorageError, UsageError

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "TESSERA_MILVUS_TOKEN"
WAIT_VARIABLE = "TESSERA_MILVUS_WAIT_S"
WAIT_S = 60.0  # a server that was killed takes half a minute to be believed dead, and some seconds to recover
SERVICE_WAIT_S = 3.0  # someone waits for the answer, and the service tries again by itself
CALL_S = 30.0  # one call; without a limit the client itself tries again for minutes
_BACKOFF_S, _MOST_BACKOFF_S, _SAY_EVERY_S = 0.1, 3.0, 10.0
_GAVE_UP_S = 10.0  # having given up, one is not made to wait again at once
_OLDEST = (2, 3)  # the first with upsert and JSON
_VERSION = re.compile(r"v?(\d+)\.(\d+)")

# A server that recovers gives errors of many kinds, "unrecoverable error" among them. What lasts is known better: no
# such collection, no such index, parameters, privileges; and words of those that have the code of everything else.
_LASTING = {100, 700, *range(1100, 1200), *range(1400, 1500)}
_LASTING_WORDS = ("cannot parse expression", "invalid", "not supported", "unsupported")
_NOT_LOADED = 101
_FULL = {3: "memory", 7: "disk", 9: "quota"}
T = TypeVar("T")


class Version(NamedTuple):
    """text: as the server spells it, with the kind of its build: v2.3.5-lite."""

    number: tuple[int, int]
    text: str


class MilvusConnection:
    """Used by as many threads as there are. wait_s: how long a call that fails for a passing reason is tried again.

    holds_catalog: whether the server has the records themselves, so that there is no doing without it.
    """

    def __init__(self, uri: str, *, wait_s: float, holds_catalog: bool = False) -> None:
        self.uri = uri
        self._holds_catalog = holds_catalog
        self.is_file = "://" not in uri
        self._wait_s = _seconds(os.environ.get(WAIT_VARIABLE), wait_s)
        self._lock = threading.RLock()
        self._client: Any = None
        self._version = Version((0, 0), "")
        self._gave_up_at = -_GAVE_UP_S

    def call(self, act: Callable[[Any], T], *, collection: str = "") -> T:
        """What `act` gives for the client. collection: loaded, where a server that was restarted has forgotten it."""
        failed_at = None  # not from the start: importing the client alone takes a second
        backoff, told_at = _BACKOFF_S, -_SAY_EVERY_S
        while True:
            try:
                return self._try(act)
            except Exception as error:
                code, name = _code_of(error)
                if code == _NOT_LOADED and collection:
                    with contextlib.suppress(Exception):  # if it fails, the next try says why
                        self._try(lambda client: client.load_collection(collection, timeout=CALL_S))
                elif not _is_milvus(error):
                    raise
                elif not self._may_pass(error, code, name):
                    raise self._translated(error, code, name) from error
                now = time.monotonic()
                failed_at = now if failed_at is None else failed_at
                waited = now - failed_at
                if waited + backoff > self._wait_s or now - self._gave_up_at < _GAVE_UP_S:
                    self._gave_up_at = now
                    raise self._unavailable(waited, error) from error
                if waited - told_at >= _SAY_EVERY_S:
                    told_at = waited
                    log.warning(
                        "Milvus at %s does not answer (%s); trying again for up to %.0f s",
                        self.uri, _reason(error), self._wait_s - waited,
                    )  # fmt: skip
                time.sleep(backoff)
                backoff = min(2 * backoff, _MOST_BACKOFF_S)

    def version(self) -> Version:
        """Of the server; a file has none."""
        self.call(lambda _: None)
        return self._version

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _try(self, act: Callable[[Any], T]) -> T:
        result = act(self._open())
        self._gave_up_at = -_GAVE_UP_S
        return result

    def _open(self) -> Any:
        with self._lock:
            if self._client is None:
                from pymilvus import MilvusClient

                # They log every refusal with its trace; the error that is raised says it once.
                for name in ("pymilvus", "milvus_lite"):
                    logging.getLogger(name).setLevel(logging.CRITICAL)
                client = MilvusClient(self.uri, token=os.environ.get(TOKEN_VARIABLE, ""), timeout=CALL_S)
                if not self.is_file:
                    self._version = self._known_version(str(client.get_server_version(timeout=CALL_S)))
                self._client = client
            return self._client

    def _known_version(self, version: str) -> Version:
        found = _VERSION.search(version)
        oldest = ".".join(map(str, _OLDEST))
        if found is None:
            raise GalleryError(
                f"The server at {self.uri} says it is of the version '{version}', which is none of Milvus. "
                f"Use Milvus {oldest} or later{self._way_out(', or')}"
            )
        number = int(found[1]), int(found[2])
        if number < _OLDEST:
            raise GalleryError(
                f"The server at {self.uri} is Milvus {version}, which is too old. Use {oldest} or later"
                f"{self._way_out(', or')}"
            )
        return Version(number, version)

    def _may_pass(self, error: Exception, code: int | None, name: str) -> bool:
        """Of a file, only what becomes of its own server: that ends connections over which nobody asks for a minute."""
        if self.is_file:
            return name == "UNAVAILABLE"
        return _passes(error, code, name) and not self._is_wrong_host()

    def _is_wrong_host(self) -> bool:
        """Whether nobody knows a machine of this name: waiting does not help against a typing error."""
        if self.is_file:
            return False
        try:
            socket.getaddrinfo(urlsplit(self.uri).hostname, None)
        except OSError:
            return True
        return False

    def _way_out(self, joined: str) -> str:
        return "." if self._holds_catalog else f"{joined} `tessera migrate --engine faiss`."

    def _unavailable(self, waited: float, error: Exception) -> EngineUnavailableError:
        kept = (
            "what was stored is in the shards, and the next `tessera index` sends Milvus what it lacks"
            if self._holds_catalog
            else "the catalogue holds every image, and the next command sends Milvus what it lacks"
        )
        return EngineUnavailableError(
            f"Milvus at {self.uri} did not answer for {waited:.0f} s ({_reason(error)}). Start it, or see why it is "
            f"not reached; nothing is lost: {kept}{self._way_out('. Without it:')}"
        )

    def _translated(self, error: Exception, code: int | None, name: str) -> Exception:
        """The one sentence, and the way out."""
        reason = _reason(error)
        if self.is_file and "local milvus" in str(error).lower():
            return GalleryLockedError(
                f"{self.uri} could not be opened: Milvus Lite lets one process at a time use its file. Stop the "
                f"other one, or use a server: `tessera migrate --engine milvus:http://HOST:19530`. ({reason})"
            )
        if name in ("UNAUTHENTICATED", "PERMISSION_DENIED") or code in (1400, 1401) or "auth check failure" in reason:
            given = "the token it was given" if os.environ.get(TOKEN_VARIABLE) else "to answer without a token"
            return GalleryError(
                f"Milvus at {self.uri} refuses {given}. Set {TOKEN_VARIABLE} to USER:PASSWORD or to an API key."
            )
        if code in _FULL or "no space left" in reason.lower():
            return StorageError(
                f"Milvus at {self.uri} has no room left ({_FULL.get(code or 0, 'disk')}: {reason}). Give it more; "
                "nothing is lost, and the next command sends what it lacks."
            )
        if self._is_wrong_host():
            host = urlsplit(self.uri).hostname
            return GalleryError(f"No machine is called '{host}' (milvus:{self.uri}). Write milvus:http://HOST:19530.")
        return GalleryError(
            f"Milvus at {self.uri} refused: {reason}. If its data are lost, `tessera check --repair` fills it again."
        )


def _seconds(given: str | None, default: float) -> float:
    try:
        return float(given) if given else default
    except ValueError as error:
        raise UsageError(f"{WAIT_VARIABLE} is '{given}', which is no number of seconds.") from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()  # the client raises errors from themselves
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _code_of(error: Exception) -> tuple[int | None, str]:
    """Milvus's code, if there is one, and the name of gRPC's status, "" where none was met."""
    number, name = None, ""
    for cause in _causes(error):
        code = getattr(cause, "code", None)
        value = code() if callable(code) else code
        if isinstance(value, int) and number is None:
            number = int(value)
        elif not name:
            name = str(getattr(value, "name", ""))
    return number, name


def _is_milvus(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("pymilvus", "milvus_lite", "grpc")


def _passes(error: Exception, code: int | None, name: str) -> bool:
    if type(error).__name__ != "MilvusException" and not name:
        return False  # the client itself refuses what it was given
    if code in _LASTING or code in _FULL or name in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return False
    return not any(word in str(error).lower() for word in _LASTING_WORDS)


def _reason(error: Exception) -> str:
    """What was said, in one line: servers answer with their stack."""
    details = getattr(error, "details", None)  # of gRPC's own errors, which spell themselves over many lines
    message = str((details() if callable(details) else getattr(error, "message", "")) or error).strip()
    first = re.split(r"\n|stack trace:|\(1\) attached|: rpc error|->", message)[0].strip(" :")
    return (first or type(error).__name__)[:200]
