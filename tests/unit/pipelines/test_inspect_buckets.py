"""inspect --buckets: what it prints, and that the reader makes the same batches."""

from __future__ import annotations

import collections
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest

import imagebeam
from imagebeam.pipelines import command_parser, dataset_commands
from tests import case_tables, command_line, error_texts
from tests.unit.imagebeam.reader import written

SIDES = [(48, 24)] * 3 + [(40, 40)] * 9 + [(32, 48)] * 5 + [(8, 16)]  # height and width
OPTIONS = ("--bucket-step", 8, "--batch-size", 4)
TABLE = """\
train: 16 images, batches of 4
  height x width        images   cropped    enlarged   batches
  40 x 24                    3    16.67%           0         0
  32 x 32                    9     0.00%           0         2
  24 x 40                    4    10.00%           0         1
  all                       16     4.96%           0         3
  4 images left of the first epoch, which begin the batches of the next

validation: 2 images, batches of 4
  height x width        images   cropped    enlarged   batches
  40 x 24                    0     0.00%           0         0
  32 x 32                    0     0.00%           0         0
  24 x 40                    1    10.00%           0         0
  all                        1    10.00%           0         0
  1 image too small: each bucket would enlarge them more than 1.5 times; dropped, or padded with too_small="pad"
  1 image left of the first epoch, which begin the batches of the next

buckets that have a batch of 4 images of train, to paste:
buckets=[(32, 32), (24, 40)]
1 bucket of 3 left out, which changes:
  cropped    4.96% -> 9.76% of the pixels
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("sizes") / "out"
    images = [written.jpeg_values(index, width, height) for index, (height, width) in enumerate(SIDES)]
    written.write(folder, written.IMAGE, images, num_validation=2)
    return folder


def inspect(dataset: pathlib.Path, *options: object) -> str:
    return command_line.succeed("inspect", dataset, "--buckets", "32x32", *OPTIONS, *options).stdout


def test_table_counts_images_and_pixels_and_proposes_buckets(dataset: pathlib.Path) -> None:
    assert inspect(dataset, "--max-enlarge", 1.5) == TABLE


def test_images_that_fit_only_a_bucket_that_is_left_out_are_counted(dataset: pathlib.Path) -> None:
    assert inspect(dataset, "--max-enlarge", 1).splitlines()[-2:] == [
        "  cropped    4.96% -> 2.99% of the pixels",
        "  too small  0 -> 3 images",
    ]


def test_json_has_the_figures_of_the_table(dataset: pathlib.Path) -> None:
    found = json.loads(inspect(dataset, "--max-enlarge", 1.5, "--json"))
    settings = {"area": 1024, "bucket_step": 8, "max_aspect": 2.0, "batch_size": 4, "max_enlarge": 1.5}
    assert {name: found[name] for name in settings} == settings
    shown = {name: row_of(each) for name, each in found["splits"].items()}
    assert shown == {"train": (16, 0, 0, 4, 0.0496), "validation": (2, 1, 0, 1, 0.1)}
    proposal = found["proposal"]
    assert (proposal["split"], row_of(proposal)) == ("train", (16, 0, 0, 0, 0.0976))
    expected = {"height": 24, "width": 40, "images": 4, "cropped": 0.1, "enlarged": 0, "batches": 1}
    assert proposal["buckets"][-1] == found["splits"]["train"]["buckets"][-1] == expected


def row_of(counts: dict[str, Any]) -> tuple[float, ...]:
    return tuple(counts[name] for name in ("images", "too_small", "unknown", "carried", "cropped"))


@pytest.mark.parametrize("max_enlarge", [None, 1.0])
def test_reader_makes_the_batches_that_are_shown(dataset: pathlib.Path, max_enlarge: float | None) -> None:
    asked = () if max_enlarge is None else ("--max-enlarge", max_enlarge)
    found = json.loads(inspect(dataset, "--split", "train", "--json", *asked))["splits"]["train"]
    sizes = [(each["height"], each["width"]) for each in found["buckets"]]
    options: dict[str, Any] = {"buckets": sizes, "max_enlarge": max_enlarge, "num_epochs": 1}
    batches = imagebeam.open_dataset(dataset).as_numpy("train", 4, **options)
    read = [batch["image"].shape[1:3] for batch in batches]
    assert [read.count(size) for size in sizes] == [each["batches"] for each in found["buckets"]]


def test_without_a_batch_of_images_nothing_is_proposed(dataset: pathlib.Path) -> None:
    assert inspect(dataset, "--split", "validation").splitlines()[-1] == (
        "no bucket of validation has a batch of images: give a smaller --batch-size, buckets of another area, or a "
        "greater --max-enlarge"
    )
    assert json.loads(inspect(dataset, "--split", "validation", "--json"))["proposal"] is None


@case_tables.each_case("area", {"one number": "1024", "another shape": "64x16"})
def test_area_is_a_number_or_a_product(dataset: pathlib.Path, area: str) -> None:
    assert command_line.succeed("inspect", dataset, "--buckets", area, *OPTIONS).stdout == inspect(dataset)


@case_tables.each_case("area", {"none": "0", "a side": "32x", "no number": "x", "two": "1x2x3", "negative": "-1"})
def test_other_areas_are_refused(dataset: pathlib.Path, area: str) -> None:
    ending = f"argument --buckets: '{area}' is not a number of pixels, such as 1048576 or 1024x1024\n"
    assert command_line.end(2, "inspect", dataset, f"--buckets={area}").stderr.endswith(ending)


@case_tables.each_case(
    "options, code",
    {
        "examples": (["--buckets", "9999", "-n", "3"], "inspect-options-conflict"),
        "images": (["--buckets", "9999", "--save-to", "x"], "inspect-options-conflict"),
        "step": (["--bucket-step", "8"], "inspect-options-conflict"),
        "aspect": (["--max-aspect", "1"], "inspect-options-conflict"),
        "batch": (["--batch-size", "8"], "inspect-options-conflict"),
        "enlarge": (["--max-enlarge", "2"], "inspect-options-conflict"),
        "small area": (["--buckets", "4095"], "option-bad-value"),
        "narrow": (["--buckets", "4096", "--max-aspect", "0.5"], "option-bad-value"),
        "no bucket": (["--buckets", "8192", "--max-aspect", "1"], "option-bad-value"),
        "large area": (["--buckets", "40000x40000"], "option-bad-value"),
        "no enlargement": (["--buckets", "4096", "--max-enlarge", "0"], "option-bad-value"),
    },
)
def test_options_that_do_not_fit_are_refused(dataset: pathlib.Path, options: Sequence[str], code: str) -> None:
    parser = command_parser.make_parser(collections.defaultdict(lambda: dataset_commands.inspect))
    with error_texts.raises(code):
        dataset_commands.inspect(parser.parse_args(["inspect", str(dataset), *options]), [])


def test_variables_of_other_commands_change_nothing(dataset: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = command_line.succeed("inspect", dataset).stdout
    monkeypatch.setenv("IMAGEBEAM_BATCH_SIZE", "8")
    assert command_line.succeed("inspect", dataset).stdout == usual
