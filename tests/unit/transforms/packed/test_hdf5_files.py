from __future__ import annotations

import pathlib
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.io
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebeam import errors, storage
from imagebeam.transforms.packed import array_files, found_array, hdf5_files, packed_file
from tests import array_sets, case_tables

IMAGES = array_sets.pictures(0, 9, 8, 6, 3)


def make(path: pathlib.Path, fill: Callable[[Any], None], **options: Any) -> str:
    with h5py.File(path, "w", **options) as file:
        fill(file)
    return str(path)


def fill_all(file: Any) -> None:
    file["plain"] = IMAGES
    file.create_dataset("packed", data=IMAGES, chunks=(4, 8, 6, 3), compression="gzip", shuffle=True)
    file.create_dataset("group/big-endian", data=np.arange(9, dtype=">i4"))
    file["texts"] = np.array(["cat", "a dog", "größer"], dtype=h5py.string_dtype())
    file["bytes"] = np.array([b"cat", b"dog"])
    file["number"] = np.int64(3)
    file["nothing"] = h5py.Empty("S5")
    file["again"] = h5py.SoftLink("/plain")


@pytest.mark.parametrize("options", [{}, {"userblock_size": 512}, {"libver": "latest"}], ids=["", "userblock", "new"])
@pytest.mark.parametrize("place", ["local", "memory"])
def test_hdf5_holds_what_h5py_wrote(tmp_path: pathlib.Path, options: dict[str, Any], place: str) -> None:
    uri = make(tmp_path / "a.h5", fill_all, **options)
    if place == "memory":
        data, uri = (tmp_path / "a.h5").read_bytes(), "memory://arrays/a.h5"
        storage.storage_of(uri).write_whole(uri, data)
    found = {each.name: each for each in hdf5_files.list_hdf5(uri, 0)}
    loaded = {name: array_files.load(uri, 0, each) for name, each in found.items() if name != "texts"}
    assert found["texts"].dtype == "|O"  # of any length: never read
    np.testing.assert_array_equal(loaded.pop("plain"), IMAGES)
    np.testing.assert_array_equal(loaded.pop("packed"), IMAGES)
    np.testing.assert_array_equal(loaded.pop("group/big-endian"), range(9))
    assert {name: value.tolist() for name, value in loaded.items()} == {
        "bytes": [b"cat", b"dog"],
        "number": 3,
        "nothing": [],
    }
    assert storage.storage_of(uri).read(uri, found["plain"].start, IMAGES.nbytes) == IMAGES.tobytes()
    assert found["packed"].start == -1


def link_out(file: Any) -> None:
    file["x"] = h5py.ExternalLink("/etc/other.h5", "/x")


def map_out(file: Any) -> None:
    layout = h5py.VirtualLayout((9, 8, 6, 3), np.uint8)
    layout[:] = h5py.VirtualSource("/etc/other.h5", "x", (9, 8, 6, 3))
    file.create_virtual_dataset("x", layout)


def store_out(file: Any) -> None:
    file.create_dataset("x", (10,), np.uint8, external=[("/etc/passwd", 0, 10)])


def claim(file: Any) -> None:
    file.create_dataset("x", (10**9, 28, 28), np.uint8, chunks=(1, 28, 28))


def claim_plain(file: Any) -> None:
    file.create_dataset("x", (10**9, 28, 28), np.uint8)


def write_in_part(file: Any) -> None:
    file.create_dataset("x", IMAGES.shape, np.uint8, chunks=(2, 8, 6, 2))[:4] = IMAGES[:4]


def write_nothing(file: Any) -> None:
    file.create_dataset("x", IMAGES.shape, np.uint8)


def chunk(file: Any) -> None:
    shape = (1, 20_000, 20_000)
    created = file.create_dataset("x", shape, np.uint8, chunks=shape, compression="gzip")
    created.id.write_direct_chunk((0, 0, 0), bytes(1 << 20))  # unpacked by nobody: real values take 2 s to write


def test_hdf5_that_leads_elsewhere_or_lies_is_refused(tmp_path: pathlib.Path) -> None:
    for fill, message in [
        (link_out, r"has a link 'x' to the file '/etc/other.h5'; other files are not opened"),  # link
        (map_out, "has the dataset 'x', whose values are in other files"),  # virtual
        (store_out, "has the dataset 'x', whose values are in other files"),  # external
        (claim, "has 784,000,000,000 bytes of values, and stores 0 for them"),  # never-written
        (claim_plain, "has 784,000,000,000 bytes of values, and stores 0 for them"),  # never-written-plain
        (write_in_part, "'x' has 10 chunks, and stores 4 of them: it was not written to"),  # in-part
        (write_nothing, "has 1,296 bytes of values, and stores 0 for them: it was not"),  # not-at-all
        (chunk, "in chunks of more than 268,435,456 bytes"),  # vast-chunk
    ]:
        folder = case_tables.new_folder(tmp_path)
        with pytest.raises(packed_file.BrokenContentError, match=message):
            hdf5_files.list_hdf5(make(folder / "a.h5", fill), 0)


