"""The README says what `results/` says: every figure of its table is looked up again."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows(name: str, key: str) -> dict[str, dict[str, str]]:
    with (ROOT / "results" / name).open(encoding="utf-8") as file:
        return {row[key]: row for row in csv.DictReader(file)}


def line(start: str) -> str:
    """The row of the README's table that begins with these words."""
    return next(text for text in README.splitlines() if text.startswith(f"| {start}"))


def test_the_default_search_and_what_it_is_made_of() -> None:
    sets = rows("parts/validation.csv", "set")
    landmarks = sets.pop("gldv2-50")
    columns = ("default search", "lite", "ASMK*")
    found, alone, local = (f"{mean(float(row[column]) for row in sets.values()):.1f}" for column in columns)
    said = line("mAP of the default search")
    assert len(sets) == 7
    assert f"| {found} |" in said
    assert f"its descriptor alone {alone}, local features alone (ASMK\\*) {local}" in said
    assert "| {} | {}, {} |".format(*(landmarks[column] for column in columns)) in line("the same, landmarks")


def test_the_descriptor_beside_poolings_of_its_backbone() -> None:
    poolings = rows("lite/poolings.csv", "descriptor")
    said = line("mAP of the descriptor alone")
    own = next(row for name, row in poolings.items() if name.startswith("`lite`, tuned") and name.endswith("seeds"))
    assert f"| {own['px384_views'].split()[0]} |" in said
    for name, words in (
        ("GeM", "GeM {}"),
        ("R-MAC, PCA to 512, half whitened", "R-MAC with PCA {}"),
        ("R-MAC, whitened within instances, d = 1024", "R-MAC whitened as ours is {}"),
    ):
        assert words.format(poolings[name]["px384_views"]) in said


def test_certainty_copies_and_speed() -> None:
    certain = rows("parts/certainty.csv", "set")["all"]
    said = line('says "nothing certain"')
    assert f"| {100 * float(certain['nothing certain, thing taken out']):.0f} % |" in said
    assert f"in {100 * float(certain['nothing certain']):.0f} % where it is" in said
    copies = rows("photos/duplicates.csv", "alteration")["all"]
    assert f"| {100 * float(copies['found']):.1f} % |" in line("resized, cropped")
    with (ROOT / "results" / "search" / "in-turn.csv").open(newline="") as file:
        timed = {(row["descriptors"], row["competitor"]): float(row["ms_at_10"]) for row in csv.DictReader(file)}
    said = line("one of a million")
    assert f"| {timed['synthetic-1000000', 'fast']:.1f} ms |" in said
    peer = "faiss OPQ128 fast-scan refined"
    assert f"OPQ fast-scan with re-scoring {timed['synthetic-1000000', peer]:.1f} ms" in said
    real = {name: ms for (descriptors, name), ms in timed.items() if descriptors == "views-60000"}
    assert (min(real, key=real.__getitem__) != "fast") == ("among 60,000 real ones FAISS is ahead" in said)


def test_what_it_costs() -> None:
    cost = rows("parts/cost.csv", "what")
    small, large = (cost["a search, s"][count] for count in ("10,000 images", "100,000 images"))
    assert (
        f"a search takes {float(small):.2f} s among 10,000 photographs and {float(large):.2f} s among 100,000" in README
    )
    assert round(float(cost["indexing a picture, ms"]["10,000 images"]) / 1000, 1) == 0.1
    assert "indexed in some 0.1 s" in README


def test_it_is_a_screen() -> None:
    assert len(README.splitlines()) <= 55
