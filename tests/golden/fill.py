"""Deterministic weights and inputs for the golden fixtures (numpy + torch only).

seeded_state_dict(spec, seed): spec is an ordered list of [name, shape, dtype].
Every tensor comes from numpy.random.RandomState(crc32(f"{seed}:{name}")), so a
tensor depends on its own name, its shape and the seed, never on the others.

synthetic_rgb(height, width, seed): uint8 HxWx3 picture made of integers only.
imagenet_normalise(u8): float32 1x3xHxW, (u8/255 - mean)/std as ToTensor+Normalize do.
"""

import zlib

import numpy as np
import torch

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# last norm of a bottleneck: kept small, or activations grow 3x per block
BN3_GAIN = 0.1


def _rng(seed, name):
    return np.random.RandomState(zlib.crc32(f"{seed}:{name}".encode()) & 0xFFFFFFFF)


def seeded_array(name, shape, seed):
    """float64 values of one tensor (int64 zeros for num_batches_tracked)."""
    shape = tuple(shape)
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "num_batches_tracked":
        return np.zeros(shape, dtype=np.int64)
    z = _rng(seed, name).standard_normal(shape)
    if leaf == "running_mean":
        return 0.05 * z
    if leaf == "running_var":
        return 1.0 + 0.05 * np.abs(z)
    if leaf == "p":  # exponent of a learnable GeM
        return 3.0 + 0.05 * z
    if len(shape) == 1:
        if leaf == "weight":  # every 1-D *.weight is a BatchNorm or a LayerNorm
            gain = BN3_GAIN if name.endswith("bn3.weight") else 1.0
            return gain * (1.0 + 0.05 * z)
        return 0.02 * z
    return z * np.sqrt(2.0 / float(np.prod(shape[1:])))


def seeded_state_dict(spec, seed):
    out = {}
    for name, shape, dtype in spec:
        a = seeded_array(name, shape, seed)
        out[name] = torch.from_numpy(np.ascontiguousarray(a)).to(getattr(torch, dtype))
    return out


def spec_of(state_dict):
    return [[k, list(v.shape), str(v.dtype).replace("torch.", "")] for k, v in state_dict.items()]


def synthetic_rgb(height, width, seed):
    rs = np.random.RandomState(seed)
    img = np.zeros((height, width, 3), dtype=np.int64)
    for cell, amp in ((64, 120), (16, 80), (4, 40)):
        gh, gw = -(-height // cell), -(-width // cell)
        g = rs.randint(0, amp + 1, size=(gh, gw, 3))
        img += np.repeat(np.repeat(g, cell, 0), cell, 1)[:height, :width]
    img += rs.randint(0, 16, size=img.shape)
    return np.clip(img, 0, 255).astype(np.uint8)


def imagenet_normalise(u8):
    x = torch.from_numpy(np.ascontiguousarray(u8.transpose(2, 0, 1))).float().div(255)
    mean = torch.tensor(IMAGENET_MEAN).view(3, 1, 1)
    std = torch.tensor(IMAGENET_STD).view(3, 1, 1)
    return ((x - mean) / std).unsqueeze(0)
