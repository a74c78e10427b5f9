"""A run's network as a bundle, with the recipe, the seed and the scores in its card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tessera.config import from_mapping
from tessera.errors import CheckpointError
from tessera.local.system import system_file
from tessera.models.bundle import Bundle
from tessera.models.model_registry import build_model
from tessera.models.onnx_export import export_bundle, make_card
from tessera.storage import hash_file
from tessera.train.init import load_from_run
from tessera.train.recipe import Recipe
from tessera.train.records.checkpoint import checkpoint_of, load_checkpoint


def export_run(run: Path, path: Path, *, name: str | None = None, licence: str = "") -> Bundle:
    """Write the bundle of a run's best weights (its last, where no validation chose) and check its graph."""
    checkpoint = checkpoint_of(run)
    if not checkpoint.is_file() and system_file(run) is not None:
        raise CheckpointError(
            f"{run} has words and no network: it is a system, and goes as it is where --model is asked."
        )
    state = load_checkpoint(checkpoint)
    recipe = from_mapping(Recipe, state["recipe"])
    network = build_model(recipe.model.name, **recipe.model.config)
    load_from_run(network, checkpoint, recipe.model.name)
    card = make_card(network, name or recipe.name, training_data=recipe.data.name, licence=licence)
    card = replace(
        card,
        preprocessing=replace(card.preprocessing, size=recipe.evaluate.size),
        figures={"validation": state["scores"]},
        provenance={
            "command": f"tessera train {recipe.name}",
            "recipe": state["recipe"],
            "recipe_fingerprint": state["fingerprint"],
            "seed": recipe.seed,
            "epoch": state["epoch"],
            "checkpoint_sha256": hash_file(checkpoint),
        },
    )
    return export_bundle(network, path, card)
