"""examples/train_detection.py: what it finds, measured once more from the files that it wrote as COCO does."""

from __future__ import annotations

import collections
import json
import pathlib
import re

import numpy as np
import pytest

from tests import command_line

EXAMPLES = command_line.ROOT / "examples"
SEARCHED = {"PYTHONPATH": f"{EXAMPLES}:{command_line.ROOT}", "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
LEAST_AP50 = 0.5
MAKE = "import pathlib, scenes, sys; scenes.make(pathlib.Path(sys.argv[1]))"
RUN = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


def intersection_over_union(box: list[float], other: list[float]) -> float:
    """Returns it for two boxes of left, top, width and height."""
    sides = [
        min(box[axis] + box[axis + 2], other[axis] + other[axis + 2]) - max(box[axis], other[axis]) for axis in (0, 1)
    ]
    both = max(sides[0], 0) * max(sides[1], 0)
    return both / (box[2] * box[3] + other[2] * other[3] - both)


def average_precision(annotated: list[dict], found: list[dict]) -> float:
    """Returns AP50 by COCO's definition, box by box."""
    results = []
    for category in {each["category_id"] for each in annotated}:
        free = collections.defaultdict(list)
        for each in annotated:
            if each["category_id"] == category:
                free[each["image_id"]].append(each["bbox"])
        num_annotated, hits = sum(map(len, free.values())), []
        of_category = (each for each in found if each["category_id"] == category)
        for each in sorted(of_category, key=lambda each: -each["score"]):
            others = [intersection_over_union(each["bbox"], box) for box in free[each["image_id"]]]
            best = int(np.argmax(others)) if others else -1
            hits.append(best >= 0 and others[best] >= 0.5)
            if hits[-1]:
                del free[each["image_id"]][best]
        precisions = [(sum(hits[: n + 1]) / num_annotated, sum(hits[: n + 1]) / (n + 1)) for n in range(len(hits))]
        results.append(
            np.mean([max([p for r, p in precisions if r >= recall], default=0) for recall in np.linspace(0, 1, 101)])
        )
    return float(np.mean(results))


@pytest.mark.slow
def test_detector_finds_the_boxes_of_the_annotation_file(tmp_path: pathlib.Path) -> None:
    command_line.finish(command_line.start_program(MAKE, tmp_path, environment=SEARCHED, cwd=tmp_path), 0)
    script, results = EXAMPLES / "train_detection.py", tmp_path / "results.json"
    arguments = (script, tmp_path / "scenes-tfrecord", "--results", results)
    done = command_line.finish(command_line.start_program(RUN, *arguments, environment=SEARCHED, cwd=tmp_path), 0)
    match = re.search(r"^AP50 (\S+) over (\d+) images$", done.stdout, re.MULTILINE)
    assert match is not None, done.stdout
    annotated = json.loads((tmp_path / "scenes" / "annotations" / "instances_val2017.json").read_text())
    measured = average_precision(annotated["annotations"], json.loads(results.read_text()))
    assert measured >= LEAST_AP50
    assert float(match[1]) == pytest.approx(measured, abs=2e-3)  # clipped or rounded boxes would differ by more
    assert int(match[2]) == len(annotated["images"])
