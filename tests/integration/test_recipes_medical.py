"""docs/recipes/medical.md as it is printed: DICOM and NIfTI, read back exactly."""

from __future__ import annotations

import gzip
import io
import pathlib
import shlex

import numpy as np
import PIL.Image
import pytest

from imagebeam.pipelines.recognize import recognize_folder
from tests import command_line, datasets, docs_pages, medical_files, number_files

PAGE = "recipes/medical.md"
COUNT = 3


def run(number: int, output: str = "") -> dict[str, np.ndarray]:
    """Runs a command of the page in the working folder; returns the stored numbers by key."""
    text = "\n".join(docs_pages.blocks(PAGE, "sh")).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith("imagebeam convert ")]
    arguments = shlex.split(lines[number])[1:]
    place = arguments.index("--output") + 1
    arguments[place] = output or arguments[place]
    command_line.succeed(*arguments, "--workers", "1")
    command_line.succeed("verify", arguments[place], "--decode")
    found = {}
    for values in datasets.read(pathlib.Path(arguments[place])):
        data = values["image/encoded"]
        if values["image/format"] == b"png":
            image = np.asarray(PIL.Image.open(io.BytesIO(data)))
        else:
            image = np.frombuffer(data, values["image/dtype"].decode())
            image = image.reshape(values["image/height"], values["image/width"])
        found[values["image/key"].decode()] = image
    return found


@pytest.mark.parametrize("number", range(2))
def test_dicom_is_stored_in_hounsfield_units(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.chdir(tmp_path)
    frames = np.stack([number_files.make_numbers("uint16", 1, seed)[:, :, 0] >> 4 for seed in range(COUNT)])
    for kind, content in (("sick", frames[0]), ("well", frames)):
        (tmp_path / "ct" / kind).mkdir(parents=True)
        data = medical_files.to_dicom(content, 12, medical_files.RLE, RescaleSlope=1, RescaleIntercept=-1024)
        (tmp_path / "ct" / kind / "1.dcm").write_bytes(data)
    found = run(number)
    expected = {"sick/1.dcm": frames[0]} | {f"well/1.dcm#{n:04d}": frame for n, frame in enumerate(frames)}
    assert found.keys() == expected.keys()
    for key, image in found.items():
        units = expected[key] - 1024.0
        window = np.rint((units.clip(-160, 240) + 160) / 400 * 255)
        np.testing.assert_array_equal(image, units if number == 0 else window)
    assert recognize_folder.recognize("ct").sure is not None


def test_nifti_is_stored_slice_by_slice(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    volumes = {f"{number}.nii.gz": number_files.make_numbers("int16", 3, number, (9, 7)) for number in range(COUNT)}
    (tmp_path / "scans" / "sick").mkdir(parents=True)
    for name, volume in volumes.items():
        (tmp_path / "scans" / "sick" / name).write_bytes(gzip.compress(medical_files.to_nifti(volume, "LPS", 0.5, -3)))
    found = run(2)
    assert len(found) == COUNT * 3
    for key, image in found.items():
        name, _, index = key.removeprefix("sick/").partition("#")
        np.testing.assert_array_equal(image, volumes[name][:, :, int(index)].T * 0.5 - 3)
    assert docs_pages.run_snippet(docs_pages.blocks(PAGE, "python")[0])["slices"].shape == (2, 64, 64, 1)
    run(2, "again")
    written = [sorted(each.read_bytes() for each in (tmp_path / name).glob("train-*")) for name in ("slices", "again")]
    assert written[0] == written[1]
