"""Memory: what indexing takes must not grow with the collection."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Descriptors without pictures: everything that an index run does but for the network, whose memory knows no number.
CHILD = """
import sys
from pathlib import Path
import numpy as np
import tessera
gallery = tessera.Gallery(sys.argv[1], sys.argv[2])
random, dim = np.random.default_rng(0), gallery.describer.dim
gallery.add(tessera.DescribedImage(f"/nowhere/{i}.jpg", random.standard_normal(dim)) for i in range(int(sys.argv[3])))
gallery.index(rebuild=True)
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
print(status["VmHWM"].split()[0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_peak_memory_does_not_grow_with_the_collection(tmp_path: Path, wide_bundle: Path) -> None:
    peaks = []
    for count in (1_000, 10_000):
        command = [sys.executable, "-c", CHILD, str(tmp_path / f"gallery{count}"), str(wide_bundle), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.1 * peaks[0], peaks
