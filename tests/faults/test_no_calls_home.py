"""Nothing calls home: no name is looked up and no machine but this one is spoken to."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = """
import fcntl, socket, struct, sys, threading, urllib.request
from pathlib import Path

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:  # a fresh namespace has its loopback down
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1 | 64))

folder, photos = Path(sys.argv[1]), sys.argv[2]
from typer.testing import CliRunner
from tessera.cli.main import app

for words in (["index", photos], ["search", photos + "/photo0.png", "-k", "1"]):
    result = CliRunner().invoke(app, [*words, "-g", str(folder)])
    assert result.exit_code == 0, result.output

from tessera.serve.server import listen, make_server
from tessera.serve.settings import Settings

settings = Settings(folder, port=0, threads=1, timeout_s=280)
server, listener = make_server(settings), listen(settings)
address = f"http://127.0.0.1:{listener.getsockname()[1]}"
thread = threading.Thread(target=server.run, args=([listener],))
thread.start()
for attempt in range(2000):
    try:
        assert urllib.request.urlopen(address + "/ready").status == 200
        break
    except OSError:
        threading.Event().wait(0.1)
boundary = "x"
body = b"--x\\r\\nContent-Disposition: form-data; name=file; filename=a.png\\r\\n\\r\\n"
body += Path(photos, "photo0.png").read_bytes() + b"\\r\\n--x--\\r\\n"
kind = {"Content-Type": "multipart/form-data; boundary=x"}
assert urllib.request.urlopen(urllib.request.Request(address + "/api/search", body, kind)).status == 200
server.should_exit = True
thread.join()
print("all answered")
"""


@pytest.mark.slow
def test_indexing_searching_and_serving_look_up_no_name(tmp_path: Path, photo_folder: Path) -> None:
    """In a namespace without routes, every call to the network and every reading of the resolver's file is seen."""
    if not (shutil.which("strace") and shutil.which("unshare")):
        pytest.skip("strace and unshare are not here")
    trace = tmp_path / "trace"
    watched = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg,openat,open", "-o", str(trace)]
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    command = [*watched, "unshare", "-rn", sys.executable, str(driver), str(tmp_path / "g"), str(photo_folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)
    if "Operation not permitted" in run.stderr and "unshare" in run.stderr:
        pytest.skip("namespaces may not be made here")
    assert run.returncode == 0, run.stderr
    assert "all answered" in run.stdout
    calls = trace.read_text(errors="replace").splitlines()
    assert any("/api" in line or "openat" in line for line in calls)
    looked_up = [line for line in calls if "resolv.conf" in line and "ENOENT" not in line]
    assert looked_up == []
    addressed = [line for line in calls if re.search(r"sin_addr|sin6_addr", line)]
    assert addressed  # the driver itself asked the service
    assert [line for line in addressed if '"127.0.0.1"' not in line] == []


def test_onnx_runtime_is_imported_in_one_place() -> None:
    sources = Path(__file__).parents[2] / "src" / "tessera"
    found = [path.name for path in sources.rglob("*.py") if "import onnxruntime" in path.read_text()]
    assert found == ["onnx_library.py"]
