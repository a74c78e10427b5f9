"""`tessera models`: every network that can be built, trained or converted to."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

import typer

from tessera.cli.options import JsonOption
from tessera.cli.output import print_json, print_table, say, size_text

EXAMPLE = "Example: tessera models gem-r50 token-r50 token-released --measure"

MeasureOption = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Count multiply-adds anew with torch's flop counter, and time a forward pass of each in turns.",
    ),
]


def models(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; all by default.")] = None,
    measure: MeasureOption = False,
    json: JsonOption = False,
) -> None:
    """List the networks: what each is, its paper, its descriptor size, parameters, multiply-adds at 1024 x 768.

    A network is an architecture, for `tessera train` and `tessera convert`. The option --model of other commands takes
    a bundle, a network with its weights: a folder, or the name of a packaged one, which come first.
    """
    from tessera.errors import MissingExtraError
    from tessera.models.bundle import packaged_names
    from tessera.models.flops import count_entry, model_cost, time_networks
    from tessera.models.model_registry import MODELS

    if measure and find_spec("torch") is None:
        raise MissingExtraError("--measure", "train")
    rows: list[dict[str, Any]] = []
    for name in names or list(MODELS):
        entry = MODELS[name]
        cost = count_entry(entry) if measure else model_cost(name)
        rows.append(
            {
                "name": name,
                "summary": entry.summary,
                "paper": entry.paper,
                "kind": entry.kind,
                "dim": entry.dim,
                "num_tokens": entry.num_tokens,
                "parameters": cost.parameters,
                "multiply_adds": cost.multiply_adds,
            }
        )
    if measure:
        say(f"timing {len(rows)} networks at 1024 x 768")
        networks = [MODELS[row["name"]].build(MODELS[row["name"]].resolve()).eval() for row in rows]
        for row, seconds in zip(rows, time_networks(networks), strict=True):
            row["seconds"] = round(seconds, 4)
            row["multiply_adds_ratio"] = round(row["multiply_adds"] / rows[0]["multiply_adds"], 4)
            row["seconds_ratio"] = round(seconds / rows[0]["seconds"], 3)
    if json:
        print_json({"models": rows, "packaged": packaged_names()})
        return
    if not names:
        say("packaged with their weights, for --model:")
        print_table(("name", "D", "L", "weights", "what"), [_packaged_cells(name) for name in packaged_names()])
        say("networks, for `tessera train` and `tessera convert` (papers: --json):")
    header = ["name", "D", "L", "parameters", "multiply-adds", *(["seconds", "of the first"] if measure else ["what"])]
    print_table(header, [_cells(row, measure) for row in rows], cut="what")


def _cells(row: dict[str, Any], measured: bool) -> list[str]:
    cells = [
        str(row["name"]),
        str(row["dim"]),
        str(row["num_tokens"] or "-"),
        f"{row['parameters'] / 1e6:.1f} M",
        f"{row['multiply_adds'] / 1e9:.2f} G",
    ]
    if measured:
        return [*cells, f"{row['seconds']}", f"{row['multiply_adds_ratio']} work, {row['seconds_ratio']} time"]
    return [*cells, str(row["summary"])]


def _packaged_cells(name: str) -> list[str]:
    from tessera.models.bundle import Bundle

    bundle = Bundle.open(name)
    card = bundle.card
    weights = bundle.weights_path.stat().st_size if bundle.weights_path.is_file() else 0
    what = f"{card.architecture['model']} at {card.preprocessing.size} px, {card.licence}"
    return [name, str(card.dim), str(card.num_tokens or "-"), size_text(weights), what]
