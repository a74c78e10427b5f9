"""The table of labelled data sets: a name, what it is, its configuration and its loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tessera.config import from_mapping
from tessera.data.sets.folder import FolderConfig, load_folder
from tessera.data.sets.gldv2 import Gldv2Config, load_gldv2
from tessera.data.sets.image_lists import (
    Gldv1Config,
    ListConfig,
    TableConfig,
    load_gldv1,
    load_list,
    load_nc_clean,
    load_table,
)
from tessera.data.sets.labelled import ImageSet
from tessera.data.sets.pairs import PairsConfig, PairSet, load_pairs
from tessera.errors import ConfigError
from tessera.registry import Registry


@dataclass(frozen=True)
class DatasetEntry:
    """pairs: the loader gives a PairSet; otherwise an ImageSet. defaults: keys of the configuration set by the name."""

    summary: str
    config: type[Any]
    load: Callable[[Any], ImageSet | PairSet]
    defaults: Mapping[str, Any]
    pairs: bool = False


DATASETS: Registry[DatasetEntry] = Registry("data set")


def _add(
    name: str,
    summary: str,
    config: type[Any],
    load: Callable[[Any], ImageSet | PairSet],
    *,
    pairs: bool = False,
    **defaults: Any,
) -> None:
    DATASETS.add(name, DatasetEntry(summary, config, load, defaults, pairs))


def _load_rgldv2(config: Gldv2Config) -> ImageSet:
    if config.exclude is None and config.exclude_landmarks is None:
        raise ConfigError("rgldv2-clean needs the list of what to leave out: give `exclude` or `exclude_landmarks`.")
    return load_gldv2(config)


_add("gldv2-clean", "Google Landmarks v2, the cleaned part (train_clean.csv)", Gldv2Config, load_gldv2, clean=True)
_add("gldv2", "Google Landmarks v2, all of train.csv", Gldv2Config, load_gldv2, clean=False)
_add("rgldv2-clean", "GLDv2-clean without what overlaps Oxford and Paris", Gldv2Config, _load_rgldv2, clean=True)
_add("gldv1", "Google Landmarks v1 (train.csv and images/)", Gldv1Config, load_gldv1)
_add(
    "nc-clean",
    "Landmarks of Neural Codes, the cleaned list",
    ListConfig,
    load_nc_clean,
    file="annotations/annotation_clean_train.txt",
)
_add("sfm-120k", "pairs from 3-D reconstructions", PairsConfig, load_pairs, pairs=True)
_add("list", "a text file of PATH LABEL lines", ListConfig, load_list)
_add("csv", "a CSV with the columns path and label", TableConfig, load_table)
_add("folder", "a folder of class folders", FolderConfig, load_folder)


def load_dataset(name: str, root: str | None = None, options: Mapping[str, Any] | None = None) -> ImageSet | PairSet:
    """Load a data set by its name; unknown options are refused with the nearest known one.

    root: the folder of the data set, where the options do not give it.
    """
    entry = DATASETS[name]
    values = {**entry.defaults, **(options or {})}
    if root and "root" in {field.name for field in fields(entry.config)}:
        values.setdefault("root", root)
    return entry.load(from_mapping(entry.config, values))
