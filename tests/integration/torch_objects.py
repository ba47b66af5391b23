"""Objects in batches against torchvision, with the same windows: `make torch-test`."""

from __future__ import annotations

import io
import pathlib
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

import imagebeam
from tests import object_sets
from tests.servers import torch_cpu

sys.path += map(str, (torch_cpu.install(), torch_cpu.install_vision()))
import torch
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

pytestmark = pytest.mark.integration

SIZE, MASK = (96, 80), (48, 40)
OBJECTS = imagebeam.Objects(boxes="xyxy", masks=MASK, keypoints=True, min_visible=0, clip=False, flip_pairs=())


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return object_sets.write(tmp_path_factory.mktemp("objects"))


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("crop", ["random", "center", "squash"])
def test_objects_are_where_torchvision_moves_them(dataset: pathlib.Path, crop: str, flip: bool) -> None:
    known = object_sets.stored(dataset)
    options: dict[str, Any] = {"image_size": SIZE, "crop": crop, "flip": flip, "area": (0.2, 1.0)}
    num_compared, flips = 0, set()
    batches = imagebeam.open_dataset(dataset).as_torch("train", 3, objects=OBJECTS, num_epochs=4, **options)
    for batch in batches:
        for row in range(3):
            each = {name: values[row] for name, values in batch.items()}
            number = int(each["image"][2, SIZE[0] // 2, SIZE[1] // 2])
            num_compared += compare(each, known[number], object_sets.SIZES[number])
            flips.add(bool(each["transform"][0, 0] < 0))
    assert num_compared > 20 and flips == ({True, False} if flip else {False})


def compare(each: dict[str, torch.Tensor], example: dict[str, Any], sides: tuple[int, int]) -> int:
    """Compares the objects of an image, and returns how many it has."""
    (step_x, _, start_x), (_, step_y, start_y), _ = each["transform"].tolist()
    is_mirrored = step_x < 0
    width = abs(step_x) * SIZE[1]
    window = [round(value) for value in (start_y, start_x - width * is_mirrored, step_y * SIZE[0], width)]
    scale = torch.tensor([sides[1], sides[0]], dtype=torch.float64)

    def move(value: Any) -> torch.Tensor:
        moved = functional.resized_crop(value, *window, list(SIZE))
        return (functional.horizontal_flip(moved) if is_mirrored else moved).as_subclass(torch.Tensor)

    edges = [example[f"image/object/bbox/{edge}"] for edge in ("xmin", "ymin", "xmax", "ymax")]
    boxes = torch.tensor(edges, dtype=torch.float64).T * scale.repeat(2)
    boxes = move(tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=sides, clamping_mode=None))
    sides_shown = boxes[:, 2:].clamp(max=scale_of(SIZE)) - boxes[:, :2].clamp(min=0)
    shown = torch.nonzero((sides_shown > 0).all(dim=1)).flatten()
    assert int(each["num_objects"]) == len(shown)
    torch.testing.assert_close(each["boxes"][: len(shown)].double(), boxes[shown], atol=1e-4, rtol=1e-6)

    names = ("image/object/keypoint/x", "image/object/keypoint/y")
    points = torch.tensor([example[name] for name in names], dtype=torch.float64).T * scale
    moved = move(tv_tensors.KeyPoints(points, canvas_size=sides))
    if is_mirrored:  # torchvision mirrors keypoints as numbers of pixels, 0 to width - 1, and boxes as places
        moved[:, 0] += 1
    moved = moved.reshape(-1, len(object_sets.KEYPOINTS), 2)[shown]
    found = each["keypoints"][: len(shown)].double()
    is_labeled = found[..., 2] > 0
    torch.testing.assert_close(found[..., :2][is_labeled], moved[is_labeled], atol=1e-4, rtol=1e-6)
    assert ((moved < -1e-3) | (moved > scale_of(SIZE) + 1e-3)).any(dim=-1)[is_labeled].sum() == 0

    for place, index in enumerate(shown.tolist()):
        mask = torch.tensor(np.asarray(Image.open(io.BytesIO(example["image/object/mask"][index]))).copy())[None]
        drawn = functional.resized_crop(mask, *window, list(MASK), interpolation=InterpolationMode.NEAREST_EXACT)[0]
        assert torch.equal(each["masks"][place], drawn.flip(1) if is_mirrored else drawn)
    return len(shown)


def scale_of(size: tuple[int, int]) -> torch.Tensor:
    """Returns width and height."""
    return torch.tensor([size[1], size[0]])
