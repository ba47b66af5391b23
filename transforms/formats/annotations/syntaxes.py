"""The table of syntaxes. A new one is added here: its class, and its name in the config."""

from __future__ import annotations

from collections.abc import Mapping

from imagebeam.transforms.formats.annotations import csv_syntaxes, cvat, json_syntaxes, line_syntaxes
from imagebeam.transforms.formats.annotations.syntax import Syntax

SYNTAXES: Mapping[str, Syntax] = {
    "kitti": line_syntaxes.Kitti(),
    "dota": line_syntaxes.Dota(),
    "visdrone": line_syntaxes.VisDrone(),
    "wider_face": line_syntaxes.WiderFace(),
    "mot": line_syntaxes.Mot(),
    "open_images": csv_syntaxes.OpenImages(),
    "vott": csv_syntaxes.BoxCsv(),
    "run_lengths": csv_syntaxes.RunLengths(),
    "createml": json_syntaxes.CreateMl(),
    "via": json_syntaxes.Via(),
    "label_studio": json_syntaxes.LabelStudio(),
    "supervisely": json_syntaxes.Supervisely(),
    "segment_anything": json_syntaxes.SegmentAnything(),
    "cvat": cvat.Cvat(),
}
