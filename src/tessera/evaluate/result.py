"""What an evaluation found, as JSON and as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.errors import EvaluationError
from tessera.evaluate.protocol import Score, UndefinedFigureError


def keep_defined(attempts: Mapping[str, Callable[[], Score]]) -> tuple[dict[str, Score], dict[str, str]]:
    """Score each protocol; what is undefined gets its reason instead. All of them undefined is an error."""
    scores, undefined = {}, {}
    for name, attempt in attempts.items():
        try:
            scores[name] = attempt()
        except UndefinedFigureError as error:
            undefined[name] = str(error)
    if not scores:
        raise EvaluationError(" ".join(undefined.values()))
    return scores, undefined


@dataclass(frozen=True)
class EvaluationResult:
    """The figures of a run and what they were made of.

    protocols: the figures of each. undefined: why a protocol has none, such as hard where no query has a hard positive.
    dataset, model, query: names; `query` is `box` or `whole`, None where only ranks were given.
    details: whatever else decides the figures (sizes, scales, codec, fingerprints of the images and of the model).
    notes: what the reader should know, such as a count that differs from the published one.
    """

    dataset: str
    model: str | None
    query: str | None
    protocols: Mapping[str, Score]
    undefined: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The contract's keys first, then the details."""
        return {
            "dataset": self.dataset,
            "model": self.model,
            "query": self.query,
            "protocols": {
                **{name: score.to_json() for name, score in self.protocols.items()},
                **{name: self._undefined_json(reason) for name, reason in self.undefined.items()},
            },
            **self.details,
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    def _undefined_json(self, reason: str) -> dict[str, Any]:
        score = next(iter(self.protocols.values()))
        mp = {str(kappa): None for kappa in score.kappas}
        return {"map": None, "ap": [None] * len(score.ap), "mp": mp, "error": reason}

    def rows(self) -> list[list[str]]:
        """A header and one row a protocol, in percent with two decimals, as the field prints them."""
        kappas = next(iter(self.protocols.values())).kappas
        header = ["protocol", "mAP", *(f"mP@{kappa}" for kappa in kappas), "queries"]
        body = [
            [name, percent(score.map), *(percent(score.mp[kappa]) for kappa in kappas), str(score.num_queries)]
            for name, score in self.protocols.items()
        ]
        body += [[name, *["-"] * (len(header) - 2), "0"] for name in self.undefined]
        return [header, *body]

    def to_text(self) -> str:
        """The rows as an aligned table."""
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in cells)
            for cells in (list(enumerate(zip(row, widths, strict=True))) for row in rows)
        ]
        return "\n".join(lines)


def percent(value: float) -> str:
    """A figure in 0..1 as the field prints it."""
    return f"{100 * value:.2f}"
