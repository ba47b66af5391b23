"""Reads the slices of DICOM and NIfTI files as the numbers that they measure."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from imagebeam import errors
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_formats, number_reader, pillow_decoder

_USER = "a file of DICOM or NIfTI"
_INVERTED = "MONOCHROME1"
_PHOTOMETRICS = ("MONOCHROME2", _INVERTED, "RGB")
_COLORS_BY_LUMA = "YBR"  # as RGB after pydicom has decoded it
# Where rows, columns and slices of a plane lead to: posterior, left, superior, inferior. That is how DICOM shows them.
_PLANES: Mapping[str, str] = {"axial": "PLS", "coronal": "ILP", "sagittal": "IPL"}
STORED = "stored"
PLANES = (*_PLANES, STORED)


def open_slices(data: bytes, format: str, plane: str) -> DicomSlices | NiftiSlices:
    """Returns the slices of a file, whose header is read.

    Args:
        data: the bytes of the file.
        format: one of `image_formats.MEDICAL`.
        plane: one of `PLANES`: how a volume of NIfTI is cut.

    Raises:
        BadImageError: if the header cannot be read, or the file has no slices that can be stored.
        ConfigError: if the package that reads it is not installed.
    """
    return DicomSlices(data) if format == image_formats.DICOM else NiftiSlices(data, plane)


class Slice:
    """One slice of a file, as `number_reader.Page`."""

    orientation = checked_image.UPRIGHT

    def __init__(self, slices: DicomSlices | NiftiSlices, number: int) -> None:
        self.height, self.width = slices.height, slices.width
        self.read = functools.partial(slices.read, number)


class DicomSlices:
    """The frames of a DICOM file, by pydicom.

    Attributes:
        count: of the frames.
        height: pixels of each.
        width: the same.
    """

    def __init__(self, data: bytes) -> None:
        with errors.imports_for(_USER, "medical"):
            import pydicom
        _silence()
        self._lib: Any = pydicom
        with _as_bad_image("pydicom"):
            self._file: Any = pydicom.dcmread(io.BytesIO(data))
            if "Rows" not in self._file or "PhotometricInterpretation" not in self._file:
                kind = self._file.get("SOPClassUID", "?")
                raise checked_image.unsupported(f"a DICOM file ({kind}) without pixels, or cut short")
            self.height, self.width = int(self._file.Rows), int(self._file.Columns)
            self.count = int(self._file.get("NumberOfFrames") or 1)
            self._photometric = str(self._file.PhotometricInterpretation)
            if not self._photometric.startswith((*_PHOTOMETRICS, _COLORS_BY_LUMA)):
                raise checked_image.unsupported(f"a DICOM file of {self._photometric}, neither levels nor colors")

    def read(self, number: int) -> np.ndarray:
        """Returns the numbers of a frame, [height, width, bands], as the file's rescaling makes them measurements.

        Raises:
            BadImageError: if they cannot be decoded.
        """
        _check_bytes(self.height * self.width * int(self._file.BitsAllocated) // 8)
        with _as_bad_image("pydicom"):
            found: np.ndarray = self._lib.pixels.pixel_array(self._file, index=number)
            if found.dtype.kind == "i":  # some decoders leave the sign at its bit
                unused = 8 * found.dtype.itemsize - int(self._file.BitsStored)
                found = found << unused >> unused
            rescaled = self._rescale(found, number)
            if self._photometric == _INVERTED:
                if rescaled is not found:
                    detail = f"a DICOM file of {_INVERTED} whose numbers are rescaled: is it a picture or measured?"
                    raise checked_image.unsupported(detail)
                bits = int(self._file.BitsStored)
                # The lowest number is white: of n bits, the complement of unsigned and of signed numbers.
                rescaled = ~found if found.dtype.kind == "i" else found.dtype.type((1 << bits) - 1) - found
            return rescaled if rescaled.ndim == 3 else rescaled[:, :, None]

    def _rescale(self, found: np.ndarray, number: int) -> np.ndarray:
        if "ModalityLUTSequence" in self._file:
            looked_up: np.ndarray = self._lib.pixels.apply_modality_lut(found, self._file)
            return looked_up
        for place in (self._file, *self._groups(number)):
            if "RescaleSlope" in place:
                return _scale(found, float(place.RescaleSlope), float(place.RescaleIntercept))
        return found

    def _groups(self, number: int) -> Iterator[Any]:
        """Yields what an enhanced multi-frame file says of the rescaling of a frame, or of all."""
        for name, item in (("PerFrameFunctionalGroupsSequence", number), ("SharedFunctionalGroupsSequence", 0)):
            if groups := self._file.get(name):
                yield from groups[item].get("PixelValueTransformationSequence") or ()


class NiftiSlices:
    """The slices of the volumes of a NIfTI file, by nibabel: all of the first volume, all of the second one.

    Attributes:
        count: of the slices of all volumes.
        height: pixels of each.
        width: the same.
    """

    def __init__(self, data: bytes, plane: str) -> None:
        with errors.imports_for(_USER, "medical"):
            import nibabel
        self._lib: Any = nibabel
        with _as_bad_image("nibabel"):
            if data[:2] == b"\x1f\x8b":
                data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(number_reader.MAX_BYTES + 1)
            _check_bytes(len(data))
            is_second = data[:1] == b"\x1c" or data[3:4] == b"\x1c"
            kind = nibabel.Nifti2Image if is_second else nibabel.Nifti1Image
            self._volume: Any = kind.from_bytes(data)
            self._shape = (*self._volume.shape, 1)[:4]
            if self._volume.ndim not in (3, 4) or self._volume.get_data_dtype().kind not in "uif":
                found = f"a NIfTI of {self._volume.shape} numbers of {self._volume.get_data_dtype()}"
                raise checked_image.unsupported(f"{found}, neither volume nor volumes over time")
            self._turns = self._find_turns(plane)
            sides = sorted(zip(self._turns[:, 0], self._shape))
            self.height, self.width, self._depth = (int(length) for _, length in sides)
            self.count = self._depth * self._shape[3]

    def _find_turns(self, plane: str) -> np.ndarray:
        """Returns for each axis of the file which one of rows, columns and slices it becomes, and whether reversed."""
        if plane == STORED:
            return np.array(((1, 1), (0, 1), (2, 1)))
        if not (self._volume.header["sform_code"] or self._volume.header["qform_code"]):
            raise checked_image.unsupported(
                "a NIfTI that does not say how its axes lie (sform_code and qform_code are 0)",
                "set image.plane: stored",
            )
        tools = self._lib.orientations
        turns: np.ndarray = tools.ornt_transform(
            tools.io_orientation(self._volume.affine), tools.axcodes2ornt(tuple(_PLANES[plane]))
        )
        return turns

    def read(self, number: int) -> np.ndarray:
        """Returns the numbers of a slice, [height, width, 1], with the scaling that the file says.

        Raises:
            BadImageError: if they cannot be decoded.
        """
        time, index = divmod(number, self._depth)
        with _as_bad_image("nibabel"):
            across = int(np.flatnonzero(self._turns[:, 0] == 2)[0])
            place = index if self._turns[across, 1] > 0 else self._depth - 1 - index
            part = [slice(None)] * 3
            part[across] = slice(place, place + 1)
            stored = self._volume.dataobj
            found = stored[(*part, time) if self._volume.ndim == 4 else tuple(part)]
            turned: np.ndarray = self._lib.orientations.apply_orientation(found, self._turns)
            return turned


def _scale(numbers: np.ndarray, slope: float, intercept: float) -> np.ndarray:
    return numbers if (slope, intercept) == (1, 0) else numbers.astype(np.float64) * slope + intercept


def _check_bytes(count: int) -> None:
    if count > number_reader.MAX_BYTES:
        detail = f"{count:,} bytes of numbers or more, expected up to {number_reader.MAX_BYTES:,}: cut it"
        raise checked_image.BadImageError(Reason.TOO_LARGE, detail)


@functools.cache
def _silence() -> None:
    """Stops pydicom from printing what it also raises, and its remarks on files that it reads."""
    logging.getLogger("pydicom").addHandler(logging.NullHandler())
    warnings.filterwarnings("ignore", module=r"pydicom\.")


@contextlib.contextmanager
def _as_bad_image(library: str) -> Iterator[None]:
    try:
        yield
    except checked_image.BadImageError:
        raise
    except _failures(library) as e:
        raise checked_image.BadImageError(Reason.UNDECODABLE, f"{library}: {e}") from e


def _failures(library: str) -> tuple[type[Exception], ...]:
    """Returns what a library raises on broken bytes; its own errors come from Exception alone."""
    if library == "pydicom":
        from pydicom import errors as own

        return (*pillow_decoder.FAILURES, own.InvalidDicomError)
    from nibabel import filebasedimages, spatialimages, wrapstruct

    own_errors = filebasedimages.ImageFileError, spatialimages.HeaderDataError, wrapstruct.WrapStructError
    return (*pillow_decoder.FAILURES, *own_errors)
