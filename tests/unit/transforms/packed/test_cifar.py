from __future__ import annotations

import os
import pathlib
import pickle
import subprocess
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebeam import storage
from imagebeam.transforms.packed import array_files, cifar, found_array, packed_file
from tests import array_sets, case_tables

BATCH = {
    b"data": array_sets.pictures(0, 4, 3072),
    b"labels": [3, 1, 2, 300],
    b"wide": np.arange(4, dtype=">i4"),
    b"columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    b"filenames": [b"a", b"b c", b"", b"d"],
    b"batch_label": b"one",
}
PYTHON_2 = (  # {"data": numpy.array([[1, 2], [3, 4]], "uint8"), "labels": [7L, 8]} by Python 2's cPickle, protocol 2
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87"
    b"Rq\x05(K\x01K\x02K\x02\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff"
    b"\xff\xff\xffK\x00tb\x89U\x04\x01\x02\x03\x04tbU\x06labelsq\x08]q\t(\x8a\x01\x07K\x08eu."
)


def write(path: pathlib.Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def load_all(uri: str) -> dict[str, Any]:
    found = cifar.list_pickled(uri, 0)
    return {each.name: array_files.load(uri, 0, each) for each in found}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_load_reads_what_pickle_wrote(tmp_path: pathlib.Path, protocol: int) -> None:
    found = load_all(write(tmp_path / "train", pickle.dumps(BATCH, protocol)))
    assert set(found) == {"data", "labels", "wide", "columns", "filenames"}
    for name in ("data", "wide", "columns", "labels"):
        np.testing.assert_array_equal(found[name], np.array(BATCH[name.encode()]))
    assert found["filenames"] == ["a", "b c", "", "d"]


def test_load_reads_what_python_2_wrote(tmp_path: pathlib.Path) -> None:
    found = load_all(write(tmp_path / "train", PYTHON_2))
    np.testing.assert_array_equal(found["data"], np.array([[1, 2], [3, 4]], np.uint8))
    assert found["labels"].tolist() == [7, 8]


class _Call:
    def __init__(self, function: Any, *arguments: Any):
        self._reduced = function, arguments

    def __reduce__(self) -> Any:
        return self._reduced


def test_load_refuses_any_function_by_its_name_and_runs_none(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for protocol in [2, 4]:
        for call, name in [
            (_Call(os.system, "touch ran"), "posix.system"),  # os-system
            (_Call(eval, "open('ran', 'w')"), "eval"),  # eval
            (_Call(subprocess.check_output, ["touch", "ran"]), "check_output"),  # subprocess
            (_Call(np.fromfile, "/etc/passwd", np.uint8), "fromfile"),  # numpy
            (_Call(np.load, "/etc/passwd"), "numpy"),  # numpy-load
            (pathlib.PurePosixPath("a"), "PurePosixPath"),  # class
        ]:
            folder = case_tables.new_folder(tmp_path)
            monkeypatch.chdir(folder)
            uri = write(folder / "train", pickle.dumps({b"data": call}, protocol))
            with pytest.raises(packed_file.BrokenContentError, match=f"is a pickle that would call .*{name}"):
                cifar.load(uri, 0)
            assert os.listdir(folder) == ["train"]


def test_load_of_what_is_no_such_pickle_raises(tmp_path: pathlib.Path) -> None:
    for data in [
        b"",  # empty
        pickle.dumps([1, 2], 2),  # list
        pickle.dumps(BATCH, 2)[:-9],  # cut
        PYTHON_2.replace(b"K\x02K\x02\x86", b"K\x02K\x7f\x86"),  # shape-larger-than-values
        PYTHON_2.replace(b"K\x02K\x02\x86", b"K\x02J\xfe\xff\xff\xff\x86"),  # negative-shape
        PYTHON_2.replace(b"U\x02u1", b"U\x02O8"),  # objects
        PYTHON_2.replace(b"cnumpy\ndtype\n", b"cnumpy\nndarray\n"),  # array-as-type
        b"\x80\x02}\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",  # endless-text
        b"\x80\x02\x8e\xff\xff\xff\xff\xff\xff\xff\x0f.",  # endless-bytes
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x0f.",  # bytearray
        b"\x80\x02cnumpy\nndarray\n}b.",  # state-of-a-class
        b"\x80\x02c_codecs\nencode\nN}U\x01aK\x01s\x86b.",  # state-of-a-function
        b"\x80\x02Pid\n.",  # persistent
        b"\x80\x02(U\x01aios\nsystem\n.",  # inst
        pickle.dumps({b"data": np.array([object], object)}, 2).replace(b"object", b"thing"),  # pickled
    ]:
        folder = case_tables.new_folder(tmp_path)
        with pytest.raises(packed_file.BrokenContentError, match=r"is not a complete pickle|would call"):
            cifar.load(write(folder / "train", data), 0)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(PYTHON_2) - 1), st.integers(0, 255))
