"""Small data sets of boxes and masks in the syntaxes of data sets and labeling tools, as these write them.

Each writer returns the objects of every image, by its path: what the records must hold.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.detection_sets import SIZE, Box, boxes, write_image

WIDTH, HEIGHT = SIZE
NUMBERS = range(8)  # images; 0 and 4 have no objects

Truth = Mapping[str, Sequence[Box]]  # by path of the image


class Set(NamedTuple):
    """A data set in one syntax."""

    syntax: str
    write: Callable[[pathlib.Path], Truth]
    dropped: Mapping[str, int] = {}  # objects that are left out, by kind
    skipped: Mapping[str, int] = {}  # other files, by kind
    settings: Sequence[str] = ()


def put(path: pathlib.Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def table(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _truth(root: pathlib.Path, path: str, numbers: Iterable[int] = NUMBERS, name: str = "") -> dict[str, list[Box]]:
    """Writes images, and returns their objects; `name` is the class of all of them."""
    found = {}
    for number in numbers:
        write_image(root / path.format(number), number)
        found[path.format(number)] = [each._replace(name=name or each.name) for each in boxes(number)]
    return found


def kitti(root: pathlib.Path) -> Truth:
    truth = _truth(root, "training/image_2/{:06d}.png")
    for number, objects in zip(NUMBERS, truth.values()):
        lines = [
            f"{each.name} 0.25 1 -1.57 {each.xmin:.2f} {each.ymin:.2f} {each.xmax:.2f} {each.ymax:.2f} "
            "1.57 1.73 4.15 1.00 1.75 13.22 1.62"
            for each in objects
        ]
        lines += ["DontCare -1 -1 -10 1.00 1.00 9.00 9.00 -1 -1 -1 -1000 -1000 -1000 -10"]
        put(root / f"training/label_2/{number:06d}.txt", "\n".join([*lines, ""]))
        put(root / f"training/calib/{number:06d}.txt", "P0: 7.0 0.0 6.0 0.0\n")
        write_image(root / f"testing/image_2/{number:06d}.png", number)
    return truth


def dota(root: pathlib.Path) -> Truth:
    """Writes upright rectangles as four corners, from any of them on."""
    truth: dict[str, list[Box]] = {}
    for split, numbers in (("train", range(5)), ("val", range(5, 8))):
        found = _truth(root, f"{split}/images/P{{:04d}}.png", numbers)
        for number, objects in zip(numbers, found.values()):
            lines = ["imagesource:GoogleEarth", "gsd:0.146343590398"]
            for index, each in enumerate(objects):
                xs, ys = (each.xmin, each.xmax, each.xmax, each.xmin), (each.ymin, each.ymin, each.ymax, each.ymax)
                points = [*zip(xs, ys)]
                points = points[index % 4 :] + points[: index % 4]
                lines.append(" ".join(f"{v:.1f}" for point in points for v in point) + f" {each.name} {index % 2}")
            put(root / f"{split}/labelTxt/P{number:04d}.txt", "\n".join([*lines, ""]))
        truth |= found
    return truth


def visdrone(root: pathlib.Path) -> Truth:
    truth: dict[str, list[Box]] = {}
    codes, meant = {"cat": 1, "dog": 8, "zebra": 11}, {"cat": "pedestrian", "dog": "awning-tricycle", "zebra": "others"}
    for split, numbers in (("train", range(5)), ("val", range(5, 8))):
        found = _truth(root, f"VisDrone2019-DET-{split}/images/{{:07d}}_d.jpg", numbers)
        for path, objects in found.items():
            rows = [[x.xmin, x.ymin, x.xmax - x.xmin, x.ymax - x.ymin, 1, codes[x.name], 0, 1] for x in objects]
            rows += [[1, 2, 5, 5, 0, 0, 0, 0], [2, 1, 6, 4, 0, 11, -1, -1]]
            text = "\n".join(",".join(map(str, row)) for row in rows)
            put(
                (root / path.replace("/images/", "/annotations/")).with_suffix(".txt"),
                f"{text},\n" if numbers[0] else text,
            )
            truth[path] = [each._replace(name=meant[each.name]) for each in objects]
    return truth


def wider_face(root: pathlib.Path) -> Truth:
    truth: dict[str, list[Box]] = {}
    for split, numbers in (("train", range(5)), ("val", range(5, 8))):
        found = _truth(root, f"WIDER_{split}/images/0--Parade/0_Parade_{{}}.jpg", numbers, "face")
        lines = []
        for path, objects in found.items():
            lines += [path.partition("/images/")[2], str(len(objects) + bool(objects))]
            lines += [f"{x.xmin} {x.ymin} {x.xmax - x.xmin} {x.ymax - x.ymin} 1 0 0 0 2 0 " for x in objects]
            lines += ["7 3 0 5 2 0 0 1 0 0 "] if objects else ["0 0 0 0 0 0 0 0 0 0 "]
        put(root / f"wider_face_split/wider_face_{split}_bbx_gt.txt", "\n".join([*lines, ""]))
        truth |= found
    write_image(root / "WIDER_train/images/1--Hand/1_Hand_9.jpg", 9)
    return truth


def mot(root: pathlib.Path) -> Truth:
    """Writes two sequences whose frames and pixels count from 1."""
    truth: dict[str, list[Box]] = {}
    names = {"cat": 1, "dog": 3, "zebra": 7}
    meant = {"cat": "pedestrian", "dog": "car", "zebra": "static person"}
    for sequence, numbers in (("MOT17-02", range(1, 5)), ("MOT17-04", range(5, 8))):
        rows = []
        for frame, number in enumerate(numbers, 1):
            path = f"train/{sequence}/img1/{frame:06d}.jpg"
            write_image(root / path, number)
            for track, each in enumerate(boxes(number), 1):
                size = each.xmax - each.xmin, each.ymax - each.ymin
                rows.append([frame, track, each.xmin + 1, each.ymin + 1, *size, 1, names[each.name], 0.5])
            truth[path] = [each._replace(name=meant[each.name]) for each in boxes(number)]
        rows.append([1, 99, 1, 1, 5, 5, 0, 8, 1])
        put(root / f"train/{sequence}/gt/gt.txt", table(sorted(rows, key=lambda row: row[1])))
        put(root / f"train/{sequence}/det/det.txt", table(row[:7] for row in rows))
        put(root / f"train/{sequence}/seqinfo.ini", "[Sequence]\n")
    return truth


def open_images(root: pathlib.Path) -> Truth:
    truth = _truth(root, "train/{:016x}.jpg")
    codes = {"cat": "/m/01yrx", "dog": "/m/0bt9lr", "zebra": "/m/0898b"}
    header = ["ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax", "IsOccluded", "IsGroupOf"]
    rows: list[Sequence[object]] = [header]
    for index in range(3):  # the rows of an image are apart from each other
        for path, objects in truth.items():
            for each in objects[index : index + 1]:
                flags = -1, int(each.name == "dog")
                rows.append([pathlib.Path(path).stem, "xclick", codes[each.name], 1, *each.shares, *flags])
    put(root / "oidv6-train-annotations-bbox.csv", table(rows))
    put(
        root / "class-descriptions-boxable.csv",
        table([*[[code, name] for name, code in codes.items()], ["/m/x", "cow"]]),
    )
    return {path: objects for path, objects in truth.items() if objects}


def vott(root: pathlib.Path) -> Truth:
    truth = _truth(root, "vott-csv-export/{}.jpg")
    rows: list[Sequence[object]] = [("image", "xmin", "ymin", "xmax", "ymax", "label")]
    for path, objects in truth.items():
        rows += [(path.rpartition("/")[2], x.xmin + 0.5, x.ymin, x.xmax + 0.25, x.ymax, x.name) for x in objects]
    put(root / "vott-csv-export/Cats-export.csv", table(rows))
    for number in (0, 4):
        (root / f"vott-csv-export/{number}.jpg").unlink()
    return {
        path: [x._replace(xmin=x.xmin + 0.5, xmax=x.xmax + 0.25) for x in objects]  # type: ignore[arg-type]
        for path, objects in truth.items()
        if objects
    }


def createml(root: pathlib.Path) -> Truth:
    truth: dict[str, list[Box]] = {}
    for split, numbers in (("train", range(5)), ("valid", range(5, 8))):
        found = _truth(root, f"{split}/{{}}.jpg", numbers)
        entries = []
        for path, objects in found.items():
            marks = [
                {
                    "label": x.name,
                    "coordinates": {
                        "x": (x.xmin + x.xmax) / 2,
                        "y": (x.ymin + x.ymax) / 2,
                        "width": x.xmax - x.xmin,
                        "height": x.ymax - x.ymin,
                    },
                }
                for x in objects
            ]
            entries.append({"image": path.rpartition("/")[2], "annotations": marks})
        put(root / split / "_annotations.createml.json", json.dumps(entries))
        truth |= found
    return truth


def _corners(each: Box) -> list[tuple[int, int]]:
    return [(each.xmin, each.ymin), (each.xmax, each.ymin), (each.xmax, each.ymax), (each.xmin, each.ymax)]


def _via_region(index: int, each: Box) -> dict[str, Any]:
    """Returns a rectangle or a polygon, by turns."""
    attributes: dict[str, Any] = {"kind": each.name if index % 3 else {each.name: True}}
    if index % 2:
        xs, ys = map(list, zip(*_corners(each)))
        return {
            "shape_attributes": {"name": "polygon", "all_points_x": xs, "all_points_y": ys},
            "region_attributes": attributes,
        }
    size = {"width": each.xmax - each.xmin, "height": each.ymax - each.ymin}
    return {
        "shape_attributes": {"name": "rect", "x": each.xmin, "y": each.ymin, **size},
        "region_attributes": attributes,
    }


_POINT = {"shape_attributes": {"name": "point", "cx": 3, "cy": 4}, "region_attributes": {"kind": "cat"}}


def via(form: str, root: pathlib.Path) -> Truth:
    """Writes annotations of the VGG Image Annotator: a `project`, `json` (regions as an object) or `csv`."""
    truth = _truth(root, "train/{}.jpg")
    entries: dict[str, Any] = {}
    columns = ("filename", "file_size", "region_count", "region_id", "region_shape_attributes", "region_attributes")
    rows: list[Sequence[object]] = [columns]
    for path, objects in truth.items():
        name = path.rpartition("/")[2]
        regions = [_via_region(index, each) for index, each in enumerate(objects)] + ([_POINT] if objects else [])
        shown: Any = regions if form == "project" else {str(n): each for n, each in enumerate(regions)}
        entries[f"{name}123"] = {"filename": name, "size": 123, "regions": shown, "file_attributes": {}}
        for index, each in enumerate(regions or [{"shape_attributes": {}, "region_attributes": {}}]):
            cells = (json.dumps(each[key]) for key in ("shape_attributes", "region_attributes"))
            rows.append([name, 123, len(regions), index, *cells])
    if form == "csv":
        put(root / "train/via_export_csv.csv", table(rows))
    else:
        project = {"_via_settings": {"ui": {}}, "_via_img_metadata": entries, "_via_attributes": {"region": {}}}
        put(root / "train/via_export.json", json.dumps(project if form == "project" else entries))
    return truth


def cvat(root: pathlib.Path) -> Truth:
    truth = _truth(root, "images/{}.jpg")
    images = []
    for number, (path, objects) in enumerate(truth.items()):
        shapes = []
        for index, x in enumerate(objects):
            if index % 2:
                points = ";".join(f"{a:.2f},{b:.2f}" for a, b in _corners(x))
                shapes.append(f'<polygon label="{x.name}" occluded="0" points="{points}" z_order="0"></polygon>')
            else:
                edges = f'xtl="{x.xmin}.00" ytl="{x.ymin}.00" xbr="{x.xmax}.00" ybr="{x.ymax}.00"'
                shapes.append(f'<box label="{x.name}" occluded="0" {edges}><attribute name="a">1</attribute></box>')
        shapes += ['<points label="cat" points="1.0,2.0"></points>', '<tag label="day"></tag>'] if objects else []
        name = path.rpartition("/")[2]
        images.append(f'<image id="{number}" name="{name}" width="{WIDTH}" height="{HEIGHT}">{"".join(shapes)}</image>')
    labels = "<meta><task><labels><label><name>cat</name></label></labels></task></meta>"
    body = "\n  ".join(["<version>1.1</version>", labels, *images])
    put(root / "annotations.xml", f'<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  {body}\n</annotations>\n')
    return truth


def label_studio(root: pathlib.Path) -> Truth:
    truth = _truth(root, "images/1f2e-{}.jpg")
    tasks = []
    for number, (path, objects) in enumerate(truth.items()):
        results = []
        for index, x in enumerate(objects):
            kind = ("rectanglelabels", "polygonlabels")[index % 2]
            value: dict[str, Any] = {kind: [x.name]}
            if index % 2:
                value["points"] = [[100 * a / WIDTH, 100 * b / HEIGHT] for a, b in _corners(x)]
            else:
                value |= {"x": 100 * x.xmin / WIDTH, "y": 100 * x.ymin / HEIGHT, "rotation": 0}
                value |= {"width": 100 * (x.xmax - x.xmin) / WIDTH, "height": 100 * (x.ymax - x.ymin) / HEIGHT}
            result = {"original_width": WIDTH, "original_height": HEIGHT, "type": kind, "value": value}
            if kind == "rectanglelabels" and number % 2:  # <Rectangle> and <Labels> give two results of one id
                del value[kind]
                named = {"type": "labels", "value": {**value, "labels": [x.name]}}
                results += [
                    each | {"id": f"{index}"} for each in ({"type": "textarea"}, result | {"type": "rectangle"}, named)
                ]
            else:
                results.append(result)
        results += [{"type": "choices", "value": {"choices": ["day"]}}]
        done = [{"id": number, "was_cancelled": False, "result": results}, {"was_cancelled": True, "result": []}]
        upload = (
            f"/data/upload/1/{path.rpartition('/')[2]}" if number % 2 else f"/data/local-files/?d=x%2F1f2e-{number}.jpg"
        )
        tasks.append({"id": number, "annotations": done, "data": {"image": upload, "title": "x"}})
    put(root / "project-1.json", json.dumps(tasks))
    return truth


def supervisely(root: pathlib.Path) -> Truth:
    truth: dict[str, list[Box]] = {}
    for folder, numbers in (("ds0", range(5)), ("ds1", range(5, 8))):
        found = _truth(root, f"{folder}/img/a{{}}.jpg", numbers)
        for path, objects in found.items():
            marks = []
            for index, x in enumerate(objects):
                points = _corners(x) if index % 2 else [(x.xmin, x.ymin), (x.xmax, x.ymax)]
                shape = {"geometryType": ("rectangle", "polygon")[index % 2]}
                marks.append({"classTitle": x.name, **shape, "points": {"exterior": points, "interior": []}})
            marks += [
                {"classTitle": "cat", "geometryType": "bitmap", "bitmap": {"data": "eJw=", "origin": [1, 1]}}
            ] * bool(objects)
            content = {"description": "", "tags": [], "size": {"height": HEIGHT, "width": WIDTH}, "objects": marks}
            put(root / f"{path.replace('/img/', '/ann/')}.json", json.dumps(content))
        truth |= found
    put(root / "meta.json", "{}")
    return truth


def runs_of(mask: np.ndarray) -> list[int]:
    """Returns starts, from 1, and lengths of the runs of ones, down the columns: by a look at each pixel."""
    runs: list[int] = []
    is_open = False
    for place, value in enumerate(mask.T.reshape(-1).tolist(), 1):
        if value and not is_open:
            runs += [place, 0]
        is_open = bool(value)
        if value:
            runs[-1] += 1
    return runs


def mask_of(each: Box) -> np.ndarray:
    """Returns the mask of a box without its lower right corner, uint8 [height, width]."""
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[each.ymin : each.ymax, each.xmin : each.xmax] = 1
    mask[each.ymax - 1, each.xmax - 1] = 0
    return mask


def segment_anything(root: pathlib.Path) -> Truth:
    truth = _truth(root, "sa_{}.jpg", name="object")
    for number, (path, objects) in enumerate(truth.items()):
        marks = []
        for x in objects:
            flat = mask_of(x).T.reshape(-1)
            changes = [0, *(np.flatnonzero(np.diff(flat)) + 1).tolist(), len(flat)]
            counts = np.diff(changes).tolist()
            counts = [0, *counts] if flat[0] else counts
            box = [x.xmin, x.ymin, x.xmax - x.xmin, x.ymax - x.ymin]
            marks.append({"bbox": box, "segmentation": {"size": [HEIGHT, WIDTH], "counts": counts}, "id": 1, "area": 1})
        image = {"image_id": number, "width": WIDTH, "height": HEIGHT, "file_name": path}
        put(root / f"sa_{number}.json", json.dumps({"image": image, "annotations": marks}))
    return truth


def severstal(root: pathlib.Path) -> Truth:
    """Writes masks of classes; images without a mask are in no row."""
    truth = _truth(root, "train_images/{:04x}a.jpg")
    classes = {"cat": "1", "dog": "3", "zebra": "4"}
    rows: list[Sequence[object]] = [("ImageId", "ClassId", "EncodedPixels")]
    for path, objects in truth.items():
        for x in objects:
            rows.append((path.rpartition("/")[2], classes[x.name], " ".join(map(str, runs_of(mask_of(x))))))
    put(root / "train.csv", table(rows))
    return {path: [x._replace(name=classes[x.name]) for x in objects] for path, objects in truth.items()}


def science_bowl(root: pathlib.Path) -> Truth:
    """Writes masks of images in folders of their own; an image without a mask has an empty cell."""
    truth = _truth(root, "stage1_train/{0:08x}/images/{0:08x}.png", name="object")
    rows: list[Sequence[object]] = [("ImageId", "EncodedPixels")]
    for path, objects in truth.items():
        name = pathlib.Path(path).stem
        rows += [(name, " ".join(map(str, runs_of(mask_of(x))))) for x in objects] or [(name, "")]
    put(root / "stage1_train_labels.csv", table(rows))
    return truth


_SHAPES = {"object_of_other_shape": 6}
SETS = {
    "kitti": Set("kitti", kitti, {"object_to_be_ignored": 8}, {"image_outside_splits": 8}),
    "dota": Set("dota", dota),
    "visdrone": Set("visdrone", visdrone, {"object_to_be_ignored": 16}),
    "wider_face": Set("wider_face", wider_face, {"object_to_be_ignored": 6}),
    "mot": Set("mot", mot, {"object_to_be_ignored": 2}),
    "open_images": Set("open_images", open_images, skipped={"not_in_annotations": 2}),
    "vott": Set("vott", vott),
    "createml": Set("createml", createml),
    "via-project": Set("via", functools.partial(via, "project"), _SHAPES),
    "via-json": Set("via", functools.partial(via, "json"), _SHAPES),
    "via-csv": Set("via", functools.partial(via, "csv"), _SHAPES),
    "cvat": Set("cvat", cvat, _SHAPES),
    "label_studio": Set("label_studio", label_studio),
    "supervisely": Set("supervisely", supervisely, _SHAPES),
    "segment_anything": Set("segment_anything", segment_anything, skipped={"annotation_file": 8}),
    "severstal": Set("run_lengths", severstal, settings=["source.annotations.unnamed=keep"]),
    "science_bowl": Set("run_lengths", science_bowl),
}
