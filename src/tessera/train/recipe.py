"""A recipe: everything that decides a training run, as one TOML file over a base.

`base = "paper.toml"` takes another file and lays this one over it, table by table; `--set optimiser.rate=0.02` is laid
over both. What comes out is one frozen `Recipe`; it goes into every checkpoint with its fingerprint. Loads no torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tessera.config import fingerprint, from_mapping, to_mapping
from tessera.data.transforms import TransformConfig
from tessera.errors import ConfigError, TrainingError

_OF_THE_NAME = frozenset({"config", "options", "validation"})  # keys that mean something to one name only

# Numbers below these would give an epoch of nothing or a division by zero.
_AT_LEAST = {
    0: ("data.held_out", "loop.steps_per_epoch", "optimiser.rate", "optimiser.clip_norm", "task.initial_images"),
    1: (
        *("loop.epochs", "loop.batch_size", "loop.accumulate", "loop.log_every", "frozen.views", "evaluate.size"),
        *("task.queries", "task.pool", "task.negatives", "task.chunk", "task.per_class", "task.words"),
        *("validation.every_epochs", "validation.size"),
    ),
}

# Keys that change where a run reads, writes or how fast it goes, but not one of its numbers.
FREE_KEYS = frozenset(
    {
        "data.root",
        "data.cache_gb",
        "frozen.dir",
        "loop.workers",
        "loop.worker_kind",
        "loop.checkpoint_minutes",
        "loop.log_every",
        "evaluate",
        "table",
        "published",
    }
)


@dataclass(frozen=True)
class DataSection:
    """name: of the data set registry. root: its folder, given on the command line as a rule. options: its own keys.

    held_out: share of each class kept for validation, by `split_seed`. validation: options laid over `options` for a
    retrieval set of its own (landmarks that training never sees); empty takes the held-out images. decode_size:
    longer side at which photos are decoded, 0 for their own. cache_gb: decoded photos kept in memory, for all threads.
    """

    name: str = "gldv2-clean"
    root: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    held_out: float = 0.2
    split_seed: int = 0
    validation: dict[str, Any] = field(default_factory=dict)
    decode_size: int = 0
    cache_gb: float = 0.0


@dataclass(frozen=True)
class ModelSection:
    """weights: `imagenet` for the backbone's own, `none`, or the path of a run or of a backbone's file."""

    name: str = "token-r101"
    weights: str = "imagenet"
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LossSection:
    name: str = "arcface"
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSection:
    """What a step is made of.

    classify: images and labels. tuples: a query, a positive and hard negatives mined anew each epoch. listwise: one
    large batch ranked as a whole, in two passes. attention: local attention over a finished network (DELF), or beside
    the descriptor with gradients kept apart (`joint`, DELG). codebook: no gradient at all, words over local features.

    queries, pool, negatives: of an epoch of tuples. chunk: images in memory at a time in two passes. per_class: images
    of a class in a listwise batch. initial_images: to fit HOW's reduction to, before the first step. words: of a
    codebook.
    """

    kind: Literal["classify", "tuples", "listwise", "attention", "codebook"] = "classify"
    queries: int = 2000
    pool: int = 20000
    negatives: int = 5
    chunk: int = 16
    per_class: int = 4
    joint: bool = False
    local_loss: Literal["softmax", "arcface"] = "softmax"
    local_margin_rad: float = 0.1
    attention_weight: float = 1.0
    reconstruction_weight: float = 10.0
    initial_images: int = 0
    words: int = 65536


@dataclass(frozen=True)
class OptimiserSection:
    """rates: factor on the rate by the start of a parameter's name (`network.backbone = 0.1`); 0 freezes it.

    Biases and 1-D parameters get no weight decay. clip_norm: 0 for no clipping.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    rate: float = 0.01
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    clip_norm: float = 0.0
    rates: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ScheduleSection:
    """linear: to `final_rate` step by step. cosine: after `warmup_epochs` up from `warmup_rate`. exponential: times
    `decay` an epoch. constant."""

    kind: Literal["linear", "cosine", "exponential", "constant"] = "linear"
    warmup_epochs: float = 0.0
    warmup_rate: float = 0.0
    final_rate: float = 0.0
    decay: float = 0.99


@dataclass(frozen=True)
class LoopSection:
    """batch_size: of all processes together. accumulate: micro-batches of a step. steps_per_epoch: 0 for all images.

    precision `auto`: bfloat16 or float16 on a GPU that has it, float32 on a CPU; `fp64` is for comparing runs, whose
    rounding grows from step to step. average: decay of the averaged weights, 0 for none. freeze_batch_norm: use the
    start's statistics, as tuple losses on single images need.
    """

    epochs: int = 30
    batch_size: int = 128
    accumulate: int = 1
    steps_per_epoch: int = 0
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp64"] = "auto"
    freeze_batch_norm: bool = False
    average: float = 0.0
    checkpoint_minutes: float = 15.0
    log_every: int = 10
    workers: int = 2
    worker_kind: Literal["thread", "process"] = "thread"


