"""Counters and latency histograms in Prometheus' text format. A few dozen lines, so no client library."""

from __future__ import annotations

import threading
from collections import defaultdict

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Requests by route and status, their durations, and gauges that are read when asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self._buckets: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS_S) + 1))
        self._seconds: dict[str, float] = defaultdict(float)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        slot = next((i for i, bound in enumerate(BUCKETS_S) if seconds <= bound), len(BUCKETS_S))
        with self._lock:
            self._requests[method, route, status] += 1
            self._buckets[route][slot] += 1
            self._seconds[route] += seconds

    def render(self, gauges: dict[str, float]) -> str:
        lines = ["# HELP tessera_requests_total Requests answered.", "# TYPE tessera_requests_total counter"]
        with self._lock:
            for (method, route, status), count in sorted(self._requests.items()):
                labels = f'method="{_escape(method)}",route="{_escape(route)}",status="{status}"'
                lines.append(f"tessera_requests_total{{{labels}}} {count}")
            lines += [
                "# HELP tessera_request_seconds Time to answer.",
                "# TYPE tessera_request_seconds histogram",
            ]
            for route, slots in sorted(self._buckets.items()):
                name, total = _escape(route), 0
                for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), slots, strict=True):
                    total += count
                    lines.append(f'tessera_request_seconds_bucket{{route="{name}",le="{bound}"}} {total}')
                lines.append(f'tessera_request_seconds_sum{{route="{name}"}} {self._seconds[route]:.6f}')
                lines.append(f'tessera_request_seconds_count{{route="{name}"}} {total}')
        for name, value in gauges.items():
            lines += [f"# TYPE tessera_{name} gauge", f"tessera_{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