@pytest.mark.parametrize("cut", [0, 8, 100, 1000, 3000, -1], ids=lambda cut: f"at-{cut}")
def test_hdf5_cut_short_is_refused(tmp_path: pathlib.Path, cut: int) -> None:
    uri = make(tmp_path / "a.h5", fill_all)
    (tmp_path / "a.h5").write_bytes((tmp_path / "a.h5").read_bytes()[:cut])
    with pytest.raises(packed_file.BrokenContentError, match="is not a complete HDF5 file"):
        hdf5_files.list_hdf5(uri, 0)


def test_hdf5_with_a_broken_chunk_is_refused(tmp_path: pathlib.Path) -> None:
    uri = make(tmp_path / "a.h5", lambda file: file.create_dataset("x", data=IMAGES, compression="gzip"))
    [found] = hdf5_files.list_hdf5(uri, 0)
    with h5py.File(uri) as file:
        offset = file["x"].id.get_chunk_info(0).byte_offset
    data = bytearray((tmp_path / "a.h5").read_bytes())
    data[offset : offset + 40] = bytes(40)
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(packed_file.BrokenContentError, match="is not a complete HDF5 file"):
        array_files.load(uri, 0, found)


def test_hdf5_with_circular_links_has_each_group_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 links of a group to itself would be 30 ** 8 groups."""

    def loop(file: Any) -> None:
        group = file.create_group("group")
        group["root"], group["x"] = file["/"], IMAGES
        for number in range(30):
            group[f"self-{number}"] = group
        file["x"] = file["y"] = IMAGES

    uri = make(tmp_path / "a.h5", loop)
    assert [each.name for each in hdf5_files.list_hdf5(uri, 0)] == ["group/x", "x", "y"]
    monkeypatch.setattr(hdf5_files, "_MAX_LINKS", 34)
    with pytest.raises(packed_file.BrokenContentError, match="has more than 34 links to groups and datasets"):
        hdf5_files.list_hdf5(uri, 0)
    monkeypatch.setattr(hdf5_files, "_MAX_LINKS", 35)
    assert len(hdf5_files.list_hdf5(uri, 0)) == 3
    monkeypatch.setattr(found_array, "MAX_ARRAYS", 2)
    with pytest.raises(packed_file.BrokenContentError, match="has more than 2 arrays"):
        hdf5_files.list_hdf5(uri, 0)


KEPT = """
import gc, sys
from imagebeam.transforms.packed import found_array, hdf5_files

kept = []
kept.append(kept)
gc.freeze()  # as `pipelines.beam.runners` does: what a frozen cycle holds is never freed
for uri in sys.argv[1:]:
    try:
        [found] = hdf5_files.list_hdf5(uri, 0)
        list(hdf5_files.read_hdf5(uri, 0, found))
    except OSError as e:
        kept.append(e)
print(len(kept) - 1)
"""


def test_hdf5_that_is_refused_leaves_nothing_that_crashes_at_exit(tmp_path: pathlib.Path) -> None:
    def pack(file: Any) -> None:
        file.create_dataset("x", data=IMAGES, chunks=(9, 8, 6, 3), compression="gzip")

    uris = [make(tmp_path / f"{fill.__name__}.h5", fill) for fill in (link_out, map_out, store_out, claim, pack)]
    data = bytearray((tmp_path / "pack.h5").read_bytes())
    with h5py.File(tmp_path / "pack.h5") as file:
        offset = file["x"].id.get_chunk_info(0).byte_offset
    data[offset : offset + 40] = bytes(40)
    (tmp_path / "pack.h5").write_bytes(data)
    (tmp_path / "cut.h5").write_bytes(data[:1000])
    (tmp_path / "junk.h5").write_bytes(bytes(3000))
    uris += [str(tmp_path / name) for name in ("cut.h5", "junk.h5")]
    done = subprocess.run([sys.executable, "-c", KEPT, *uris], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


def test_hdf5_without_its_package_names_the_extra(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = make(tmp_path / "a.h5", fill_all)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(errors.ConfigError, match=r"h5py is not installed, reading .*: pip install 'imagebeam\[hdf5\]'"):
        hdf5_files.list_hdf5(uri, 0)


# --- MATLAB ----------------------------------------------------------------------------------------------------------

VALUES = {
    "X": array_sets.pictures(0, 8, 6, 3, 5),
    "y": np.array([[10], [1], [2], [3], [4]], np.uint8),
    "wide": np.arange(6.0).reshape(2, 3) / 4,
    "short": np.array([[-300, 5]], np.int16),
    "none": np.zeros((0, 3)),
}
OTHERS = {"text": "a text", "cell": np.array([1, "a"], object), "struct": {"a": 1}}


def header(byte_order: str = "<") -> bytes:
    return b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{byte_order}H", 0x0100) + (b"IM", b"MI")[byte_order == ">"]


def matrix(shape: tuple[int, ...], values: bytes, stored: int = 2, kind: int = 9, byte_order: str = "<") -> bytes:
    """Returns an array `x` by the format's description, with any values."""

    def element(type: int, data: bytes) -> bytes:
        return struct.pack(f"{byte_order}2I", type, len(data)) + data + bytes(-len(data) % 8)

    inside = element(6, struct.pack(f"{byte_order}2I", kind, 0))
    inside += element(5, struct.pack(f"{byte_order}{len(shape)}i", *shape)) + element(1, b"x") + element(stored, values)
    return element(14, inside)


