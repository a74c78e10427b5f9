"""How the backbone of `lite` is tuned (scripts/lite/tuning.py): the loss against a slow second writing; its memory."""

from importlib import import_module
from math import exp, log
from pathlib import Path

import pytest
import torch

pytest.importorskip("cv2", reason="the extra 'local' is not installed")
TEMPERATURE = 0.1


@pytest.fixture
def tuning(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "lite"))
    return import_module("tuning")


def draw(count: int, seed: int) -> torch.Tensor:
    rows = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(rows, dim=1)


def slow_contrast(descriptors, instances, landmarks, known, known_instances, known_landmarks) -> float:
    others = [*zip(descriptors, instances, landmarks, strict=True)]
    others += zip(known, known_instances, known_landmarks, strict=True)
    means = []
    for i, (row, instance, landmark) in enumerate(zip(descriptors, instances, landmarks, strict=True)):
        similar = [float(row @ other) / TEMPERATURE for other, _, _ in others]
        positives = [s for j, s in enumerate(similar) if j != i and others[j][1] == instance]
        negatives = [s for j, s in enumerate(similar) if others[j][1] != instance and others[j][2] != landmark]
        if positives:
            against = sum(exp(s) for s in negatives)
            means.append(sum(log(1 + against / exp(s)) for s in positives) / len(positives))
    return sum(means) / len(means)


def fill(tuning, size: int, descriptors, instances, landmarks):
    memory = tuning.Memory(size, descriptors.shape[1])
    memory.add(descriptors, torch.tensor(instances), torch.tensor(landmarks))
    return memory


def test_loss_is_each_positive_against_all_strangers(tuning):
    batch, known = draw(5, 0), draw(4, 1)
    instances, landmarks = (
        [0, 0, 1, 2, 2],
        [7, 7, 7, 8, 8],
    )  # the third has no partner; nor is it a stranger to the first
    known_instances, known_landmarks = [0, 3, 2, 4], [7, 7, 8, 9]
    memory = fill(tuning, 9, known, known_instances, known_landmarks)
    loss = tuning.contrast(batch, torch.tensor(instances), torch.tensor(landmarks), memory, TEMPERATURE)
    expected = slow_contrast(batch, instances, landmarks, known, known_instances, known_landmarks)
    assert float(loss) == pytest.approx(expected, rel=1e-9)


def test_unverified_photos_of_the_landmark_are_left_alone(tuning):
    batch = draw(4, 2).requires_grad_()
    labels = torch.tensor([0, 0, 1, 2]), torch.tensor([7, 7, 7, 8])
    tuning.contrast(batch, *labels, tuning.Memory(0, 6), TEMPERATURE).backward()
    assert float(batch.grad[2].abs().sum()) == 0
    assert float(batch.grad[3].abs().sum()) > 0


def test_memory_keeps_the_newest(tuning):
    memory = fill(tuning, 3, draw(2, 3), [0, 1], [5, 6])
    memory.add(draw(2, 4), torch.tensor([2, 3]), torch.tensor([7, 8]))
    assert memory.instances.tolist() == [2, 3, 0]
    assert memory.landmarks.tolist() == [7, 8, 5]
    assert memory.descriptors.shape == (3, 6)
