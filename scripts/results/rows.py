"""The rows of the tables: which recipe each is, and what of it differs here.

A row is trained by `tessera train RECIPE --set ...`: the paper's recipe with the settings of the small protocol laid
over it (results/protocol.md). Rows that two tables share are trained once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BACKBONE = "efficientnet-lite0"
SEEDS = (0, 1, 2)
RATES = (3e-4, 1e-3)
CROP = 192
VIEWS = 2
EPOCHS = 6
BATCH_SIZE = 64
SIZE = 256  # longer side in evaluation

# The settings that every row is trained with; the rate is chosen on val landmarks.
COMMON = (
    "data.held_out=0",
    "model.weights=imagenet",
    f"transform.crop={CROP}",
    "frozen.enabled=true",
    f"frozen.views={VIEWS}",
    "optimiser.name=adam",
    "optimiser.clip_norm=10",
    f"loop.epochs={EPOCHS}",
    f"loop.batch_size={BATCH_SIZE}",
    "loop.workers=1",
    "loop.checkpoint_minutes=3",
)

_TOKEN = (f'model.config.backbone="{BACKBONE}"', "model.config.channels=640")
_ON_LITE = (f'model.config.backbone="{BACKBONE}"',)
_CLASSIFY = ('task={kind="classify",joint=false}',)


@dataclass(frozen=True)
class Row:
    """name: of the row and its runs. label: as the table shows it. recipe: below recipes/. settings: laid over it.

    rate_of: the row whose chosen rate it takes; empty for its own choice. codecs: how its descriptors are ranked.
    """

    name: str
    label: str
    recipe: str
    settings: tuple[str, ...] = ()
    rate_of: str = ""
    codecs: tuple[str, ...] = ("flat",)


@dataclass(frozen=True)
class Table:
    """rows: names of rows with, where a table calls one otherwise, its label there."""

    name: str
    title: str
    rows: dict[str, str] = field(default_factory=dict)


GLOBAL = (
    Row("spoc", "SPoC†", "base/retrained.toml", ('model={name="spoc-r101"}', *_ON_LITE)),
    Row("gem", "GeM†", "base/retrained.toml", ('model={name="gem-r101"}', *_ON_LITE)),
    Row("rmac", "R-MAC†", "table1/c-rmac-r101-retrained.toml", _ON_LITE),
    Row("delg", "DELG†", "table1/c-delg-r101-retrained.toml", (*_CLASSIFY, *_ON_LITE)),
    Row("token", "Token", "table1/c-token-r101.toml", _TOKEN, codecs=("flat", "pq1", "pq8")),
    Row(
        "netvlad",
        "NetVLAD†",
        "table1/c-netvlad-r101-retrained.toml",
        ('model={name="netvlad-r101"}', "model.config.dim=2048", *_ON_LITE),
    ),
    Row("solar", "SOLAR†", "table1/c-solar-r101-retrained.toml", _ON_LITE),
)

ABLATIONS = (
    Row("components-1", "", "components/1-spoc.toml", _TOKEN, rate_of="token"),
    Row("components-2", "", "components/2-tokenizer.toml", _TOKEN, rate_of="token"),
    Row("components-3", "", "components/3-lfsa-tokenizer.toml", _TOKEN, rate_of="token"),
    Row("components-4", "", "components/4-tokenizer-refinement.toml", _TOKEN, rate_of="token"),
    Row("cross", "", "refinement/2-cross.toml", _TOKEN, rate_of="token"),
    Row("self", "", "refinement/3-self.toml", _TOKEN, rate_of="token"),
    Row("learned", "", "tokenizer/learned.toml", _TOKEN, rate_of="token"),
    Row("vq", "", "tokenizer/vq.toml", _TOKEN, rate_of="token"),
    *(Row(f"l{count}", "", f"tokens/l{count}.toml", _TOKEN, rate_of="token") for count in (1, 2, 3, 6, 8)),
)

EQUAL_DIM = tuple(
    Row(f"{row.name}-1024", f"{row.label} 1024-d", row.recipe, (*row.settings, "model.config.dim=1024"), row.name)
    for row in GLOBAL
    if row.name != "token"
)

ROWS = {row.name: row for row in (*GLOBAL, *ABLATIONS, *EQUAL_DIM)}

TABLES = (
    Table("table1", "Table 1 in small, global descriptors", {row.name: row.label for row in GLOBAL}),
    Table("equal-d", "The same at 1024-d", {"token": "Token", **{row.name: ROWS[row.name].label for row in EQUAL_DIM}}),
    Table(
        "components",
        "Components",
        {
            "components-1": "none: SPoC",
            "components-2": "tokenizer",
            "components-3": "LFSA, tokenizer",
            "components-4": "tokenizer, refinement",
            "token": "LFSA, tokenizer, refinement",
        },
    ),
    Table(
        "refinement",
        "Refinement block",
        {
            "components-3": "neither half",
            "cross": "cross-attention",
            "self": "self-attention",
            "token": "self- and cross-attention",
        },
    ),
    Table("tokenizer", "Tokenizer", {"vq": "VQ-based", "learned": "learned", "token": "attention-based"}),
    Table(
        "tokens",
        "Number of tokens",
        {"l1": "L = 1", "l2": "L = 2", "l3": "L = 3", "token": "L = 4", "l6": "L = 6", "l8": "L = 8"},
    ),
)
