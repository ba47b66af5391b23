from __future__ import annotations

import io
import pathlib
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebeam import storage
from imagebeam.transforms.packed import array_files, found_array, numpy_files, packed_file
from tests import array_sets, case_tables

ARRAYS: dict[str, np.ndarray] = {
    "x": array_sets.pictures(0, 5, 4, 6),
    "columns": np.asfortranarray(array_sets.pictures(1, 5, 4, 3)),
    "y": array_sets.numbers(0, 5),
    "names": np.array([b"cat", b"dog"]),
    "none": np.zeros((0, 4, 4), np.uint8),
}


def npy(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def write(path: pathlib.Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def header(text: str, values: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + values


def raw_header(shape: object, descr: object = "|u1", is_fortran: object = False) -> bytes:
    return header(repr({"descr": descr, "fortran_order": is_fortran, "shape": shape}) + "\n")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["stored", "deflated"])
@pytest.mark.parametrize("place", ["local", "memory"])
def test_npz_holds_what_numpy_wrote(tmp_path: pathlib.Path, save: Any, place: str) -> None:
    save(tmp_path / "a.npz", **ARRAYS)
    uri = str(tmp_path / "a.npz")
    if place == "memory":
        uri = f"memory://arrays/{save.__name__}.npz"
        storage.storage_of(uri).write_whole(uri, (tmp_path / "a.npz").read_bytes())
    found = {each.name: each for each in numpy_files.list_npz(uri, 0)}
    assert set(found) == set(ARRAYS)
    for name, expected in ARRAYS.items():
        np.testing.assert_array_equal(array_files.load(uri, 0, found[name]), expected)
        if save is np.savez:
            plain = storage.storage_of(uri).read(uri, found[name].start, expected.nbytes)
            assert plain == expected.tobytes(order="A")
        else:
            assert found[name].start == -1


@pytest.mark.parametrize("name", ARRAYS)
def test_npy_holds_what_numpy_wrote(tmp_path: pathlib.Path, name: str) -> None:
    uri = write(tmp_path / "a.npy", npy(ARRAYS[name]))
    [found] = numpy_files.list_npy(uri, 0)
    assert found.name == found_array.ONLY
    np.testing.assert_array_equal(array_files.load(uri, 0, found), ARRAYS[name])


GOOD = npy(ARRAYS["x"])


def test_npy_that_lies_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for data, message in [
        (b"", "has no valid header"),  # empty
        (b"\x93NUMPY\x01\x00\xff\xff", "has no valid header"),  # header-cut
        (b"\x93NUMPY\x09\x00" + GOOD[8:], "version 9 of the format"),  # version
        (GOOD[:-1], "has 119 bytes of values, its header says 120: it was cut short"),  # cut
        (GOOD + b"0", "has 121 bytes of values, its header says 120; save it again"),  # rest
        (raw_header((10**12, 28, 28)), "its header says 784,000,000,000,000: it was cut short"),  # vast
        (raw_header((-1, 28)), r"array 'array' \(the shape \(-1, 28\)\)"),  # negative
        (raw_header((2.5,)), "has no valid header"),  # fraction
        (npy(np.array([{}]), allow_pickle=True), "holds Python objects"),  # objects
        (raw_header((1,), [("a", "O")]), "holds Python objects"),  # structured-objects
        (raw_header((1,), "?!"), "has no valid header"),  # type
        (header("__import__('os').system('touch ran')\n"), "has no valid header"),  # code
        (header("(" * 5000 + "\n"), "has no valid header"),  # nested
        (header(" " * 20_000 + "\n"), "has no valid header"),  # long
    ]:
        folder = case_tables.new_folder(tmp_path)
        monkeypatch.chdir(folder)
        with pytest.raises(packed_file.BrokenContentError, match=message):
            numpy_files.list_npy(write(folder / "a.npy", data), 0)
        zipped = io.BytesIO()
        with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("array.npy", data)
        with pytest.raises(packed_file.BrokenContentError, match=message):
            numpy_files.list_npz(write(folder / "a.npz", zipped.getvalue()), 0)
        assert not (folder / "ran").exists()


def test_npz_of_two_arrays_with_one_name_is_refused(tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("x.npy", GOOD)
        archive.writestr("x.npy", GOOD)
    with pytest.raises(packed_file.BrokenContentError, match="2 arrays, or of two with one name"):
        numpy_files.list_npz(str(tmp_path / "a.npz"), 0)


def test_npz_that_is_encrypted_is_refused(tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", GOOD)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(packed_file.BrokenContentError, match=r"array 'x.npy' is encrypted"):
        numpy_files.list_npz(write(tmp_path / "a.npz", bytes(data)), 0)


def test_npz_whose_member_holds_more_than_its_header_is_read_no_further(tmp_path: pathlib.Path) -> None:
    """The zip's directory says how long a member is; more than this is never unpacked."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy(np.zeros(10_000_000, np.uint8)))
    data = bytearray(zipped.getvalue())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = (1128).to_bytes(4, "little")
    with pytest.raises(packed_file.BrokenContentError, match=r"is not a complete .npz file"):
        numpy_files.list_npz(write(tmp_path / "a.npz", bytes(data)), 0)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["stored", "deflated"])
def test_npz_with_a_flipped_byte_is_refused_or_has_a_wrong_value(tmp_path: pathlib.Path, save: Any) -> None:
    save(tmp_path / "a.npz", x=ARRAYS["x"], y=ARRAYS["y"])
    data = (tmp_path / "a.npz").read_bytes()
    for position in range(0, len(data), 3):
        uri = write(tmp_path / "b.npz", data[:position] + bytes([data[position] ^ 0x41]) + data[position + 1 :])
        try:
            for each in numpy_files.list_npz(uri, 0):
                assert b"".join(numpy_files.read_npz(uri, 0, each)) is not None
        except packed_file.BrokenContentError as e:
            assert e.detail


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_npy_of_any_bytes_is_refused(tmp_path: pathlib.Path, data: bytes) -> None:
    with pytest.raises(packed_file.BrokenContentError):
        numpy_files.list_npy(write(tmp_path / "a.npy", data), 0)


def test_read_npy_cut_short_after_the_listing_raises(tmp_path: pathlib.Path) -> None:
    uri = write(tmp_path / "a.npy", GOOD)
    [found] = numpy_files.list_npy(uri, 0)
    write(tmp_path / "a.npy", GOOD[:-1])
    with pytest.raises(packed_file.BrokenContentError, match="was cut short"):
        list(numpy_files.read_npy(uri, 0, found))
    with pytest.raises(packed_file.BrokenContentError, match="has no array 'other' any more"):
        list(array_files.read_images(write(tmp_path / "b.npy", GOOD), 0, "other:NHW"))
