from __future__ import annotations

import pathlib
import struct

import h5py
import numpy as np
import pytest
import scipy.io
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebeam.transforms.formats.arrays import array_files, matlab_files
from imagebeam.transforms.packed import broken_content
from tests import array_sets

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
    found = {each.name: each for each in matlab_files.list_arrays(uri, 0)}
    assert set(found) == set(VALUES)
    for name, expected in VALUES.items():
        loaded = array_files.load(uri, 0, found[name])
        np.testing.assert_array_equal(loaded, expected)
        assert loaded.dtype == expected.dtype


@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_mat_may_store_values_in_a_smaller_type(tmp_path: pathlib.Path, byte_order: str) -> None:
    """MATLAB stores doubles that are small integers as bytes."""
    (tmp_path / "a.mat").write_bytes(header(byte_order) + matrix((2, 2), b"\1\2\3\4", kind=6, byte_order=byte_order))
    [found] = matlab_files.list_arrays(str(tmp_path / "a.mat"), 0)
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
    found = {each.name: each for each in matlab_files.list_arrays(uri, 0)}
    assert set(found) == {"X", "y"}
    for name, each in found.items():
        np.testing.assert_array_equal(array_files.load(uri, 0, each), VALUES[name])
    rows = b"".join(array_files.read_images(uri, 0, "X:HWCN"))
    assert rows == np.moveaxis(VALUES["X"], 3, 0).tobytes()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(bytes(200), id="zeros"),
        pytest.param(header() + b"\x0e", id="tag"),
        pytest.param(header() + struct.pack("<2I", 15, 4) + b"abcd", id="compressed"),
        pytest.param(header() + struct.pack("<2I", 15, 2) + b"\x78\x9c", id="compressed-cut"),
        pytest.param(header() + matrix((2, 2), b"\1\2\3\4")[:-6], id="values"),
        pytest.param(header() + matrix((2, 3), b"\1\2\3\4"), id="fewer-values-than-the-shape"),
        pytest.param(header() + matrix((1 << 30, 1 << 30), b"\1\2\3\4"), id="vast-shape"),
    ],
)
def test_mat_that_is_broken_is_refused(tmp_path: pathlib.Path, data: bytes) -> None:
    uri = str(tmp_path / "a.mat")
    (tmp_path / "a.mat").write_bytes(data)
    with pytest.raises(broken_content.BrokenContentError, match=r"is not a complete .mat file|was cut short"):
        [b"".join(matlab_files.read_values(uri, 0, each)) for each in matlab_files.list_arrays(uri, 0)]


def test_mat_with_other_values_than_listed_is_refused(tmp_path: pathlib.Path) -> None:
    uri = str(tmp_path / "a.mat")
    scipy.io.savemat(uri, {"x": np.ones((2, 2)), "complex": np.array([1j])})
    found = {each.name: each for each in matlab_files.list_arrays(uri, 0)}
    with pytest.raises(broken_content.BrokenContentError, match="values of complex128 in the array 'complex'"):
        array_files.load(uri, 0, found["complex"])
    for name, shape in (("x", (4,)), ("z", (2, 2))):
        with pytest.raises(broken_content.BrokenContentError, match=f"has no array '{name}' of the shape"):
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
        for each in matlab_files.list_arrays(uri, 0):
            if each.num_values < 10_000:
                array_files.load(uri, 0, each)
    except broken_content.BrokenContentError as e:
        assert e.detail
