"""Groups and copies behind the service: what is known, finding more in a thread, and what people take apart."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Literal

from tessera.errors import TesseraError
from tessera.serve.problems import ProblemError

if TYPE_CHECKING:
    from tessera.serve.service import GalleryService

log = logging.getLogger("tessera.serve")
Kind = Literal["groups", "duplicates"]


class _StoppedError(Exception):
    """The service ends: what was compared is kept, the rest is for another time."""


class Organiser:
    """One search for groups or copies at a time. The gallery can be searched and written meanwhile."""

    def __init__(self, service: GalleryService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._status: dict[str, Any] = {"finding": None, "done": 0, "total": 0, "failure": ""}

    def status(self) -> dict[str, Any]:
        """What `schemas.Organising` describes."""
        return dict(self._status)

    def find(self, kind: Kind) -> dict[str, Any]:
        """Begin to find, unless that is under way; gives the status."""
        with self._lock:
            if self._status["finding"] not in (None, kind):
                raise ProblemError(
                    409, f"{self._status['finding'].capitalize()} are being found. Try again when that is done."
                )
            if self._status["finding"] is None:
                self._status = {"finding": kind, "done": 0, "total": 0, "failure": ""}
                threading.Thread(target=self._run, args=(kind,), name="organise", daemon=True).start()
        return self.status()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self, kind: Kind) -> None:
        failure = ""
        try:
            gallery = self._service.gallery
            find = gallery.groups if kind == "groups" else gallery.duplicates
            find(progress=self._note)
        except _StoppedError:
            pass
        except (TesseraError, ProblemError) as error:
            log.warning("%s", error)  # it may name files
            failure = "They could not be found. The service's log says why."
        except Exception:
            log.exception("%s could not be found", kind)
            failure = "They could not be found. The service's log says why."
        finally:
            self._status = {**self._status, "finding": None, "failure": failure}

    def _note(self, done: int, total: int) -> None:
        if self._stopping.is_set():
            raise _StoppedError
        self._status = {**self._status, "done": done, "total": total}

    def groups(self, *, start: int, limit: int) -> dict[str, Any]:
        found = self._service.gallery.groups(renew=False)
        show = self._service.image_json
        return {
            "groups": [
                {"id": group.id, "images": [show(record) for record in group.images]}
                for group in found[start : start + limit]
            ],
            "total": len(found),
            "images": sum(len(group.images) for group in found),
        }

    def group_of(self, image_id: int) -> dict[str, Any]:
        self._service.record(image_id)
        group = self._service.gallery.group_of(image_id)
        return {
            "id": group.id if group else None,
            "images": [self._service.image_json(record) for record in group.images] if group else [],
        }

    def duplicates(self, *, start: int, limit: int) -> dict[str, Any]:
        found = self._service.gallery.duplicates(renew=False)
        show = self._service.image_json
        return {
            "groups": [
                {
                    "keep": {**show(group.keep), "bytes": group.keep.size},
                    "reason": group.reason,
                    "copies": [
                        {
                            **show(copy.record),
                            "bytes": copy.record.size,
                            "kind": "exact" if copy.exact else "near",
                            "agreement": round(copy.agreement, 3),
                        }
                        for copy in group.copies
                    ],
                }
                for group in found[start : start + limit]
            ],
            "total": len(found),
            "copies": sum(len(group.copies) for group in found),
            "bytes": sum(copy.record.size for group in found for copy in group.copies),
        }

    def take_apart(self, ids: list[int]) -> None:
        with self._service.writing():
            self._service.gallery.take_apart(ids)

    def leave_group(self, image_id: int) -> None:
        self._service.record(image_id)
        with self._service.writing():
            self._service.gallery.leave_group(image_id)
