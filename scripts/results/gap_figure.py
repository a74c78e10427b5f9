"""results/gap.csv to a figure: val mAP against epochs and classes, and what else was tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from figures import BLUE, GREEN, GREY, curve, save, spread_points
from gap_variants import GROUPS, SHORT, Variant
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from rows import EPOCHS
from run import read_csv

HEADS = {
    "spoc": ("SPoC†", GREEN),
    "components-1": ("Token's reduction and $W_g$ alone", GREY),
    "token": ("Token", BLUE),
}
CLASSES = 442


class Gap:
    """mAP in percent by group and variant, one a seed; at the tables' length the tables' own runs stand in."""

    def __init__(self, path: Path) -> None:
        self.found = read_csv(path)
        self.of_tables = {row["row"]: row for row in read_csv(path.with_name("choices.csv")) if row["rate"] == "0.0003"}

    def values(self, group: str, variant: Variant) -> list[float]:
        own = [row for row in self.found if (row["group"], row["variant"]) == (group, variant.name)]
        if not own and group == "epochs" and variant.epochs == EPOCHS and variant.row in self.of_tables:
            own = [self.of_tables[variant.row]]
        return [100 * float(row["map"]) for row in own]

    def points(self, group: str, row: str, key: str) -> list[tuple[float, list[float]]]:
        """Of one row against a field of its variants."""
        own = [variant for variant in GROUPS[group] if variant.row == row]
        pairs = [(float(getattr(variant, key)), self.values(group, variant)) for variant in own]
        return [(x, values) for x, values in pairs if values]


def draw_gap(path: Path, target: Path) -> Path:
    """A panel for each kind of experiment that was made."""
    gap = Gap(path)
    tried = [(group, variant) for group in ("starts", "regularisation") for variant in GROUPS[group]]
    tried = [one for one in tried if gap.values(*one) and one[1].epochs]
    drawn: list[Callable[[Axes], None]] = [lambda axes: draw_epochs(gap, axes)]
    if any(gap.points("classes", row, "classes") for row in HEADS):
        drawn.append(lambda axes: draw_classes(gap, axes))
    if len(tried) > 1:
        drawn.append(lambda axes: draw_tried(gap, tried, axes))
    figure, panels = plt.subplots(1, len(drawn), figsize=(1 + 4.2 * len(drawn), 3.5), squeeze=False)
    for draw, axes in zip(drawn, panels[0], strict=True):
        draw(axes)
    return save(figure, target)


def draw_epochs(gap: Gap, axes: Axes) -> None:
    for row, (label, colour) in HEADS.items():
        points = gap.points("epochs", row, "epochs")
        curve(axes, points, "", colour)
        x, values = points[-1]
        axes.annotate(
            label, (x, values[0]), (3, -15), textcoords="offset points", ha="right", color=colour, fontsize=8.5
        )
    axes.margins(y=0.15)
    axes.set_title("trained longer")
    axes.set_xlabel("epochs of 61 steps (0: untrained; 6: the tables)")
    axes.set_ylabel("mAP on val landmarks, %")


def draw_classes(gap: Gap, axes: Axes) -> None:
    for row, (label, colour) in HEADS.items():
        whole = [(float(CLASSES), values) for epochs, values in gap.points("epochs", row, "epochs") if epochs == SHORT]
        curve(axes, [*gap.points("classes", row, "classes"), *whole], label, colour)
    axes.set_title(f"trained on more labels, {SHORT} epochs' steps")
    axes.set_xscale("log", base=2)
    labels = [*dict.fromkeys(variant.classes for variant in GROUPS["classes"]), CLASSES]
    axes.set_xticks(labels, [str(count) for count in labels])
    axes.minorticks_off()
    axes.set_xlabel(f"labels, of {CLASSES}")


def draw_tried(gap: Gap, tried: Sequence[tuple[str, Variant]], axes: Axes) -> None:
    names = [variant.name.removeprefix("token, ") for _, variant in tried]
    spread_points(axes, [(place, gap.values(*one)) for place, one in enumerate(tried)], "", BLUE)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_title("Token otherwise", pad=16)
    axes.set_xlabel("mAP on val landmarks, %")
    for epochs, values in gap.points("epochs", "token", "epochs"):
        if epochs in (0, SHORT):
            axes.axvline(values[0], color=GREY, lw=1, ls="--" if epochs else ":", zorder=0)
            label = f"as the recipe has it, {SHORT} epochs" if epochs else "untrained"
            axes.annotate(label, (values[0], -0.5), (2, 3), textcoords="offset points", fontsize=7.5, color=GREY)
