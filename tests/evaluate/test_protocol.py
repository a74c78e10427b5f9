"""The revisited protocol against the field's own numbers, hand-worked cases and a slow second writing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.errors import EvaluationError
from tessera.evaluate.protocol import (
    PROTOCOLS,
    Relevance,
    average_precision,
    relevance_for,
    score_protocol,
    score_rankings,
    score_revisited,
)

LETTERS = {"E": "easy", "M": "medium", "H": "hard"}
TOLERANCE = 1e-12


def as_floats(values: Any) -> np.ndarray:
    return np.array(values, dtype=float)  # None becomes NaN


def check(score: Any, expected: dict[str, Any]) -> None:
    assert score.map == pytest.approx(expected["mAP"], abs=TOLERANCE)
    np.testing.assert_allclose(score.ap, as_floats(expected["APs"]), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(list(score.mp.values()), expected["mPk"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(score.precision, as_floats(expected["prk"]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("letter", LETTERS)
def test_golden_case_is_met_to_1e_12(golden_dir: Path, letter: str) -> None:
    case = json.loads((golden_dir / "revisitop" / "case0.json").read_text())
    score = score_protocol(LETTERS[letter], case["ranks_db_by_query"], case["gnd"], case["kappas"])
    check(score, case["expected"][letter])


EDGES = (
    "truncated_ranks_no_positive_found",
    "truncated_ranks_some_found",
    "all_queries_empty",
    "fewer_positives_than_kappa_all_on_top",
    "junk_before_only_positive",
    "duplicated_positive_id",
    "same_id_positive_and_junk",
)


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("name", EDGES)
def test_golden_edge_cases(golden_dir: Path, name: str, letter: str) -> None:
    case = json.loads((golden_dir / "revisitop" / "edge.json").read_text())[name]
    expected = case["expected"][letter]
    if "error" in expected:
        with pytest.raises(EvaluationError, match=f"protocol {LETTERS[letter]}"):
            score_protocol(LETTERS[letter], case["ranks"], case["gnd"])
    else:
        check(score_protocol(LETTERS[letter], case["ranks"], case["gnd"]), expected)


def test_golden_ground_truth_without_junk(golden_dir: Path) -> None:
    case = json.loads((golden_dir / "revisitop" / "edge.json").read_text())["gnd_without_junk_key"]
    relevances = [Relevance(np.array(truth["ok"]), np.empty(0, dtype=np.int64)) for truth in case["gnd"]]
    check(score_rankings(case["ranks"], relevances), case["expected"])


def test_golden_average_precisions(golden_dir: Path) -> None:
    cases = json.loads((golden_dir / "revisitop" / "edge.json").read_text())["compute_ap"]
    for case in cases:
        assert average_precision(case["ranks"], case["nres"]) == pytest.approx(case["ap"], abs=TOLERANCE)


def test_no_kappas_give_no_precision_and_admit_a_query_that_found_nothing() -> None:
    score = score_rankings([[3, 4]], [Relevance(np.array([0]), np.empty(0, dtype=np.int64))], kappas=())
    assert score.map == 0.0
    assert score.mp == {}
    assert score.precision.shape == (1, 0)


def slow_score(ranking: list[int], positives: list[int], junk: list[int], kappas: tuple[int, ...]) -> Any:
    """The definition, item by item: walk down the list, skip junk, add one trapezoid a positive."""
    seen = hits = 0
    area = 0.0
    found_at = []
    for item in ranking:
        if item in positives:
            precision_before = hits / seen if seen else 1.0
            hits += 1
            area += (precision_before + hits / (seen + 1)) / 2 / len(positives)
            found_at.append(seen + 1)
            seen += 1
        if item in junk and item in positives:
            seen -= 1  # counted among the positives, and yet taken out of what comes after
        elif item not in junk and item not in positives:
            seen += 1
    precisions = [sum(at <= min(max(found_at), k) for at in found_at) / min(max(found_at), k) for k in kappas]
    return area, precisions


def test_a_thousand_random_rankings_against_a_slow_second_writing() -> None:
    rng = np.random.default_rng(7)
    scored = 0
    while scored < 1000:
        size = int(rng.integers(4, 60))
        ranking = rng.permutation(size)[: int(rng.integers(2, size + 1))].tolist()
        easy, hard, junk = (rng.choice(size, int(rng.integers(0, size // 2 + 1))).tolist() for _ in range(3))
        truth = {"easy": easy, "hard": hard, "junk": junk}
        for name, protocol in PROTOCOLS.items():
            positives = [item for part in protocol.positives for item in truth[part]]
            skipped = [item for part in protocol.junk for item in truth[part]]
            if not set(positives) & set(ranking):
                continue
            area, precisions = slow_score(ranking, positives, skipped, (1, 5, 10))
            score = score_protocol(name, [ranking], [truth])
            assert score.map == pytest.approx(area, abs=TOLERANCE)
            np.testing.assert_allclose(score.precision[0], precisions, rtol=0, atol=TOLERANCE)
            scored += 1
    assert scored >= 1000


def test_values_worked_by_hand() -> None:
    # Ranking 9 [junk] 0 7 1: positives 0 and 1 stand at 0 and 2 without the junk: (1 + 1)/2/2 + (1/2 + 2/3)/2/2.
    score = score_protocol("medium", [[9, 0, 7, 1]], [{"easy": [0], "hard": [1], "junk": [9]}])
    assert score.map == pytest.approx(0.5 + (1 / 2 + 2 / 3) / 4, abs=TOLERANCE)
    assert score.mp == {1: 1.0, 5: 2 / 3, 10: 2 / 3}


def test_an_empty_query_is_nan_and_leaves_the_means() -> None:
    score = score_protocol("easy", [[0, 1], [1, 0]], [{"easy": [0]}, {"hard": [1]}])
    assert score.map == 1.0
    assert math.isnan(score.ap[1])
    assert score.to_json() == {"map": 1.0, "ap": [1.0, None], "mp": {"1": 1.0, "5": 1.0, "10": 1.0}}


def test_padding_is_not_an_image() -> None:
    padded = score_protocol("easy", [[2, 0, -1, -1]], [{"easy": [0]}])
    assert padded.map == 0.25


def test_relevance_of_each_protocol() -> None:
    truth = {"easy": [1], "hard": [2], "junk": [3]}
    hard = relevance_for(truth, PROTOCOLS["hard"])
    assert hard.positives.tolist() == [2]
    assert sorted(hard.junk.tolist()) == [1, 3]
    assert set(score_revisited([[1, 2, 3]], [truth])) == {"easy", "medium", "hard"}


@pytest.mark.parametrize(
    ("rankings", "truth", "message"),
    [
        ([[0, 1], [1, 0]], [{"easy": [0]}], "rankings of 2 queries and a ground truth of 1"),
        ([[0, 1, 0]], [{"easy": [1]}], "id 0 stands more than once"),
        ([[0.5, 1.0]], [{"easy": [1]}], "whole numbers"),
        ([[0, 1]], [{"easy": ["tower"]}], "list 'easy' must be a flat list of whole numbers"),
        ([[0, 1]], [{"easy": [[1]]}], "list 'easy' must be a flat list"),
        ([[[0, 1], [1, 0]]], [{"easy": [1]}], "2 dimensions"),
    ],
)
def test_what_cannot_be_scored_is_an_error(rankings: Any, truth: Any, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        score_protocol("easy", rankings, truth)


def test_unknown_protocol_and_kappa() -> None:
    with pytest.raises(EvaluationError, match=r"'hrad' is not known. Known: easy, medium, hard"):
        score_protocol("hrad", [], [])
    with pytest.raises(EvaluationError, match="at least 1"):
        score_protocol("easy", [[0]], [{"easy": [0]}], kappas=(0,))
