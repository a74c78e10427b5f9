"""Training of tokens over stored local features, with image labels alone: no image is opened, minutes on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tessera.config import from_mapping
from tessera.data.images import load_photo
from tessera.errors import ImageError, TrainingError
from tessera.local.feature_cache import FeatureCache
from tessera.local.system import System, SystemConfig, write_system
from tessera.local.tokens import SetTokens, SetTokensConfig, pad_sets, save_tokens
from tessera.models.losses import build_loss
from tessera.storage import hash_file


@dataclass(frozen=True)
class TokenTrainingConfig:
    """sample: features drawn from each image a step, which is the only augmentation there is; noise: added to them."""

    epochs: int = 30
    batch_size: int = 64
    rate: float = 1e-3
    weight_decay: float = 1e-2
    warmup_share: float = 0.1
    sample: int = 200
    noise: float = 0.02
    margin_rad: float = 0.2
    scale: float = 32.0
    seed: int = 0


def train_tokens(
    sets: Sequence[npt.NDArray[Any]],
    labels: npt.NDArray[np.int64],
    network_config: SetTokensConfig,
    config: TokenTrainingConfig | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> SetTokens:
    """A network from stored features: one set N_i D an image, and its label in 0..K-1; empty sets are left out.

    ArcFace over the labels, AdamW, the rate up and then down as a cosine. The same seed gives the same network.
    """
    config = config or TokenTrainingConfig()
    used = np.array([i for i, values in enumerate(sets) if len(values)], np.int64)
    if len(used) < 2 or len(np.unique(labels[used])) < 2:
        raise TrainingError("tokens need local features of at least two images of two classes.")
    torch.manual_seed(config.seed)
    random = np.random.default_rng(config.seed)
    network = SetTokens(network_config).train()
    loss = build_loss(
        "arcface",
        dim=network.dim,
        num_classes=int(labels.max()) + 1,
        margin_rad=config.margin_rad,
        scale=config.scale,
    )
    parameters = [*network.parameters(), *loss.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=config.rate, weight_decay=config.weight_decay)
    steps = config.epochs * math.ceil(len(used) / config.batch_size)
    warmup = max(1, int(steps * config.warmup_share))
    step = 0
    for epoch in range(config.epochs):
        total = 0.0
        order = random.permutation(used)
        for start in range(0, len(order), config.batch_size):
            rows = order[start : start + config.batch_size]
            factor = min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))
            for group in optimiser.param_groups:
                group["lr"] = config.rate * factor
            batch, mask = pad_sets([_draw(sets[row], config, random) for row in rows])
            value = loss(network(batch, mask), torch.from_numpy(labels[rows]))
            optimiser.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 5.0)
            optimiser.step()
            total += float(value.detach()) * len(rows)
            step += 1
        if not np.isfinite(total):
            raise TrainingError(f"the loss is not finite in epoch {epoch + 1}: lower the rate.")
        say(f"epoch {epoch + 1}/{config.epochs}  loss {total / len(used):.4f}")
    return network.eval()


def train_token_system(
    config: SystemConfig,
    images: Sequence[Path],
    labels: npt.NDArray[np.int64],
    folder: Path,
    say: Callable[[str], None] = lambda text: None,
) -> System:
    """Extract local features, train tokens over them, and write the system. Features are kept in `folder`, so that a
    run that was stopped goes on with what it has; pictures that cannot be read are left out."""
    extractor = System(config, folder).extractor
    store = FeatureCache(folder / "features.sqlite")
    sets: list[npt.NDArray[Any]] = []
    used: list[int] = []
    for number, path in enumerate(images):
        content = hash_file(path)
        features = store.get_many(extractor.fingerprint, [content]).get(content)
        if features is None:
            try:
                features = extractor.extract(load_photo(path, size=config.size))
            except ImageError as error:
                say(f"skipped: {error}")
                continue
            store.put(extractor.fingerprint, content, features)
        sets.append(features.descriptors)
        used.append(number)
        if len(used) % 500 == 0:
            say(f"features of {len(used)} of {len(images)} images")
    store.close()
    network = from_mapping(
        SetTokensConfig, {**config.network, "features": extractor.dim, "extractor": extractor.fingerprint}
    )
    trained = train_tokens(sets, labels[used], network, from_mapping(TokenTrainingConfig, config.training), say)
    file_name = config.tokens or "tokens.safetensors"
    save_tokens(trained, folder / file_name)
    provenance = {"images": len(used), "classes": int(labels.max()) + 1}
    return write_system(replace(config, kind="tokens", tokens=file_name, provenance=provenance), folder)


def _draw(
    values: npt.NDArray[Any], config: TokenTrainingConfig, random: np.random.Generator
) -> npt.NDArray[np.float32]:
    kept = values
    if len(values) > config.sample:
        kept = values[np.sort(random.choice(len(values), config.sample, replace=False))]
    kept = np.asarray(kept, np.float32)
    return np.asarray(kept + config.noise * random.standard_normal(kept.shape), np.float32)
