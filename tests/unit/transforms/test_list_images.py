from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

import apache_beam as beam
import pytest
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that

from imagebeam.transforms import elements, list_images, summaries
from imagebeam.transforms.formats.tables import manifest
from imagebeam.transforms.shard import writer_processes
from imagebeam.transforms.sources import files, image_source, reference_rules
from tests import spread_rows, written_files


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Images at four depths, and a table that names them all and one more."""
    names = [f"{'a/b/c/'[: 2 * depth]}{index}.jpg" for depth in range(4) for index in range(3)]
    table = "image\n" + "".join(f"{name}\n" for name in [*names, "gone.jpg"])
    return written_files.write(tmp_path, {**dict.fromkeys(names, "x"), "m.csv": table})


def list_in_place(source: image_source.ImageSource) -> tuple[list[elements.ImageRef], list[elements.Reject], int]:
    refs, rejects, *_ = spread_rows.gather(source.list_all())
    return sorted(refs), sorted(rejects), len(refs) + len(rejects)


def is_sorted_list(expected: Sequence[object]) -> Callable[[Sequence[object]], None]:
    def check(found: Sequence[object]) -> None:
        assert sorted(found) == expected  # type: ignore[type-var]

    return check


def has_listed(count: int) -> Callable[[Sequence[summaries.Tally]], None]:
    def check(tallies: Sequence[summaries.Tally]) -> None:
        assert sum(tally.listed for tally in tallies) == count

    return check


def test_workers_list_what_one_process_lists(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_source, "MAX_REFS", 4)
    table = manifest.ManifestSource(str(folder / "m.csv"), "csv")
    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        for by, source, numbers in [
            ("Folder", files.FilesSource(str(folder)), (12, 0)),
            ("Manifest", table, (12, 1)),
            ("Trusted", dataclasses.replace(table, trust=True), (13, 0)),
        ]:
            refs, rejects, count = list_in_place(source)
            assert (len(refs), len(rejects)) == numbers
            listed = pipeline | by >> list_images.ListImages(source)
            assert_that(listed.images | f"Flat{by}" >> beam.FlatMap(list), is_sorted_list(refs), label=f"Images{by}")
            assert_that(listed.rejects, is_sorted_list(rejects), label=f"Rejects{by}")
            assert_that(listed.tallies, has_listed(count), label=f"Tallies{by}")


def test_listing_of_a_writer_process_that_died_is_made_again(folder: pathlib.Path) -> None:
    task = reference_rules.ListingTask(files.FilesSource(str(folder)), reference_rules.NO_RULES)
    with writer_processes.start(1) as pool:
        pool._processes[0].kill()
        found = list(list_images._list_in_process(b"", task, pool.token))
    assert found == reference_rules.list_whole(task)
