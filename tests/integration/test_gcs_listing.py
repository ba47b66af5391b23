"""A large folder of a bucket is listed in ranges of names, each object once. Runs on an emulator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from imagebeam import storage
from imagebeam.storage import gcs as gcs_storage
from imagebeam.transforms import elements
from imagebeam.transforms.sources import files, image_source
from tests.servers import gcs

pytestmark = pytest.mark.integration

NAMES = [
    *(f"flat/{index:04d}.jpg" for index in range(60)),
    *(f"flat/img_{index}.jpg" for index in range(30)),
    *("flat/0031.jpg.jpg", "flat/img_.jpg", "flat/é.jpg", "flat/日本 1.jpg", "flat/\U0001f600.jpg", "flat/a%20b#?.jpg"),
    *("flat/0031/1.jpg", "flat/img_2/1.jpg", "flat/img_2/deep/1.jpg", "flat/zz/1.jpg", "flat.jpg", "flat0.jpg"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gcs_storage.GcsStorage]:
    with gcs.run(tmp_path_factory.mktemp("gcs")) as emulator:
        bucket = emulator.bucket("pets")
        for name in NAMES:
            bucket.blob(name).upload_from_string(b"x")
        yield gcs_storage.GcsStorage({"endpoint_url": emulator.url, "token": "anon"})


@pytest.mark.parametrize("recursive", [pytest.param(True, id="threads"), pytest.param(False, id="workers")])
@pytest.mark.parametrize("root", ["gs://pets", "gs://pets/flat"])
@pytest.mark.parametrize("page_objects", [1, 7, 1000])
def test_every_object_is_listed_once_in_whatever_ranges(
    store: gcs_storage.GcsStorage, monkeypatch: pytest.MonkeyPatch, root: str, page_objects: int, recursive: bool
) -> None:
    monkeypatch.setattr(storage, "storage_of", lambda _: store)
    monkeypatch.setattr(gcs_storage, "_PAGE_OBJECTS", page_objects)
    monkeypatch.setattr(files, "_PAGES_AND_RANGES", ((2, 4), (3, 5)))
    source = files.FilesSource(root)
    waiting, keys, num_ranges = [source.start()], [], 0
    while waiting:
        for found in source.list_directory(waiting.pop(), recursive):
            if isinstance(found, files.Directory):
                waiting.append(found)
                num_ranges += bool(found.num_cuts)
                continue
            assert isinstance(found, image_source.Listing)
            assert not found.problems
            keys += [ref.key for ref in elements.unpack_refs(found.packed_refs)] if found.num_refs else []
    below = root.removeprefix("gs://pets").strip("/")
    assert sorted(keys) == sorted(
        name.removeprefix(f"{below}/") for name in NAMES if name.startswith(f"{below}/" if below else "")
    )
    assert recursive or (num_ranges > 3) == (page_objects < 1000)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param("", "", "0000.jpg", id="unbounded"),
        pytest.param("0031", "", "0031.jpg", id="file-before-the-folder-of-its-name"),
        pytest.param("00310", "", "0032.jpg", id="after-a-folder"),
        pytest.param("0031.jpg.k", "0032", "0031/", id="folder"),
        pytest.param("img_9.jpg.", "z", None, id="nothing"),
        pytest.param("日", "", "日本 1.jpg", id="unicode"),
    ],
)
def test_first_name_of_a_range_is_found(
    store: gcs_storage.GcsStorage, start: str, end: str, expected: str | None
) -> None:
    assert store.first_name("gs://pets/flat", start, end) == expected
