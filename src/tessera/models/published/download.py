"""Files of a published model from the Hugging Face hub, each checked against the hash that the hub states.

Only `tessera models get` comes here: nothing is fetched at import, or because a name was met.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tessera.errors import DownloadError, MissingExtraError
from tessera.models.published.known import KnownModel
from tessera.storage import hash_file

_SETTINGS = ("config.json", "preprocessor_config.json", "open_clip_config.json")
_WEIGHTS = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class RemoteFile:
    """size, sha256: as the hub states them; of small files it states no hash."""

    name: str
    size: int | None
    sha256: str | None


@dataclass(frozen=True)
class Listing:
    """The files of a model that are needed, at one commit."""

    repo: str
    commit: str
    files: Sequence[RemoteFile]

    @property
    def num_bytes(self) -> int:
        return sum(file.size or 0 for file in self.files)


def list_files(model: KnownModel) -> Listing:
    """Ask the hub which files a model has."""
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise MissingExtraError("tessera models get", "hub") from error
    try:
        info = HfApi(endpoint=_endpoint()).model_info(model.repo, files_metadata=True)
    except Exception as error:  # of httpx, of the hub, of the system: all mean that nothing came
        raise DownloadError(_reason(model, error)) from error
    remote = {
        file.rfilename: RemoteFile(file.rfilename, file.size, file.lfs.sha256 if file.lfs else None)
        for file in info.siblings or []
    }
    weights = next((name for name in _WEIGHTS if name in remote or f"{name}.index.json" in remote), None)
    if weights is None or info.sha is None:
        raise DownloadError(f"{model.repo} holds no weights that are known: none of {', '.join(_WEIGHTS)}.")
    stem, suffix = weights.rsplit(".", 1)
    shards = [name for name in remote if name.startswith(f"{stem}-") and name.endswith(f".{suffix}")]
    wanted = [weights] if weights in remote else [f"{weights}.index.json", *sorted(shards)]
    wanted += [name for name in _SETTINGS if name in remote]
    return Listing(model.repo, info.sha, [remote[name] for name in wanted])


def fetch(model: KnownModel, listing: Listing, folder: Path) -> Path:
    """Download the files of a listing into a folder, and check each."""
    from huggingface_hub import hf_hub_download

    for file in listing.files:
        try:
            path = Path(
                hf_hub_download(
                    listing.repo, file.name, revision=listing.commit, local_dir=folder, endpoint=_endpoint()
                )
            )
        except Exception as error:
            raise DownloadError(_reason(model, error)) from error
        _check(model, file, path)
    return folder


def _check(model: KnownModel, file: RemoteFile, path: Path) -> None:
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        path.unlink()
        raise DownloadError(
            f"{model.repo}: {file.name} came with {size:,} of {file.size:,} bytes. Run the command again."
        )
    pinned = model.sha256 if file.name in _WEIGHTS else None
    for expected, who in ((file.sha256, "the hub states"), (pinned, "is pinned here")):
        if expected is not None and (found := hash_file(path)) != expected:
            path.unlink()
            raise DownloadError(
                f"{model.repo}: {file.name} has the hash {found[:16]}..., and {expected[:16]}... {who}: it was changed "
                "or damaged on its way, and was deleted. Run the command again; if it stays so, do not use the file."
            )


def _endpoint() -> str | None:
    """Read at the call, not at the import."""
    return os.environ.get("HF_ENDPOINT") or None


def _reason(model: KnownModel, error: Exception) -> str:
    kind = type(error).__name__
    if kind == "GatedRepoError":
        return (
            f"{model.repo} is given only to those who accepted its licence. Accept it on the model's page on the hub, "
            "log in with `hf auth login`, and run the command again."
        )
    if kind in ("RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError"):
        return f"{model.repo} is not on the hub, or has moved. Download its files and give them to `tessera convert`."
    lines = str(error).splitlines()
    return (
        f"{model.repo} could not be downloaded: {lines[0].rstrip('.') if lines else kind}. Check the connection and "
        "run the command again, or download the files elsewhere and give their folder to `tessera convert`."
    )
