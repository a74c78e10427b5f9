"""Logs as lines of JSON, each with the id of the request that it belongs to."""

from __future__ import annotations

import contextvars
import datetime
import json
import logging
import sys

request_id: contextvars.ContextVar[str | None] = contextvars.ContextVar("request_id", default=None)


class JsonLines(logging.Formatter):
    """A record as one line: time, level, message, request id, and what was given as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "request_id": request_id.get(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps({key: value for key, value in line.items() if value is not None}, default=str)


def log_to_stderr(level: str = "info") -> None:
    """Send messages to stderr: Tessera's from this level on, the server's own, and warnings of every library."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.getLogger().handlers = [handler]
    logging.getLogger("tessera").handlers = []  # those of a command, which are no JSON
    logging.getLogger("tessera").setLevel(level.upper())
    logging.captureWarnings(True)
