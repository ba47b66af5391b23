"""Images that tables, paths or lists describe, and their conversion by a preset."""

from __future__ import annotations

import pathlib

from imagebeam.pipelines import convert
from imagebeam.pipelines.config import model as config_lib
from tests import image_sets


def put(folder: pathlib.Path, *names: str) -> None:
    """Writes an image under each name below `folder`."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(image_sets.make_image(sum(name.encode())))


def convert_preset(preset: str, source: pathlib.Path, output: pathlib.Path, *overrides: str) -> convert.ConvertResult:
    """Converts `source` with a preset in this process."""
    config = config_lib.load_config(preset, [f"source.uri={source}", f"output.uri={output}", *overrides])
    return convert.convert(config, workers=1)
