"""Score ranks that lie in a file, whatever system made them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.data.ground_truth import GroundTruth, as_ids, read_ground_truth, read_json
from tessera.errors import EvaluationError
from tessera.evaluate.protocol import (
    KAPPAS,
    PROTOCOLS,
    Relevance,
    Score,
    score_protocol,
    score_rankings,
    score_revisited,
)
from tessera.evaluate.result import EvaluationResult, keep_defined

IntArray = npt.NDArray[np.int64]


def evaluate_ranks(
    ground_truth_path: Path | str,
    ranks_path: Path | str,
    *,
    kappas: Sequence[int] = KAPPAS,
    protocols: Sequence[str] = (),
) -> EvaluationResult:
    """Score the ranks of one file by the ground truth of another. protocols: which, all by default."""
    truth = read_ground_truth(ground_truth_path)
    rankings = read_ranks(ranks_path, len(truth.lists))
    scores, undefined = score_truth(truth, rankings, kappas=kappas, protocols=protocols)
    return EvaluationResult(Path(ground_truth_path).stem, None, None, scores, undefined)


def score_truth(
    truth: GroundTruth, rankings: Sequence[IntArray], *, kappas: Sequence[int] = KAPPAS, protocols: Sequence[str] = ()
) -> tuple[dict[str, Score], dict[str, str]]:
    """The figures of each protocol that a ground truth has: easy, medium and hard, or `all` for one of `ok` lists.

    With them why one has none: a set may have no hard images at all. A protocol that was asked for by name must exist.
    """
    if protocols and truth.has_levels:
        return score_revisited(rankings, truth.lists, kappas, protocols), {}
    if truth.has_levels:
        return keep_defined({name: partial(score_protocol, name, rankings, truth.lists, kappas) for name in PROTOCOLS})
    if set(protocols) - {"all"}:
        raise EvaluationError("this ground truth does not tell easy from hard: its one protocol is 'all'.")
    empty = np.empty(0, dtype=np.int64)
    relevances = [Relevance(lists.get("ok", empty), lists.get("junk", empty)) for lists in truth.lists]
    return {"all": score_rankings(rankings, relevances, kappas)}, {}


def read_ranks(path: Path | str, num_queries: int) -> list[IntArray]:
    """One ranking a query from a `.npy` of N Q (best first down each column) or a `.json` of a list a query."""
    path = Path(path)
    if path.suffix == ".npy":
        return _read_columns(path, num_queries)
    if path.suffix != ".json":
        raise EvaluationError(f"{path}: ranks are a .npy (N x Q) or a .json file (a list a query).")
    content = read_json(path)
    if not isinstance(content, list) or not all(isinstance(ranking, list) for ranking in content):
        raise EvaluationError(f"{path} must hold a list of lists, one ranking a query.")
    _check_queries(path, len(content), num_queries, hint="")
    return [as_ids(ranking, f"{path}, query {query}", EvaluationError) for query, ranking in enumerate(content)]


def _read_columns(path: Path, num_queries: int) -> list[IntArray]:
    try:
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise EvaluationError(f"{path} cannot be read as an array of ranks: {error}.") from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or not np.issubdtype(array.dtype, np.integer):
        raise EvaluationError(f"{path} must hold one N x Q array of whole numbers: a column a query, best first.")
    rows, columns = array.shape
    hint = " It looks transposed." if rows == num_queries else ""
    _check_queries(path, columns, num_queries, hint=hint)
    return [np.ascontiguousarray(array[:, query], dtype=np.int64) for query in range(columns)]


def _check_queries(path: Path, found: int, expected: int, *, hint: str) -> None:
    if found != expected:
        raise EvaluationError(f"{path} ranks for {found} queries, and the ground truth has {expected}.{hint}")
