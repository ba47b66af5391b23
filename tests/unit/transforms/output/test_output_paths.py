from __future__ import annotations

import re

from imagebeam.transforms.output import output_folder

PATHS = output_folder.OutputPaths("gs://b/pets")


def test_paths_are_below_the_output() -> None:
    assert PATHS.metadata == "gs://b/pets/.imagebeam"
    assert PATHS.commit_lock == "gs://b/pets/.imagebeam/publishing"
    assert PATHS.catalog == "gs://b/pets/catalog.json"
    assert PATHS.lock == "gs://b/pets/.imagebeam/lock"
    assert PATHS.last_run == "gs://b/pets/.imagebeam/last-run.json"
    assert PATHS.report("f00d") == "gs://b/pets/.imagebeam/run-f00d.json"
    assert PATHS.replaced("ab12") == "gs://b/pets/.imagebeam/replaced-ab12.json"
    assert PATHS.staging("ab12") == "gs://b/pets/.imagebeam/staging-ab12"
    assert PATHS.beam_folder("gs://b/pets/.imagebeam/run-f00d.json") == "gs://b/pets/.imagebeam/beam-run-f00d"


def test_paths_of_one_run_are_new_each_time() -> None:
    for make, pattern in (
        (output_folder.new_run_id, r"[0-9a-f]{16}"),
        (PATHS.new_transform_folder, r"gs://b/pets/\.imagebeam/transform-[0-9a-f]{8}"),
    ):
        first, second = make(), make()
        assert re.fullmatch(pattern, first) and re.fullmatch(pattern, second) and first != second
