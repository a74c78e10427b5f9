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
VIEWS = 1
EPOCHS = 6
BATCH_SIZE = 64
SIZE = 256  # longer side in evaluation

# Laid over everything to see in a minute that every path works; the figures mean nothing.
SMOKE = ("loop.epochs=1", "loop.steps_per_epoch=2", "loop.batch_size=8", "task.queries=8", "task.pool=16")

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
    """name: of the row and its runs. label: as the table shows it. recipe: of the package.
    settings: laid over it.
    rate_of: the row whose chosen rate it takes; empty for its own choice. codecs: how its descriptors are ranked.
    trained: whether the backbone's last stage learns, so that the pictures' maps are its own.
    """

    name: str
    label: str
    recipe: str
    settings: tuple[str, ...] = ()
    rate_of: str = ""
    codecs: tuple[str, ...] = ("flat",)
    trained: bool = False


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

# Rows whose papers have losses of their own. Rates are of whole networks there; the batches are what fits here.
_TUPLES = (
    *_ON_LITE,
    "transform.kind=crop",
    "task.queries=640",
    "task.pool=1000",
    "loop.batch_size=16",
    "loop.accumulate=1",
    "loop.freeze_batch_norm=true",
)
OWN_LOSS = (
    Row("gem-contrastive", "GeM", "table1/b-gem-r101-dsm.toml", ("loop.epochs=3", *_TUPLES)),
    Row(
        "rmac-triplet",
        "R-MAC",
        "table1/c-rmac-r101.toml",
        ('model={name="rmac-released-r101"}', "loop.epochs=3", *_TUPLES),
    ),
    Row(
        "solar-own",
        "SOLAR",
        "table1/c-solar-r101.toml",
        ('model={name="solar-released-r101"}', "loop.epochs=3", *_TUPLES),
    ),
    Row(
        "gem-ap",
        "GeM-AP",
        "table1/c-gem-ap-r101.toml",
        (*_ON_LITE, "transform.kind=crop", "task.chunk=64", "loop.batch_size=256", "loop.steps_per_epoch=15"),
    ),
)

# The last stage (blocks at stride 32 and the convolution after them) learns too, at a tenth of the rate.
_STILL = ("_conv_stem", "_bn0", *(f"_blocks.{number}" for number in range(11)))
_RATES = ", ".join(['"network.backbone" = 0.1', *(f'"network.backbone.{part}" = 0' for part in _STILL)])
TRAIN_LAST_STAGE = (
    "frozen.enabled=false",
    "data.cache_gb=1.5",
    "loop.epochs=2",
    f"optimiser.rates={{{_RATES}}}",
)
LAST_STAGE = tuple(
    Row(f"{row.name}-trained", row.label, row.recipe, (*row.settings, *TRAIN_LAST_STAGE), row.name, trained=True)
    for row in GLOBAL
)

# Protocol 2: a third of the length, which val landmarks asked for (results/gap.md); nothing else differs.
SHORT = tuple(
    Row(f"{row.name}-short", row.label, row.recipe, (*row.settings, "loop.epochs=2"), row.rate_of or row.name)
    for row in (*GLOBAL, next(row for row in ABLATIONS if row.name == "components-1"))
)

# What the backbone gives before anything is trained: no rows of the paper's tables, but what their figures start from.
REFERENCES = {f"imagenet-{pooling}": pooling for pooling in ("spoc", "gem", "rmac")}

# HOW beside its row: with the reduction that it starts from, and with the backbone's last stage learning instead of it.
HOW_PCA, HOW_TRAINED = "how-pca", "how-trained"

# The default search and its halves, beside the rows: nothing of them is trained here, so they have no seeds.
DEFAULT, LITE, PARTS = "default", "default-global", "default-local"
DEFAULT_BY = {DEFAULT: "auto", LITE: "global", PARTS: "local"}
SYSTEM_LABELS = {
    DEFAULT: "default search",
    LITE: "`lite` alone (tokens)",
    PARTS: "its ASMK\\* alone",
    **{row.name: row.label for row in GLOBAL},
    **{name: f"{label}, ImageNet" for name, label in zip(REFERENCES, ("SPoC", "GeM", "R-MAC"), strict=True)},
    "how": "HOW-ASMK\\*†",
}

ROWS = {row.name: row for row in (*GLOBAL, *ABLATIONS, *EQUAL_DIM, *OWN_LOSS, *LAST_STAGE, *SHORT)}

TABLES = (
    Table("table1", "Table 1 in small", {row.name: row.label for row in GLOBAL}),
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
    Table(
        "references",
        "The backbone as ImageNet left it: nothing is trained",
        {"imagenet-spoc": "SPoC", "imagenet-gem": "GeM, p = 3", "imagenet-rmac": "R-MAC", HOW_PCA: "HOW-ASMK\\*, PCA"},
    ),
    Table("own-loss", "Losses of their own", {row.name: row.label for row in OWN_LOSS}),
    Table(
        "short",
        "Two epochs instead of six",
        {row.name: row.label or "components, none: SPoC" for row in SHORT},
    ),
    Table(
        "last-stage",
        "The last stage trained too",
        {**{row.name: row.label for row in LAST_STAGE}, HOW_TRAINED: "HOW-ASMK\\*†"},
    ),
)
