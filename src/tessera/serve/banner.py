"""What a starting service says: where it is found, from this machine and from others, and as a QR code for a phone."""

from __future__ import annotations

import contextlib
import io
import ipaddress
import socket
from urllib.parse import quote

from tessera.serve.settings import Settings

# Addresses of documentation (RFC 5737, RFC 3849): nothing is sent there, connecting only chooses the way out.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def describe_addresses(settings: Settings, port: int, *, for_a_terminal: bool) -> str:
    """The lines of the banner. A QR code only where people look, and only for an address that a phone can reach."""
    urls = page_urls(settings, port)
    lines = [f"Tessera is at {urls[0]} (stop it with Ctrl-C)", *(f"           or {url}" for url in urls[1:])]
    if not settings.is_loopback and for_a_terminal:
        with_key = f"{urls[0]}#key={quote(str(settings.key), safe='')}"
        lines += ["For a phone in the same network (the code holds the key):", draw_code(with_key)]
    return "\n".join(lines)


def page_urls(settings: Settings, port: int) -> list[str]:
    """Where the page is: for an address that stands for all of the machine's, each of those."""
    hosts = machine_addresses() if _is_every_address(settings.host) else [settings.host]
    path = f"{settings.root_path}/" if settings.root_path else ""
    return [f"http://{f'[{host}]' if ':' in host else host}:{port}{path}" for host in hosts]


def machine_addresses() -> list[str]:
    """This machine's addresses as others see them, the one that leads out first; loopback where there is no other."""
    found: list[str] = []
    for family, elsewhere in _ELSEWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            found.append(str(probe.getsockname()[0]))
    with contextlib.suppress(OSError):
        found += [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)]
    usable = [host for host in found if not _is_of_no_use(host)]
    return list(dict.fromkeys(usable)) or ["127.0.0.1"]


def draw_code(text: str) -> str:
    """A QR code in half blocks, with light modules drawn, so that it is read on dark and on light terminals."""
    import segno

    drawing = io.StringIO()
    segno.make_qr(text, error="l").terminal(drawing, compact=True)
    return drawing.getvalue().rstrip("\n")


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_of_no_use(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    return address.is_loopback or address.is_link_local
