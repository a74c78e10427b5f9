"""What to do with pictures that cannot be read: skip them, count them, list them, and stop above one in a hundred."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from tessera.errors import DataError
from tessera.storage import write_atomically

MAX_SHARE = 0.01
_SHOWN = 5


@dataclass
class UnreadableLog:
    """The images of one data set that could not be read so far; safe to share between decoding threads.

    total: how many images the set has. A few broken files among a million are skipped; above `max_share` of the set the
    folder is wrong or the disk is dying, and going on would train on something else than was asked for.
    """

    total: int
    max_share: float = MAX_SHARE
    reasons: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def record(self, file: str | Path, reason: object) -> None:
        """Note that an image cannot be read; a DataError once there are too many. The same image counts once."""
        with self._lock:
            self.reasons.setdefault(str(file), str(reason))
            too_many = len(self.reasons) > self.max_share * self.total
        if too_many:
            raise DataError(
                f"{len(self.reasons)} of {self.total} images cannot be read, more than {self.max_share:.0%}. "
                + self.describe()
            )

    def __len__(self) -> int:
        return len(self.reasons)

    def __contains__(self, file: str | Path) -> bool:
        return str(file) in self.reasons

    def describe(self) -> str:
        """One sentence with the first few; empty when all is well."""
        if not self.reasons:
            return ""
        shown = "; ".join(f"{file} ({reason})" for file, reason in list(self.reasons.items())[:_SHOWN])
        more = f"; and {len(self.reasons) - _SHOWN} more" if len(self.reasons) > _SHOWN else ""
        return f"Skipped: {shown}{more}."

    def write(self, path: Path) -> None:
        """The whole list, one `file<TAB>reason` a line."""
        lines = [f"{file}\t{' '.join(reason.split())}\n" for file, reason in sorted(self.reasons.items())]
        write_atomically(path, "".join(lines).encode())
