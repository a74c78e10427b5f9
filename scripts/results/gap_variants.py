"""What `gap.py` changes, one thing at a time: groups of variants of a row."""

from __future__ import annotations

from dataclasses import dataclass

from rows import EPOCHS


@dataclass(frozen=True)
class Variant:
    """row: of the tables. settings: laid over it. epochs: how many of the tables' 61 steps it learns.

    views: crops of each photo. classes: how many it learns from, 0 for all. share: of each class's photos. start: of
    `gap_starts`, instead of the network's own.
    """

    name: str
    row: str
    settings: tuple[str, ...] = ()
    epochs: float = EPOCHS
    views: int = 1
    classes: int = 0
    share: float = 1.0
    start: str = ""


SHORT = 2  # epochs: about where Token is best


def _rate(rate: str) -> str:
    return f"optimiser.rate={rate}"


GROUPS: dict[str, tuple[Variant, ...]] = {
    "epochs": tuple(
        Variant(f"{row}, {epochs} epochs", row, epochs=epochs)
        for row in ("token", "components-1", "spoc")
        for epochs in (0, 1, 2, 6, 18)
    ),
    "classes": tuple(
        Variant(f"{row}, {classes} classes", row, epochs=SHORT, classes=classes)
        for row in ("token", "components-1", "spoc")
        for classes in (50, 110, 220)
    ),
    "photos": tuple(
        Variant(f"{row}, half of each class's photos", row, epochs=SHORT, share=0.5)
        for row in ("token", "components-1", "spoc")
    ),
    "starts": tuple(
        variant
        for start in ("quiet", "isometric", "whitened")
        for variant in (
            Variant(f"token, {start}, untrained", "token", epochs=0, start=start),
            *(
                Variant(f"token, {start}, rate {rate}", "token", (_rate(rate),), SHORT, start=start)
                for rate in ("3e-5", "3e-4")
            ),
        )
    ),
    "regularisation": (
        Variant("token, rate 1e-4", "token", (_rate("1e-4"),), SHORT),
        Variant("token, dropout 0.5", "token", ("model.config.dropout=0.5",), SHORT),
        Variant("token, AdamW, decay 1", "token", ("optimiser.name=adamw", "optimiser.weight_decay=1.0"), SHORT),
        Variant("token, three crops", "token", epochs=3, views=3),
        Variant("token, no margin", "token", ("loss.config={margin_rad=0.0,scale=32.0}",), SHORT),
        Variant("token, scale 16", "token", ("loss.config={margin_rad=0.2,scale=16.0}",), SHORT),
    ),
}
