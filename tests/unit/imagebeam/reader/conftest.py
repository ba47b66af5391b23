"""Fixtures of the reader's tests: a small dataset, and the file system of remote ones."""

from __future__ import annotations

import collections
import contextvars
import io
import pathlib
import shutil
from collections.abc import Iterator

import pytest

import imagebeam
from imagebeam import records
from imagebeam.reader import example_source
from imagebeam.storage import remote
from tests import datasets, image_sets, patience, written_files
from tests.unit.imagebeam.reader import far_dataset
from tests.unit.imagebeam.reader.feeding import LABELS, PER_LABEL


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """52 images of two classes in three shards."""
    folder = tmp_path_factory.mktemp("feeds")
    image_sets.write_folder(folder / "in", LABELS, PER_LABEL)
    datasets.make(folder / "in", folder / "out", output={"num_shards": 3}, label={"by": "directory", "base": 1})
    return folder / "out"


@pytest.fixture(scope="module")
def dataset(directory: pathlib.Path) -> imagebeam.ImageDataset:
    return imagebeam.open_dataset(str(directory))


@pytest.fixture
def broken(directory: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the dataset with one bit of record 4 flipped."""
    shutil.copytree(directory, tmp_path / "broken")
    shard = tmp_path / "broken" / "train-00000-of-00003.tfrecord"
    record = list(records.read_records(io.BytesIO(shard.read_bytes())))[4]
    written_files.flip(shard, record.offset + records.HEADER_BYTES + len(record.data) - 1)
    return tmp_path / "broken"


@pytest.fixture(scope="module")
def source(dataset: imagebeam.ImageDataset) -> example_source.ExampleSource:
    return dataset.as_grain("train")


@pytest.fixture(scope="module")
def unchanged_graphs() -> Iterator[None]:
    """Makes TensorFlow run its graphs as they are built: to optimize a pipeline takes longer than to read a few images.

    For tests of what a batch holds. test_dataset.py, test_mixture.py, test_resume.py and the integration tests read
    with optimized graphs, as users do.
    """
    tf = pytest.importorskip("tensorflow")
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.fixture
def short_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives up an operation on a storage after 0.05 s of waits, in all threads."""
    monkeypatch.setattr(remote, "_budget_sec", contextvars.ContextVar("short", default=0.05))
    monkeypatch.setattr(remote, "time", patience.Clock())


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[far_dataset.FarFileSystem]]:
    """The file system of far://, as it was before and after; waits for downloads that a test began."""
    monkeypatch.setattr(far_dataset.FarFileSystem, "faults", collections.defaultdict(list))
    for name in ("wait_sec", "pieces", "can_list"):
        monkeypatch.setattr(far_dataset.FarFileSystem, name, getattr(far_dataset.FarFileSystem, name))
    monkeypatch.setattr(remote, "_FIRST_WAIT_SEC", 0.001)
    yield far_dataset.FarFileSystem
    far_dataset.wait_for_downloads()


@pytest.fixture
def parsed_flags() -> None:
    """Grain's worker processes want absl's flags, which `absl.app.run` parses in a program."""
    from absl import flags  # type: ignore[import-untyped]

    flags.FLAGS.mark_as_parsed()