def test_load_of_changed_bytes_reads_or_refuses(tmp_path: pathlib.Path, position: int, value: int) -> None:
    changed = PYTHON_2[:position] + bytes([value]) + PYTHON_2[position + 1 :]
    uri = write(tmp_path / "train", changed)
    try:
        load_all(uri)
    except packed_file.BrokenContentError as e:
        assert e.detail


def test_load_of_a_large_or_changed_file_raises(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = write(tmp_path / "train", PYTHON_2)
    with pytest.raises(storage.ChangedError):
        cifar.load(uri, 1)
    monkeypatch.setattr(cifar, "MAX_PICKLE_BYTES", 100)
    with pytest.raises(packed_file.BrokenContentError, match="is larger than 100 bytes, too much for a pickle"):
        cifar.load(uri, 0)
    monkeypatch.setattr(array_files, "MAX_LOADED_BYTES", 7)
    array = found_array.FoundArray("labels", (2,), "<i8")
    with pytest.raises(packed_file.BrokenContentError, match="has 2 values in the array 'labels', too many"):
        array_files.load(uri, 0, array)


# --- found arrays ----------------------------------------------------------------------------------------------------


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "HWCN", "NWHC", "NCWH", "NHW", "HWN", "NWH"])
@pytest.mark.parametrize("piece_bytes", [7, 10_000])
def test_to_rows_of_any_layout_yields_height_width_channels(layout: str, order: str, piece_bytes: int) -> None:
    images = array_sets.pictures(0, 5, 4, 6, 3 if "C" in layout else 1)  # N, H, W, C
    given = images if "C" in layout else images[..., 0]
    values = given.transpose(["NHWC".replace("C", "C" * ("C" in layout)).index(axis) for axis in layout])
    array = found_array.FoundArray("x", values.shape, "|u1", order)
    axes = found_array.ImageAxes.parse(str(found_array.ImageAxes(layout)))
    assert (axes.num_images(values.shape), axes.image_shape(values.shape)) == (5, images.shape[1:])
    pieces = pieces_of(values.tobytes(order=order), piece_bytes)  # type: ignore[arg-type]
    assert b"".join(found_array.to_rows(pieces, array, axes)) == images.tobytes()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "NCWH"])
def test_to_rows_of_images_of_one_axis_unfolds_them(layout: str, order: str) -> None:
    images = array_sets.pictures(0, 5, 4, 6, 3)
    values = images.transpose(["NHWC".index(axis) for axis in layout]).reshape(5, -1)
    array = found_array.FoundArray("x", values.shape, "|u1", order)
    axes = found_array.ImageAxes.parse(str(found_array.ImageAxes(layout, (4, 6, 3))))
    assert (axes.num_images(values.shape), axes.image_shape(values.shape)) == (5, (4, 6, 3))
    rows = found_array.to_rows([values.tobytes(order=order)], array, axes)  # type: ignore[arg-type]
    assert b"".join(rows) == images.tobytes()


def test_to_rows_of_scattered_images_takes_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_file, "PIECE_BYTES", 16)
    images = array_sets.pictures(0, 50, 4, 6, 3)
    array = found_array.FoundArray("x", (4, 6, 3, 50), "|u1")
    rows = list(found_array.to_rows([np.moveaxis(images, 0, -1).tobytes()], array, found_array.ImageAxes("HWCN")))
    assert (len(rows), b"".join(rows)) == (50, images.tobytes())


def test_guess_takes_what_leaves_no_doubt() -> None:
    for shape, is_matlab, expected in [
        ((9, 28, 28), False, "NHW"),  # gray
        ((9, 28, 28, 3), False, "NHWC"),  # color
        ((9, 3, 28, 28), False, "NCHW"),  # planes
        ((9, 784), False, "NHWC-28x28x1"),  # square-rows
        ((32, 32, 3, 9), True, "HWCN"),  # matlab
        ((9, 32, 32, 3), True, "NHWC"),  # matlab-by-python
        ((28, 28, 9), True, "HWN"),  # matlab-gray
        ((9, 3072), False, None),  # color-rows
        ((9, 28, 28, 28), False, None),  # volume
        ((9,), False, None),  # list
        ((), False, None),  # number
    ]:
        axes = found_array.guess(shape, is_matlab)
        assert (None if axes is None else str(axes)) == expected
