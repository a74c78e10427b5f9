"""The one place where ONNX Runtime is imported."""

from __future__ import annotations

import os
from types import ModuleType


def import_onnxruntime() -> ModuleType:
    """ONNX Runtime with its telemetry off: from 1.31 on it looks up a host when it is imported.

    Only the environment stops that, and only before the first import; its own call comes too late.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    return onnxruntime  # type: ignore[no-any-return]
