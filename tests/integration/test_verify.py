"""`imagebeam verify` names each change that a person or a disk made to a dataset."""

from __future__ import annotations

import pathlib
import re
import shutil

import pytest

import imagebeam
from imagebeam.pipelines import convert, verify_dataset
from tests import command_line, image_sets, pictures, written_files

FIRST, SECOND = (f"train-0000{index}-of-00003.tfrecord" for index in range(2))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Twenty images in shards of 6, 7 and 7 records."""
    folder = tmp_path_factory.mktemp("good")
    image_sets.write_folder(folder / "in")
    convert.convert({"source": {"uri": f"{folder}/in"}, "output": {"uri": f"{folder}/out", "num_shards": 3}}, workers=1)
    return folder / "out"


@pytest.fixture
def dataset(good: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(good, tmp_path / "dataset"))


def complaints(dataset: pathlib.Path, *options: str) -> list[str]:
    """Returns the lines that verify writes to standard error, without its name; it must exit with 4."""
    completed = command_line.end(4, "verify", dataset, *options)
    assert completed.stdout == ""
    return [line.removeprefix("imagebeam: ") for line in completed.stderr.splitlines()]


def summary(broken: int) -> str:
    return f"{broken} of 3 shards differ from the catalog; convert again with --overwrite"


def convert_again(good: pathlib.Path, dataset: pathlib.Path, num_shards: int, *options: str) -> command_line.Completed:
    settings = ("--set", f"output.num_shards={num_shards}", "--set", "output.name=out", "--workers", "1")
    return command_line.call("convert", "--input", good.parent / "in", "--output", dataset, *settings, *options)


@pytest.mark.parametrize("name", ["labels.txt", "statistics.json"])
def test_every_other_file_is_compared_and_mended(good: pathlib.Path, dataset: pathlib.Path, name: str) -> None:
    content = (dataset / name).read_bytes()
    (dataset / name).write_bytes(content + b"\n")
    detail = f"{name}: the file has {len(content) + 1:,} bytes, the catalog says {len(content):,}"
    advice = "1 of 8 other files differ from the catalog; convert again with --overwrite"
    assert complaints(dataset) == [detail, advice]
    (dataset / name).unlink()
    missing = f"{name}: the file is missing; the catalog says {len(content):,} bytes"
    assert complaints(dataset) == [missing, advice]
    assert convert_again(good, dataset, 3, "--overwrite").returncode == 0  # as was advised
    command_line.succeed("verify", dataset)
    assert (dataset / name).read_bytes() == content


def test_files_named_like_shards_are_refused_until_they_are_gone(good: pathlib.Path, dataset: pathlib.Path) -> None:
    """A reader that lists `train-*` would read those files with the dataset."""
    stale = ["train-00001-of-00002.tfrecord", "val-00000-of-00001"]
    for name in stale:
        shutil.copy(dataset / FIRST, dataset / name)
    detail = "the catalog does not name this file, and readers that list the folder read it; move or delete it"
    advice = "2 files are not in the catalog: move or delete them"
    assert complaints(dataset) == [*(f"{name}: {detail}" for name in stale), advice]
    for options in ((), ("--overwrite",)):
        completed = convert_again(good, dataset, 2, *options)
        assert completed.returncode == 2
        assert f"{dataset} holds {', '.join(stale)}, which no catalog.json names; choose another" in completed.stderr
    (dataset / stale[1]).unlink()
    written_files.flip(dataset / SECOND, 500)
    (*_, last) = complaints(dataset)
    assert last == f"1 file is not in the catalog: move or delete it; {summary(1)}"
    (dataset / stale[0]).unlink()
    assert convert_again(good, dataset, 2, "--overwrite").returncode == 0
    command_line.succeed("verify", dataset)
    names = [path.name for path in sorted(dataset.glob("*-of-*"))]
    assert names == [f"train-0000{index}-of-00002.tfrecord" for index in (0, 1)]


def test_decode_takes_what_the_reader_takes(tmp_path: pathlib.Path) -> None:
    jpeg = image_sets.make_image(1)
    (tmp_path / "in/cat").mkdir(parents=True)
    (tmp_path / "in/cat/0.jpg").write_bytes(b"\xff\xd8\xff\xe0\0\6JFIF" + pictures.without_segments(jpeg, 0xE0)[2:])
    (tmp_path / "in/cat/1.jpg").write_bytes(pictures.without_segments(jpeg, 0xC4))  # a frame of Motion JPEG
    convert.convert({"source": {"uri": f"{tmp_path}/in"}, "output": {"uri": f"{tmp_path}/out"}}, workers=1)
    command_line.succeed("verify", tmp_path / "out", "--decode")
    dataset = imagebeam.open_dataset(str(tmp_path / "out"))
    [batch] = dataset.as_numpy("train", 2, image_size=16, num_epochs=1, shuffle=None, crop="squash")
    assert batch["image"].any(axis=(1, 2, 3)).all()


def break_codes(path: pathlib.Path) -> None:
    """Gives a Huffman table of a JPEG three codes of one bit."""
    data = path.read_bytes()
    table = data.index(b"\xff\xc4") + 5
    path.write_bytes(data[:table] + bytes([3, *[0] * 10, 9, *[0] * 4]) + data[table + 16 :])


def test_images_that_cannot_be_decoded_are_named_and_the_advice_works(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=4)
    for name in ("cat/1.jpg", "dog/2.jpg"):
        break_codes(tmp_path / "in" / name)
    arguments = ("convert", "-q", "--input", tmp_path / "in", "--output", tmp_path / "out", "--overwrite")
    arguments += ("--workers", "1")
    command_line.succeed(*arguments, "--set", "output.num_shards=2")
    command_line.succeed("verify", tmp_path / "out")
    *found, advice = complaints(tmp_path / "out", "--decode")
    named = [re.search(r"^(\S+), byte offset \d+: record \d+: image '(.*)': undecodable: ", line) for line in found]
    assert sorted(each[2] for each in named if each) == ["cat/1.jpg", "dog/2.jpg"]
    assert advice == (
        "2 of 8 records are as they were written, and cannot be read: fix or remove those images in the input, "
        "or set image.check: tensorflow, then "
        "convert again with --overwrite"
    )
    for each in named:
        assert each is not None
        assert each[1].startswith("train-0000")
        (tmp_path / "in" / each[2]).unlink()
    command_line.succeed(*arguments)
    command_line.succeed("verify", tmp_path / "out", "--decode")


def test_advice_distinguishes_damage_from_images_written_that_way(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", labels=["cat"], per_label=8)
    break_codes(tmp_path / "in/cat/1.jpg")
    output = {"uri": str(tmp_path / "out"), "num_shards": 2}
    convert.convert({"source": {"uri": str(tmp_path / "in")}, "output": output}, workers=1)
    result = verify_dataset.verify(str(tmp_path / "out"), decode=True)
    [problem] = result.problems
    other = next(shard.name for shard in result.catalog.splits["train"].shards if shard.name != problem.shard)
    written_files.flip(tmp_path / "out" / other, 9)
    assert verify_dataset.verify(str(tmp_path / "out"), decode=True).advice == (
        "1 of 2 shards differ from the catalog; convert again with --overwrite; 1 of 8 records are as they were "
        "written, and cannot be read: fix or remove those images in the input, or set "
        "image.check: tensorflow, then convert again with --overwrite"
    )
