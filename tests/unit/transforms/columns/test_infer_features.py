"""Features that RunInference computes are those that the writers of shards compute."""

from __future__ import annotations

import json
import pathlib
import threading
from typing import Any

import numpy as np
import pytest

from imagebeam import Reference, example, features
from imagebeam.pipelines import convert
from imagebeam.transforms import user_code
from imagebeam.transforms.columns import function_handler
from imagebeam.transforms.shard import feature_functions
from tests import datasets, error_texts, image_sets

KEY = "image/mean"


def mean(images: list[np.ndarray], references: list[Reference]) -> np.ndarray:
    """Returns the mean of each image, twice."""
    return np.array([[image.mean()] * 2 for image in images], np.float32)


def fail_for_dogs(images: list[np.ndarray], references: list[Reference]) -> list[int]:
    """Returns the number of images for which it does not fail."""
    if any(reference.label == "dog" for reference in references):
        raise RuntimeError("it is a dog")
    return [len(reference.columns) for reference in references]


def run(images: pathlib.Path, output: pathlib.Path, functions: dict[str, Any], **more: Any) -> convert.ConvertResult:
    sections = {"source": {"uri": str(images)}, "output": {"uri": str(output), "num_shards": 3}}
    return convert.convert({**sections, "features": {"functions": functions}, **more}, workers=2)


def records(output: pathlib.Path) -> dict[bytes, dict[str, Any]]:
    return {each["image/key"][0]: each for each in datasets.read_lists(output, "train")}


@pytest.fixture
def images(tmp_path: pathlib.Path) -> pathlib.Path:
    image_sets.write_folder(tmp_path / "images", per_label=5)
    return tmp_path / "images"


def test_features_are_those_of_writers(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    function = {"function": f"{__name__}:mean", "shape": [2], "batch": 3}
    for name, by_beam in (("writers", False), ("beam", True)):
        run(images, tmp_path / name, {KEY: {**function, "run_inference": by_beam}}, image={"resize": [8, 8]})
    assert records(tmp_path / "writers") == records(tmp_path / "beam")
    assert len(records(tmp_path / "beam")) == 10


def test_image_that_the_function_fails_for_is_a_reject(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (images / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    functions = {
        KEY: {"function": f"{__name__}:mean", "shape": [2], "run_inference": True},
        "n": {"function": f"{__name__}:fail_for_dogs", "type": "int", "run_inference": True},
    }
    result = run(images, tmp_path / "out", functions, rejects={"max_fraction": 0.9})
    assert dict(result.catalog.counts.rejected) == {"function": 5, "truncated": 1}
    assert {key.split(b"/")[0] for key in records(tmp_path / "out")} == {b"cat"}
    rejects = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert all("raised RuntimeError: it is a dog" in each["detail"] for each in rejects if each["reason"] == "function")


def hang_for_a(images: list[np.ndarray], references: list[Reference]) -> list[int]:
    """Returns 1 for each image, but hangs for "a" until the test has ended."""
    if any(reference.key == "a" for reference in references):
        ends.wait()
    return [1] * len(images)


ends = threading.Event()


def test_image_at_which_the_function_hangs_is_a_reject() -> None:
    code = user_code.find("features.functions n", f"{__name__}:hang_for_a", version="1")
    feature = features.Feature("n", "functions/n", features.INT64, False)
    handler = function_handler.FunctionHandler(feature_functions.FeatureFunction(feature, code, 2), max_seconds=1)
    batch = [(np.zeros((1, 1, 3), np.uint8), Reference(key, key, None, "", {})) for key in "ab"]
    try:
        first, second = [each.inference for each in handler.run_inference(batch, handler.load_model())]
    finally:
        ends.set()
    assert first.reason == "too_slow"
    assert "hang_for_a' takes longer than 1 s, the limit of image.limits.max_seconds" in first.detail
    assert second == example.encode_values(features.INT64, [1])


def test_frames_are_refused(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    function = {"function": f"{__name__}:mean", "shape": [2], "run_inference": True}
    with error_texts.raises("inference-of-frames"):
        run(images, tmp_path / "out", {KEY: function}, image={"frames": "each"})
