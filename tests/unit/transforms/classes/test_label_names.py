"""Names of label files, in the job graph or in a file beside it."""

from __future__ import annotations

import os
import pathlib
import pickle
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam import errors, storage
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.classes.label_names import LabelNames, StagedNames

NAMES = LabelNames(("cat", "d\udcf6g", "größe"), {"cat": "Felis catus\u2028", "d\udcf6g": "dog"}, (("val", ("cat",)),))


@pytest.fixture(autouse=True)
def _nothing_read_yet() -> Iterator[None]:
    label_names._read.cache_clear()
    yield
    label_names._read.cache_clear()


def unpickled(names: StagedNames) -> StagedNames:
    return pickle.loads(pickle.dumps(names))  # type: ignore[no-any-return]


def content_of(names: LabelNames | StagedNames) -> tuple[object, object, object]:
    return names.vocabulary, list(names.texts.items()), names.lists


texts = st.text(max_size=5)


@given(vocabulary=st.none() | st.lists(texts).map(tuple), texts=st.dictionaries(texts, texts))
def test_any_names_survive_the_file(vocabulary: tuple[str, ...] | None, texts: dict[str, str]) -> None:
    names = LabelNames(vocabulary, texts)
    assert content_of(label_names._decode(label_names._encode(names))) == content_of(names)


def test_pickle_of_staged_names_holds_only_their_address() -> None:
    staged = StagedNames("gs://b/o/names.json", LabelNames(tuple(map(str, range(10_000)))))
    assert len(pickle.dumps(staged)) < 200
    assert unpickled(staged).address == staged.address  # without reading the file, which does not exist


def test_process_reads_the_file_once_for_all_steps_and_threads(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = StagedNames(str(tmp_path / "names.json"), NAMES)
    staged.write()
    copies = [unpickled(staged) for _ in range(8)]
    store, reads = storage.storage_of(staged.address), []
    read = store.read
    monkeypatch.setattr(type(store), "read", lambda self, uri, *more: reads.append(uri) or read(uri, *more))  # type: ignore[func-returns-value]
    threads = [threading.Thread(target=lambda each=each: each.vocabulary) for each in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [content_of(each) for each in copies] == [content_of(NAMES)] * 8
    assert reads == [staged.address]


def test_long_names_are_staged_and_short_ones_not() -> None:
    limit = label_names.MAX_IN_GRAPH
    short, long = LabelNames(("a" * (limit - 1),), {"b": ""}), LabelNames(("a" * (limit - 1),), {}, (("val", ("bc",)),))
    assert label_names.stage_if_long(short, "/a/names.json") is short
    assert isinstance(label_names.stage_if_long(long, "/a/names.json"), StagedNames)
    assert label_names.stage_if_long(long, "") is long


def test_names_that_are_gone_are_an_error_with_the_remedy(tmp_path: pathlib.Path) -> None:
    staged = StagedNames(str(tmp_path / "names.json"), NAMES)
    staged.write()
    copy = unpickled(staged)
    staged.remove()
    staged.remove()  # gone already
    assert os.listdir(tmp_path) == []
    with pytest.raises(errors.ImagebeamError, match=r"label files are gone, expected in .*names\.json: .*again$"):
        assert copy.texts


def test_names_that_cannot_be_written_are_an_error_before_the_job(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.ConfigError, match="the names of the label files cannot be written to"):
        StagedNames(str(tmp_path / "file" / "names.json"), NAMES).write()
