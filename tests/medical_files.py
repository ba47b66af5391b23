"""DICOM and NIfTI files of any numbers, and what is stored of them, computed without the reader."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import imagecodecs
import nibabel
import numpy as np
import pydicom
import pydicom.encaps
import pydicom.uid

RLE = pydicom.uid.RLELossless
_CODECS: dict[str, tuple[Callable[..., bytes], dict[str, Any]]] = {
    pydicom.uid.JPEGLosslessSV1: (imagecodecs.ljpeg_encode, {}),
    pydicom.uid.JPEGLSLossless: (imagecodecs.jpegls_encode, {}),
    pydicom.uid.JPEG2000Lossless: (imagecodecs.jpeg2k_encode, {"codecformat": "j2k", "level": 0, "reversible": True}),
}
COMPRESSED = (RLE, *_CODECS)


def to_dicom(frames: np.ndarray, bits: int | None = None, compressed: str = "", **elements: Any) -> bytes:
    """Returns a DICOM file.

    Args:
        frames: [height, width], [frames, height, width], or of uint8 colors [height, width, 3].
        bits: of each number that are used; all of the type without it.
        compressed: the transfer syntax of the pixels; "" for none.
        elements: more of the file, by keyword.
    """
    is_color = frames.shape[-1] == 3
    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    file.SOPClassUID, file.SOPInstanceUID = pydicom.uid.CTImageStorage, "1.2.3"
    file.Rows, file.Columns = frames.shape[:2] if is_color else frames.shape[-2:]
    if frames.ndim == 3 and not is_color:
        file.NumberOfFrames = len(frames)
    file.SamplesPerPixel = 3 if is_color else 1
    if is_color:
        file.PlanarConfiguration = 0
    file.PhotometricInterpretation = "RGB" if is_color else "MONOCHROME2"
    file.BitsAllocated = 8 * frames.dtype.itemsize
    file.BitsStored = bits or file.BitsAllocated
    file.HighBit = file.BitsStored - 1
    file.PixelRepresentation = int(frames.dtype.kind == "i")
    file.PixelData = frames.astype(frames.dtype.newbyteorder("<")).tobytes()
    for name, value in elements.items():
        setattr(file, name, value)
    if compressed == RLE:
        file.compress(compressed)
    elif compressed:
        codec, more = _CODECS[compressed]
        packed = frames.astype(np.uint16) & ((1 << file.BitsStored) - 1) if file.BitsStored < 16 else frames
        packed = packed.astype(f"u{frames.dtype.itemsize}")
        each = packed if "NumberOfFrames" in file else [packed]
        file.PixelData = pydicom.encaps.encapsulate([codec(frame, **more) for frame in each])
        file.file_meta.TransferSyntaxUID = compressed
    buffer = io.BytesIO()
    file.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def rescaling(slope: float, intercept: float) -> pydicom.Dataset:
    """Returns the functional group of an enhanced file for the rescaling of one frame, or of all."""
    inner, outer = pydicom.Dataset(), pydicom.Dataset()
    inner.RescaleSlope, inner.RescaleIntercept = slope, intercept
    outer.PixelValueTransformationSequence = [inner]
    return outer


def to_nifti(volume: np.ndarray, axes: str | None, slope: float = 1, intercept: float = 0) -> bytes:
    """Returns a NIfTI-1 file.

    Args:
        volume: the numbers as they are in the file.
        axes: where the three axes lead to, such as "RAS"; None does not say so.
        slope: with `intercept` the scaling in the header.
        intercept: see `slope`.
    """
    affine = None if axes is None else np.diag((0.0, 0, 0, 1))
    for axis, letter in enumerate(axes or ()):
        affine["RASLPI".index(letter) % 3, axis] = 1 if letter in "RAS" else -1
    image = nibabel.Nifti1Image(volume, affine)
    data = bytearray(image.to_bytes())
    data[112:120] = np.array((slope, intercept), "<f4").tobytes()  # scl_slope, scl_inter
    return bytes(data)