@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "compressed"])
def test_mat_holds_what_scipy_wrote(tmp_path: pathlib.Path, is_compressed: bool) -> None:
    uri = str(tmp_path / "a.mat")
    scipy.io.savemat(uri, VALUES | OTHERS, do_compression=is_compressed)
    found = {each.name: each for each in hdf5_files.list_matlab(uri, 0)}
    assert set(found) == set(VALUES)
    for name, expected in VALUES.items():
        loaded = array_files.load(uri, 0, found[name])
        np.testing.assert_array_equal(loaded, expected)
        assert loaded.dtype == expected.dtype


@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_mat_may_store_values_in_a_smaller_type(tmp_path: pathlib.Path, byte_order: str) -> None:
    """MATLAB stores doubles that are small integers as bytes."""
    (tmp_path / "a.mat").write_bytes(header(byte_order) + matrix((2, 2), b"\1\2\3\4", kind=6, byte_order=byte_order))
    [found] = hdf5_files.list_matlab(str(tmp_path / "a.mat"), 0)
    loaded = array_files.load(str(tmp_path / "a.mat"), 0, found)
    assert (loaded.dtype.kind, loaded.tolist()) == ("f", [[1.0, 3.0], [2.0, 4.0]])


def test_mat_of_version_73_shows_shapes_as_matlab_does(tmp_path: pathlib.Path) -> None:
    uri = str(tmp_path / "a.mat")
    with h5py.File(uri, "w", userblock_size=512) as file:
        for name in ("X", "y"):
            file[name] = VALUES[name].T
        file["#refs#/a"] = 1
    with open(uri, "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
    found = {each.name: each for each in hdf5_files.list_matlab(uri, 0)}
    assert set(found) == {"X", "y"}
    for name, each in found.items():
        np.testing.assert_array_equal(array_files.load(uri, 0, each), VALUES[name])
    rows = b"".join(array_files.read_images(uri, 0, "X:HWCN"))
    assert rows == np.moveaxis(VALUES["X"], 3, 0).tobytes()


def test_mat_that_is_broken_is_refused(tmp_path: pathlib.Path) -> None:
    for data in [
        b"",  # empty
        bytes(200),  # zeros
        header() + b"\x0e",  # tag
        header() + struct.pack("<2I", 15, 4) + b"abcd",  # compressed
        header() + struct.pack("<2I", 15, 2) + b"\x78\x9c",  # compressed-cut
        header() + matrix((2, 2), b"\1\2\3\4")[:-6],  # values
        header() + matrix((2, 3), b"\1\2\3\4"),  # fewer-values-than-the-shape
        header() + matrix((1 << 30, 1 << 30), b"\1\2\3\4"),  # vast-shape
    ]:
        folder = case_tables.new_folder(tmp_path)
        uri = str(folder / "a.mat")
        (folder / "a.mat").write_bytes(data)
        with pytest.raises(packed_file.BrokenContentError, match=r"is not a complete .mat file|was cut short"):
            [b"".join(hdf5_files.read_matlab(uri, 0, each)) for each in hdf5_files.list_matlab(uri, 0)]


def test_mat_with_other_values_than_listed_is_refused(tmp_path: pathlib.Path) -> None:
    uri = str(tmp_path / "a.mat")
    scipy.io.savemat(uri, {"x": np.ones((2, 2)), "complex": np.array([1j])})
    found = {each.name: each for each in hdf5_files.list_matlab(uri, 0)}
    with pytest.raises(packed_file.BrokenContentError, match="values of complex128 in the array 'complex'"):
        array_files.load(uri, 0, found["complex"])
    for name, shape in (("x", (4,)), ("z", (2, 2))):
        with pytest.raises(packed_file.BrokenContentError, match=f"has no array '{name}' of the shape"):
            array_files.load(uri, 0, found["x"]._replace(name=name, shape=shape))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_mat_with_a_changed_byte_is_read_or_refused(tmp_path: pathlib.Path, position: int, value: int) -> None:
    path = tmp_path / "a.mat"
    if not path.exists():
        scipy.io.savemat(path, VALUES | OTHERS, do_compression=True)
    data = bytearray(path.read_bytes())
    data[position % len(data)] = value
    uri = str(tmp_path / "b.mat")
    (tmp_path / "b.mat").write_bytes(data)
    try:
        for each in hdf5_files.list_matlab(uri, 0):
            if each.num_values < 10_000:
                array_files.load(uri, 0, each)
    except packed_file.BrokenContentError as e:
        assert e.detail
