"""Records by number, their checksums, and the places that faults name."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import imagebeam
from imagebeam import errors, records
from imagebeam.reader import record_bytes
from tests.unit.imagebeam.reader import far_dataset

NUM_SHARDS, NUM_RECORDS, NUM_BYTES = 3, 4, 50


@pytest.fixture(scope="module", params=["none", "gzip"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("bytes") / "set"
    return far_dataset.write_dataset(path, NUM_SHARDS, NUM_RECORDS, NUM_BYTES, request.param)


def fetcher_of(folder: pathlib.Path) -> record_bytes.RecordFetcher:
    dataset = imagebeam.open_dataset(str(folder))
    return dataset._source.fetcher(dataset.catalog, "train")


def stored_in(folder: pathlib.Path) -> list[bytes]:
    compression = imagebeam.load_catalog(str(folder)).compression
    found = []
    for shard in far_dataset.shards_of(folder):
        with open(folder / shard.name, "rb") as file:
            found += [record.data for record in records.read_records(file, compression)]
    return found


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=st.lists(st.integers(0, NUM_SHARDS * NUM_RECORDS - 1), max_size=20))
def test_records_are_yielded_in_any_order_that_is_asked_for(folder: pathlib.Path, wanted: list[int]) -> None:
    stored = stored_in(folder)
    assert list(fetcher_of(folder).fetch(np.array(wanted, np.int64))) == [stored[record] for record in wanted]


def test_record_with_a_flipped_bit_is_a_trouble_with_its_place(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", NUM_SHARDS, NUM_RECORDS, NUM_BYTES)
    path = folder / far_dataset.name_of(1, NUM_SHARDS)
    offset = 2 * (NUM_BYTES + records.HEADER_BYTES + records.FOOTER_BYTES)
    content = bytearray(path.read_bytes())
    content[offset + records.HEADER_BYTES] ^= 1
    path.write_bytes(content)
    before, broken, after = fetcher_of(folder).fetch(np.array([5, 6, 7]))
    assert [before, after] == [stored_in_shard(path)[1], stored_in_shard(path)[3]]
    assert isinstance(broken, record_bytes.Trouble)
    assert (broken.shard, broken.index, broken.offset, broken.key) == (str(path), 2, offset, "")
    assert str(broken) == (
        f"record 2 of shard {path}, byte offset {offset}: the checksum of a record of {NUM_BYTES} bytes does not match"
    )


def stored_in_shard(path: pathlib.Path) -> list[bytes]:
    """Returns the contents of a shard's records, whose lengths are all the same, without a look at checksums."""
    size = NUM_BYTES + records.HEADER_BYTES + records.FOOTER_BYTES
    content = path.read_bytes()
    starts = range(records.HEADER_BYTES, len(content), size)
    return [content[start : start + NUM_BYTES] for start in starts]


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 66, 132], "is of 2 records, its shard has 4: run imagebeam verify"),
        ([0, 66, 60, 198, 264], "is damaged: its offsets do not ascend from 0 to 264, the bytes of its shard"),
    ],
)
def test_wrong_index_is_named(tmp_path: pathlib.Path, offsets: list[int], message: str) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", NUM_SHARDS, NUM_RECORDS, NUM_BYTES)
    index = folder / far_dataset.shards_of(folder)[0].index_name
    index.write_bytes(np.array(offsets, "<u8").tobytes())
    with pytest.raises(errors.ShardError, match=f"index {index} {message}"):
        list(fetcher_of(folder).fetch(np.array([0])))


def test_closed_fetcher_still_reads(folder: pathlib.Path) -> None:
    fetcher = fetcher_of(folder)
    first = list(fetcher.fetch(np.arange(3)))
    fetcher.close()
    assert list(fetcher.fetch(np.arange(3))) == first
