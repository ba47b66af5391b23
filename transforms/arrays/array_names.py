"""The ends of the names of files with arrays. Imports nothing, so that writer processes stay small."""

from __future__ import annotations

# CIFAR's Python version gives its files no extension.
PICKLED_NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "train", "test")
PICKLED = tuple(f"/{name}" for name in PICKLED_NAMES)
BINARY, NPY, NPZ, MATLAB, HDF5 = ".bin", ".npy", ".npz", ".mat", (".h5", ".hdf5")
IDX = tuple(f"idx{number}-ubyte{packed}" for number in (1, 3, 4) for packed in ("", ".gz"))
CSV = ".csv"  # pixels, by pixel_rows
ENDS = (NPY, NPZ, *HDF5, MATLAB, BINARY, *IDX, *PICKLED)
