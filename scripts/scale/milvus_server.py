"""A real Milvus server on loopback, to test and to measure against: started, killed, and started again.

The PyPI package `milvus` holds the standalone server with its own etcd and log, and unpacks and configures it; the
server is then run directly, since the package's launcher takes another port where one was used lately.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

VARIABLE = "TESSERA_MILVUS_SERVER"
_READY_S = 180.0
_PORTS = ["proxy", "proxy-internal", "root-coord", "query-coord", "query-node", "index-coord", "index-node"]
_PORTS += ["data-coord", "data-node"]

TOKEN = "root:Milvus"
_UNPACK = """
import json, sys, milvus
config = milvus.MilvusServerConfig(**json.loads(sys.argv[1]))
config.set("authorization_enabled", sys.argv[2] == "True")
config.resolve()
milvus._initialize_data_files(config.base_data_dir)
"""


def find_launcher() -> Path | None:
    """`milvus-server`: the one that is named in TESSERA_MILVUS_SERVER, else on the path."""
    found = os.environ.get(VARIABLE) or shutil.which("milvus-server")
    return Path(found) if found and Path(found).is_file() else None


class MilvusServer:
    """One server with its data in a folder. Every port is a free one, so that several can run side by side."""

    def __init__(self, launcher: Path, folder: Path, *, authorization: bool = False) -> None:
        self.folder = folder
        self._launcher = launcher
        self._authorization = authorization
        self._process: subprocess.Popen[bytes] | None = None
        ports = _free_ports(len(_PORTS) + 3)
        self._ports = dict(zip(_PORTS, ports, strict=False))
        self._metrics, etcd, peer = ports[-3:]
        self.uri = f"http://127.0.0.1:{self._ports['proxy']}"
        folder.mkdir(parents=True, exist_ok=True)
        client_url, peer_url = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
        (folder / "etcd.yaml").write_text(
            f"name: default\nlisten-client-urls: {client_url}\nadvertise-client-urls: {client_url}\n"
            f"listen-peer-urls: {peer_url}\ninitial-advertise-peer-urls: {peer_url}\n"
            f"initial-cluster: default={peer_url}\n"
        )

    def start(self) -> None:
        """Return when it answers; one that runs is left alone."""
        if self._process is not None and self._process.poll() is None:
            return
        if not (self.folder / "configs" / "milvus.yaml").is_file():
            self._unpack()
        environment = {
            **os.environ,
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(self._metrics),
            "MILVUS_RUN_DIR": str(self.folder / "run"),
            "MILVUSCONF": str(self.folder / "configs"),
            "LD_LIBRARY_PATH": str(self.folder / "bin"),
            "ETCD_CONFIG_PATH": str(self.folder / "etcd.yaml"),
            # One that was killed is believed dead after so many seconds, not thirty; one that a busy machine holds up
            # for longer loses its coordinators for good.
            "COMMON_SESSION_TTL": "20",
        }
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.folder / "bin" / "milvus", "run", "standalone"],
                cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.wait_until_ready()

    def wait_until_ready(self, at_most_s: float = _READY_S) -> None:
        import grpc
        from pymilvus import MilvusClient
        from pymilvus.exceptions import MilvusException

        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs every try with its trace
        assert self._process is not None
        give_up = time.monotonic() + at_most_s
        while True:
            try:
                client = MilvusClient(self.uri, token=TOKEN if self._authorization else "", timeout=5)
                client.list_collections(timeout=5)
                client.close()
                return
            except (MilvusException, grpc.RpcError):  # the second where it accepts calls and does not answer them yet
                if self._process.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError(f"the server did not start; {self.folder / 'server.log'} says why") from None
                time.sleep(0.2)

    def kill(self) -> None:
        """As a power cut does; nothing happens to one that is dead."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _unpack(self) -> None:
        """Have the package write binaries and configuration; the binaries once, for unpacking takes most of a start."""
        cache = self._launcher.parent.parent / "unpacked"
        if cache.is_dir():
            (self.folder / "bin").symlink_to(cache)
        given = {"data_dir": str(self.folder), **{f"{key.replace('-', '_')}_port": p for key, p in self._ports.items()}}
        command = [str(self._launcher.parent / "python"), "-c", _UNPACK, json.dumps(given), str(self._authorization)]
        subprocess.run(command, check=True, timeout=_READY_S)
        if not cache.is_dir():
            mine = cache.with_name(f"unpacked.{os.getpid()}")
            shutil.copytree(self.folder / "bin", mine)
            if not cache.is_dir():
                mine.rename(cache)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