@dataclass(frozen=True)
class FrozenSection:
    """Train the head alone on maps that the backbone gave once; `views` different crops of each image are kept."""

    enabled: bool = False
    views: int = 4
    dir: str = ""


@dataclass(frozen=True)
class ValidationSection:
    """metric: which score decides `best` and the median run. size: longer side for retrieval. max_images: 0 for all."""

    metric: Literal["map", "accuracy", "loss"] = "map"
    every_epochs: int = 1
    size: int = 512
    max_images: int = 2000


@dataclass(frozen=True)
class EvaluateSection:
    """How the row of the table is measured: the options of `tessera evaluate`."""

    size: int = 1024
    codec: str = "flat"
    system: str = ""
    rerank: str = ""


@dataclass(frozen=True)
class Recipe:
    """table: the row it reproduces. published: the paper's figures, per set Medium and Hard (with +1M after them)."""

    name: str = ""
    table: str = ""
    seed: int = 0
    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    loss: LossSection = field(default_factory=LossSection)
    task: TaskSection = field(default_factory=TaskSection)
    transform: TransformConfig = field(default_factory=TransformConfig)
    optimiser: OptimiserSection = field(default_factory=OptimiserSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    loop: LoopSection = field(default_factory=LoopSection)
    frozen: FrozenSection = field(default_factory=FrozenSection)
    validation: ValidationSection = field(default_factory=ValidationSection)
    evaluate: EvaluateSection = field(default_factory=EvaluateSection)
    published: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for least, keys in _AT_LEAST.items():
            for key in keys:
                section, name = key.split(".")
                value = getattr(getattr(self, section), name)
                if not value >= least:
                    raise ConfigError(f"{key} must be at least {least}, not {value}.")

    @property
    def fingerprint(self) -> str:
        """Of every key that decides a number of the run."""
        return fingerprint({key: value for key, value in flatten(to_mapping(self)).items() if not _is_free(key)})


def load_recipe(path: Path, settings: Sequence[str] = ()) -> Recipe:
    """Read a recipe with its bases, lay `key=value` settings over it, and check every key."""
    values = _read_with_bases(path, ())
    for setting in settings:
        values = _lay_over(values, _parse_setting(setting, values))
    values.setdefault("name", path.stem)
    try:
        return from_mapping(Recipe, values)
    except ConfigError as error:
        raise ConfigError(f"recipe {path}: {error}") from error


def check_same(saved: Mapping[str, Any], recipe: Recipe) -> None:
    """Refuse to resume a run with another recipe, naming each key that differs."""
    before, now = flatten(dict(saved)), flatten(to_mapping(recipe))
    differing = [
        f"{key}: {before.get(key, 'not set')!r} in the run, {now.get(key, 'not set')!r} now"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not _is_free(key)
    ]
    if differing:
        raise TrainingError(
            f"the run was started with another recipe. Differing: {'; '.join(differing)}. Resume it with the same "
            "values, or start a new run in another folder."
        )


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _is_free(key: str) -> bool:
    return key in FREE_KEYS or key.split(".", maxsplit=1)[0] in FREE_KEYS


def _read_with_bases(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    resolved = path.resolve()
    if resolved in seen:
        raise ConfigError(f"recipe {path} is its own base: {' -> '.join(p.name for p in (*seen, resolved))}.")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"recipe {path} is not there.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise ConfigError(f"recipe {path} cannot be read: {error}.") from error
    except RecursionError as error:
        raise ConfigError(f"recipe {path} cannot be read: it is nested too deeply.") from error
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise ConfigError(f"recipe {path}: base must be the path of a file, not {base!r}.")
    return _lay_over(_read_with_bases(path.parent / base, (*seen, resolved)), values)


def _lay_over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Table by table. Another `name` starts its own keys anew: a contrastive loss has no use for ArcFace's."""
    merged = dict(below)
    if "name" in above and "name" in below and above["name"] != below["name"]:
        merged = {key: value for key, value in below.items() if key not in _OF_THE_NAME}
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _lay_over(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _parse_setting(setting: str, values: Mapping[str, Any]) -> dict[str, Any]:
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {setting!r} must have the form key=value, as in --set optimiser.rate=0.02.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text  # a bare word is a string
    *tables, last = key.strip().split(".")
    place: Any = values
    for table in tables:
        place = place.get(table, {})
        if not isinstance(place, Mapping):
            raise ConfigError(f"--set {setting!r}: {table} is a value, not a table of keys.")
    parsed: dict[str, Any] = {last: value}
    for table in reversed(tables):
        parsed = {table: parsed}
    return parsed
