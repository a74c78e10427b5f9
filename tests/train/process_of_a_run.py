"""One process of a training run, in a fork of a process that has imported torch already: `main()` on `WORDS`.

`ENVIRONMENT` says which process it is, `OUTPUT` and `ERRORS` where it writes. `KILLED_AT`, a step: it is killed at any
moment between the end of that step and the end of the next, however slow the machine is.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from pathlib import Path

import torch

from tessera.cli.main import main
from tessera.train.records.scalars import ScalarLog

given = globals()
os.environ.update(given["ENVIRONMENT"])
torch.set_num_threads(1)
for path, stream in ((given["OUTPUT"], 1), (given["ERRORS"], 2)):
    os.dup2(os.open(Path(path), os.O_WRONLY | os.O_CREAT), stream)
sys.argv = ["tessera", *given["WORDS"]]

if given["KILLED_AT"] is not None:
    at, write = given["KILLED_AT"], ScalarLog.write

    def dying(self: ScalarLog, epoch: int, step: int, **values: float) -> None:
        if step > at:
            signal.pause()
        write(self, epoch, step, **values)
        if step == at:
            threading.Timer(random.uniform(0, 0.05), os.kill, (os.getpid(), signal.SIGKILL)).start()

    ScalarLog.write = dying  # type: ignore[method-assign]

main()
