"""What a service is started with."""

from __future__ import annotations

import ipaddress
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from tessera.errors import UsageError

LOOPBACK_NAMES = {"localhost", "ip6-localhost"}


@dataclass(frozen=True)
class Settings:
    """Limits keep one client from taking the service from the others; their defaults suit a laptop."""

    gallery_path: Path
    host: str = "127.0.0.1"
    port: int = 8642
    key: str | None = None  # asked of everyone; needed on any address but loopback
    writer_key: str | None = None  # asked of those who add and remove; None: nobody can
    max_bytes: int = 32 << 20
    max_pixels: int = 100_000_000
    max_k: int = 200
    timeout_s: float = 30.0
    body_timeout_s: float = 20.0
    decode_timeout_s: float = 10.0  # of an uploaded picture
    max_in_flight: int = 64
    root_path: str = ""  # the prefix that a proxy puts before every address
    device: str = "auto"
    threads: int | None = None
    watch: tuple[Path, ...] = ()  # folders whose pictures the gallery follows

    def __post_init__(self) -> None:
        if not self.is_loopback and not self.key:
            raise UsageError(
                f"{self.host} can be reached from other machines, so the service needs a key. Give one with --key, "
                f"or in TESSERA_KEY; here is a fresh one: {secrets.token_urlsafe(24)}"
            )
        if not 0 <= self.port < 65536:
            raise UsageError(f"port {self.port} does not exist: give one from 0 to 65535.")
        if self.root_path and not re.fullmatch(r"(/[\w.~-]+)+", self.root_path, re.ASCII):
            raise UsageError(
                f"The root path {self.root_path!r} is no prefix of addresses: write it as /photos, no / at its end."
            )

    @property
    def is_own_machine(self) -> bool:
        """Whether clients are on this machine for certain: with a key, a proxy may stand in front of loopback."""
        return self.is_loopback and self.key is None

    @property
    def is_loopback(self) -> bool:
        if self.host in LOOPBACK_NAMES:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
