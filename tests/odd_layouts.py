"""Folders in the layouts of published data sets that are easily taken for something else.

Each has the preset that reads it right, or None where `plan` must ask: a wrong guess is worse than a question.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests import detection_sets
from tests.folder_shapes import IMAGE, Tree, files, images, parquet, table

_N = range(20)
_BOX = "0 0.5 0.5 0.2 0.2\n"
_XML = detection_sets.voc_xml([detection_sets.Box("cat", 1, 1, 5, 5)])
_OBJECT = {"category_id": 1, "bbox": [1, 1, 5, 5], "area": 25, "iscrowd": 0}
_KITTI = "Car 0.00 0 1.55 1.24 1.78 5.31 4.77 1.57 1.73 4.15 1.00 1.75 13.22 1.62\n"


def files_of(pattern: str, content: str, numbers: Iterable[int] = range(4)) -> dict[str, str | bytes]:
    """Returns text files whose paths and contents are the patterns with each number in place of `#`."""
    return {pattern.replace("#", str(n)): content.replace("#", str(n)) for n in numbers}


def rows(header: str, row: str, *values: Sequence[object], numbers: Iterable[int] = _N) -> str:
    """Returns a table with `row` for each number: `{n}` is the number, `{0}` the value of the first sequence."""
    return table(header, (row.format(*(each[n % len(each)] for each in values), n=n) for n in numbers))


def coco(name: str = "{n}.jpg", category: Mapping[str, Any] | None = None, **fields: object) -> str:
    return json.dumps(
        {
            "images": [{"id": n, "file_name": name.format(n=n), "width": 24, "height": 16} for n in range(4)],
            "annotations": [{"id": n, "image_id": n, **_OBJECT, **fields} for n in range(4)],
            "categories": [category or {"id": 1, "name": "person"}],
        }
    )


def _json(value: object) -> str:
    return json.dumps(value)


_REGION = {"shape_attributes": {"name": "rect", "x": 1, "y": 1, "width": 5, "height": 5}, "region_attributes": {}}
VIA = _json({f"{n}.jpg9": {"filename": f"{n}.jpg", "size": 9, "regions": [_REGION]} for n in range(4)})
_XY = 'label="cat" xtl="1" ytl="1" xbr="5" ybr="5"'
CVAT = "".join(f'<image id="{n}" name="{n}.jpg" width="24" height="16"><box {_XY}/></image>' for n in range(4))
_POINTS = _json({"exterior": [[1, 1], [5, 5]], "interior": []})
SUPERVISELY = f'{{"objects": [{{"classTitle": "cat", "geometryType": "rectangle", "points": {_POINTS}}}]}}'
_SEGMENT = '{"image": {"file_name": "sa_#.jpg"}, "annotations": [{"bbox": [1, 1, 5, 5], "segmentation": null}]}'
_CENTER = {"x": 5, "y": 5, "width": 4, "height": 4}
_WIDER = "".join(f"0--Parade/0_Parade_{n}.jpg\n1\n1 1 4 4 0 0 0 0 0 0\n" for n in range(4))
_CREATEML = _json([{"image": f"{n}.jpg", "annotations": [{"label": "cat", "coordinates": _CENTER}]} for n in range(4)])
_MMOCR = _json({"metainfo": {}, "data_list": [{"img_path": f"imgs/{n}a.jpg", "instances": []} for n in _N]})

_ADE = (".jpg", "_seg.png", "_parts_1.png")

LAYOUTS: Mapping[str, tuple[str | None, Tree]] = {
    # annotations
    "yolo-deeper": ("yolo", images("images/#.jpg") | files_of("labels/yolo/#.txt", _BOX)),
    "darknet": (
        "yolo",
        images("img/cat_#.jpg", "img/dog_#.jpg")
        | files_of("img/cat_#.txt", _BOX)
        | files_of("img/dog_#.txt", _BOX)
        | {"obj.data": "classes = 1\nnames = obj.names\n", "obj.names": "cat\n"},
    ),
    "keypoints-of-any-name": (
        "coco_keypoints",
        images("images/#.jpg") | {"annotations/wflw_train.json": coco(keypoints=[1, 1, 2] * 5, num_keypoints=5)},
    ),
    "keypoints-with-names": (
        "coco_keypoints",
        images("images/#.jpg")
        | {"annotations/train.json": coco("{n}.jpg", {"id": 1, "name": "a", "keypoints": ["x"]}, keypoints=[1, 1, 2])},
    ),
    "voc-of-two-sets": (
        None,
        images("A/JPEGImages/x_#.jpg", "B/JPEGImages/y_#.jpg")
        | files_of("A/Annotations/x_#.xml", _XML)
        | files_of("B/Annotations/y_#.xml", _XML),
    ),
    "voc-of-two-sets-with-lists": (
        None,
        images("A/JPEGImages/x_#.jpg", "B/JPEGImages/y_#.jpg")
        | files_of("A/Annotations/x_#.xml", _XML)
        | files_of("B/Annotations/y_#.xml", _XML)
        | {"A/ImageSets/Main/train.txt": "x_0\n", "B/ImageSets/Main/train.txt": "y_0\n"},
    ),
    "kitti-boxes": (
        "annotations",
        images("training/image_2/00#.png", "testing/image_2/00#.png")
        | files_of("training/label_2/00#.txt", _KITTI)
        | files_of("testing/calib/00#.txt", "P0: 1 2\n"),
    ),
    "kitti-in-labels": ("annotations", images("images/00#.png") | files_of("labels/00#.txt", _KITTI)),
    "words-in-labels": (None, images("images/#.jpg") | files_of("labels/#.txt", "a cat on a mat\n")),
    "kitti-of-two-cameras": (
        None,
        images("training/image_2/00#.png", "training/image_3/00#.png") | files_of("training/label_2/00#.txt", _KITTI),
    ),
    "kitti-and-other-sidecars": (
        None,
        images("training/image_2/00#.png", numbers=range(20)) | files_of("training/label_2/00#.txt", _KITTI),
    ),
    "nwpu-vhr-10": (
        None,
        images("positive image set/00#.jpg", "negative image set/00#.jpg")
        | files_of("ground truth/00#.txt", "(563,478),(630,573),1\n"),
    ),
    "wider-face": (
        "annotations",
        images("WIDER_train/images/0--Parade/0_Parade_#.jpg", "WIDER_test/images/1--Hand/1_Hand_#.jpg")
        | {"wider_face_split/wider_face_train_bbx_gt.txt": _WIDER},
    ),
    "dota": (
        "annotations",
        images("images/P00#.png") | files_of("labelTxt/P00#.txt", "gsd:0.1\n1.0 1.0 5.0 1.0 5.0 5.0 1.0 5.0 plane 0\n"),
    ),
    "mot": ("annotations", images("MOT17-02/img1/00000#.jpg") | {"MOT17-02/gt/gt.txt": "1,1,912,484,97,109,0,7,1\n"}),
    "vott": (
        "annotations",
        images("#.jpg")
        | {"a-export.csv": rows("image,xmin,ymin,xmax,ymax,label", "{n}.jpg,1.5,2,9,9,cat", numbers=range(4))},
    ),
    "createml": ("annotations", images("train/#.jpg") | {"train/_annotations.createml.json": _CREATEML}),
    "createml-of-other-images": (None, images("train/a#.jpg") | {"train/_annotations.createml.json": _CREATEML}),
    "mmocr": (None, images("imgs/#a.jpg", numbers=_N) | {"instances_training.json": _MMOCR}),
    "via": (
        "annotations",
        images("train/#.jpg", "val/#.jpg") | {f"{split}/via_region_data.json": VIA for split in ("train", "val")},
    ),
    "via-beside-cvat": (
        None,
        images("#.jpg") | {"via.json": VIA, "annotations.xml": f"<annotations>{CVAT}</annotations>"},
    ),
    "via-of-half-the-images": (None, images("train/#.jpg", "val/#.jpg") | {"train/via_region_data.json": VIA}),
    "cvat": ("annotations", images("images/#.jpg") | {"annotations.xml": f"<annotations>{CVAT}</annotations>"}),
    "supervisely": ("annotations", images("ds0/img/a#.jpg") | files_of("ds0/ann/a#.jpg.json", SUPERVISELY)),
    "supervisely-without-objects": (
        None,
        images("ds0/img/a#.jpg") | files_of("ds0/ann/a#.jpg.json", '{"objects": []}'),
    ),
    "segment-anything": ("annotations", images("sa_#.jpg") | files_of("sa_#.json", _SEGMENT)),
    "one-json-per-image": (None, images("images/#a.jpg") | files_of("labels/#a.json", '{"frames": []}')),
    "bdd100k": (
        None,
        images("images/100k/train/#a.jpg")
        | {"labels/bdd_train.json": _json([{"name": f"{n}a.jpg", "labels": []} for n in range(4)])},
    ),
    "run-lengths": (
        "annotations",
        images("train_images/#a.jpg", numbers=_N)
        | {"train.csv": rows("ImageId,ClassId,EncodedPixels", "{n}a.jpg,{0},1 3 10 5", (1, 2, 3, 4))},
    ),
    "open-images-of-fiftyone": (
        "annotations",
        images("train/data/#ab.jpg", "validation/data/#cd.jpg")
        | {
            f"{split}/labels/detections.csv": rows(
                "ImageID,LabelName,XMin,XMax,YMin,YMax", "{n}" + f"{name},/m/01,0.1,0.5,0.2,0.6", numbers=range(4)
            )
            for split, name in (("train", "ab"), ("validation", "cd"))
        },
    ),
    "boxes-of-open-images": (
        "annotations",
        images("images/#ab.jpg", numbers=_N)
        | {
            "boxes.csv": rows("ImageID,LabelName,XMin,XMax,YMin,YMax", "{n}ab,/m/01,0.1,0.5,0.2,0.6"),
            "ids.csv": rows("ImageID,Subset,OriginalURL,Title", "{n}ab,train,https://x/{n}.jpg,T{0}", (1, 2, 3)),
        },
    ),
    # masks
    "masks-numbered-in-two-ways": (
        None,
        images(
            "leftImg8bit/train/aachen/a_#_leftImg8bit.png",
            *(f"gtFine/train/aachen/a_#_gtFine_{kind}.png" for kind in ("labelIds", "labelTrainIds", "color")),
        ),
    ),
    "masks-of-one-of-two-places": (None, images("{a,b}/rgb_png/#.png", "{a,b}/day/x.png", "a/mask_png/#.png")),
    "instances-alone": (None, images("training/image_2/0#_10.png", "training/instance/0#_10.png")),
    "mvtec": (
        None,
        images("b/train/good/#.png", "b/test/good/#.png", "b/test/broken/#.png", "b/ground_truth/broken/#_mask.png"),
    ),
    "mvtec-of-two-objects": (
        None,
        images(*(f"{b}/{x}/#.png" for b in ("b", "c") for x in ("train/good", "test/broken", "ground_truth/broken"))),
    ),
    "masks-of-one-class": (None, images("cls/cat/#.jpg", "cls/dog/#.jpg", "cls/masks/#.png")),
    # pairs
    "high-and-low-resolution": ("pairs", images("HR/#.png", "LR/#.png")),
    "a-and-b-in-splits": (None, images("A/train/#.jpg", "B/train/#.jpg", "A/val/#.jpg", "B/val/#.jpg")),
    "rooms-of-houses": (None, images("#_{bathroom,kitchen}.jpg") | {"HousesInfo.txt": "4 4 4053 85255 869500\n"}),
    "unpaired-domains-below-another-folder": (None, images("h2z/{train,test}{A,B}/#.jpg")),
    "unpaired-domains": (None, images("trainA/#.jpg", "trainB/#.jpg", "testA/#.jpg", "testB/#.jpg")),
    "input-and-target": ("pairs", images(*(f"{s}/{d}/#.png" for s in ("train", "test") for d in ("input", "target")))),
    "pairs-of-mixed-formats": (None, images("input/#.png", "target/#.png") | images("input/9.jpg", "target/9.jpg")),
    "pairs-in-folders-with-marks": (
        "pairs",
        images(*(f"{s}/{d}/#.PNG" for s in ("train (1)", "test [2]") for d in ("LR", "HR"))),
    ),
    "noise-levels": ("pairs", images("original_png/000#.png", "noisy15/000#.png", "noisy25/000#.png")),
    "pairs-by-endings": (None, images("Canon_bag_#_mean.JPEG", "Canon_bag_#_real.JPEG")),
    "changes": (None, images(*(f"{s}/{d}/{s}_#.png" for s in ("train", "val") for d in ("A", "B", "label")))),
    "depth": ("pairs", images("train/rgb/#.png", "train/depth/#.png")),
    "stereo": (None, images("left/#.png", "right/#.png")),
    "before-and-after": (None, images("pre/x_#_pre.png", "post/x_#_post.png")),
    "thumbnails": (None, images("full/#.jpg", "thumbnails/#.jpg")),
    # texts beside images
    "captions-in-txt": ("sidecars", images("10_cat/#.jpg") | files_of("10_cat/#.txt", "a cat, sitting")),
    "lines-of-books": (None, images("book1/l_#.png", "book2/l_#.png") | files_of("book1/l_#.gt.txt", "some text")),
    "receipts": (None, images("img/X0#.jpg") | files_of("box/X0#.txt", "7,2,3,TAN\n") | files_of("key/X0#.json", "{}")),
    "number-plates": (None, images("us/car#.jpg", "br/car#.jpg") | files_of("us/car#.txt", "car#.jpg\t1\t2\tABC\n")),
    # tables
    "ham10000": (
        "kaggle",
        images("HAM_part_1/ISIC_#.jpg", numbers=range(10))
        | images("HAM_part_2/ISIC_#.jpg", numbers=range(10, 20))
        | {"HAM_metadata.csv": rows("lesion_id,image_id,dx,age", "H{n},ISIC_{n},{0},80", ("nv", "mel", "bkl"))},
    ),
    "celeba": (
        None,
        images("img/0#.jpg", numbers=_N)
        | {
            "identity.txt": rows("00.jpg 0", "0{n}.jpg {0}", (1, 2, 3), numbers=range(1, 20)),
            "partition.txt": rows("00.jpg 0", "0{n}.jpg {0}", (0, 1, 2), numbers=range(1, 20)),
        },
    ),
    "titles": (
        None,
        images("images/#ab.jpg", numbers=_N) | {"ids.csv": rows("ImageID,Author,Title", "{n}ab,m{0},T{0}", (1, 2, 3))},
    ),
    "users-and-hashes": (
        None,
        images("i/#a.jpg", numbers=_N) | {"d.csv": rows("image,sha,user", "{n}a.jpg,{0:032x},u{0}", (1, 2, 3))},
    ),
    "coordinates": (
        None,
        images("i/#a.jpg", numbers=_N) | {"d.csv": rows("image,x,y,z", "{n}a.jpg,{n}.5,{n}.25,{n}.75")},
    ),
    "label-equal-at-first": (
        "kaggle",
        images("i/#a.jpg", numbers=range(60))
        | {
            "d.csv": rows(
                "image,label,quality", "{n}a.jpg,{0},{1}", ["cat"] * 50 + ["dog"] * 10, (1, 2, 3), numbers=range(60)
            )
        },
    ),
    "table-of-some-classes": (
        None,
        images("cat/#a.jpg", "dog/1#a.jpg") | {"m.csv": rows("file,age", "cat/{n}a.jpg,{n}", numbers=range(4))},
    ),
    "chinese": (
        None,
        images("i/#a.jpg", numbers=_N) | {"d.csv": rows("文件,标签", "{n}a.jpg,{0}", ("猫", "狗")).encode("gb18030")},
    ),
    "one-label-without-a-header": (
        None,
        images("img/#a.jpg") | {"img/index.txt": "".join(f"{n}a.jpg 3\n" for n in range(4))},
    ),
    "flags-of-classes": (
        "multilabel",
        images("train/#.jpg")
        | {"train/_classes.csv": table("filename, cat, dog, owl", (f"{n}.jpg, {n % 2}, 1, 0" for n in range(4)))},
    ),
    "labels-in-a-workbook": (None, images("cat/#.jpg", "dog/#.jpg") | {"labels.xlsx": b"PK\x03\x04"}),
    "images-in-lists": (
        "parquet",
        {"d/train-0.parquet": parquet({"images": [[{"bytes": b"x", "path": None}] * 2] * 4})},
    ),
    # folders
    "folds": (None, images(*(f"fold{k}/{c}/{k}{c}#.jpg" for k in range(3) for c in ("a", "b")))),
    "patients-and-findings": (None, images(*(f"P{p}/{c}/{p}{c}#.png" for p in range(3) for c in ("benign", "sick")))),
    "unlabelled-beside-labelled": (None, images("unlabeled/#.jpg", "labeled/cat/#.jpg", "labeled/dog/#.jpg")),
    "years": (None, images("2019/#.jpg", "2020/#.jpg")),
    "cameras": (None, images("cam0/0#.png", "cam1/0#.png")),
    "identities": (None, images("train/0002_c1_#.jpg", "test/0003_c1_#.jpg", "query/0003_c2_#.jpg")),
    "names-of-two-lines": ("image_folder", {"cat/a\nb.jpg": IMAGE, "cat/c.jpg": IMAGE, "dog/d.jpg": IMAGE}),
    "species-in-folders": (
        "kaggle",
        images("p/#a.jpg", "q/#a.jpg")
        | {
            "m.csv": "path,species\n"
            + "".join(f"{p}/{n}a.jpg,{'owl' if n % 2 else 'crow'}\n" for p in "pq" for n in range(4))
        },
    ),
    "results-beside-inputs": (None, images("gray/#a.png", "gray_results/#a_out.png", "color/#b.png")),
    "sets-of-a-benchmark": (None, images("set5/#a.png", "set12/#b.png", "real_faces/#c.png")),
    "pairs-and-a-table": (
        None,
        images("input/#a.png", "target/#a.png")
        | {"l.csv": rows("file,label", "{n}a.png,{0}", ("p", "q"), numbers=range(4))},
    ),
    "mattes": (None, images("alpha/GT0#.jpg", "fg/GT0#.jpg", "merged/GT0#.jpg", "trimap/GT0#.png", numbers=(5,))),
    "transcripts": (None, images("train/1#.bin.png") | files_of("train/1#.gt.txt", "some text")),
    "letters-in-two-cases": (None, images("A/#.jpg", "a/#.jpg")),
    "augmented": (
        "image_folder",
        images(*(f"{c}/{k}/{k}#.jpg" for c in ("cat", "dog") for k in ("original", "augmented"))),
    ),
    "land-use": ("image_folder", images("2750/Crop/Crop_#.jpg", "2750/Forest/Forest_#.jpg")),
    "sun397": (None, images("a/abbey/s#.jpg", "b/bar/s#.jpg", "c/church/indoor/s#.jpg", "c/church/outdoor/s#.jpg")),
    "bigearthnet": (None, images(*(f"S2A_{k}_1/S2A_{k}_1_{b}.png" for k in range(4) for b in ("B01", "B02")))),
    "places365": (
        None,
        images("val_large/Places_#.jpg", "data_large/a/airfield/#.jpg", "data_large/b/bar/#.jpg")
        | {"places365_val.txt": "".join(f"Places_{n}.jpg {n % 3}\n" for n in range(4))},
    ),
    "deepfashion": (
        None,
        images("img/{Tee,Skirt}/img_#.jpg")
        | {
            f"Anno/{name}.txt": f"8\nimage_name {columns}\n"
            + "".join(f"img/{kind}/img_{n}.jpg {values}\n" for kind in ("Tee", "Skirt") for n in range(4))
            for name, columns, values in (
                ("list_category_img", "category_label", "3"),
                ("list_bbox", "x_1 y_1 x_2 y_2", "1 1 5 5"),
            )
        },
    ),
    "sidd": (None, images(*(f"Data/{k}_001_S6/{k}_{e}_010.png" for k in range(4) for e in ("GT", "NOISY")))),
    "lol": (None, images("{our485,eval15}/{low,high}/#.png")),
    "reside": (None, images("ITS/clear/#0.png", "ITS/hazy/#0_{1_0.8,2_0.9}.png")),
    "sots": (None, images("indoor/gt/14#0.png", "indoor/hazy/14#0_1.png")),
    "middlebury": (
        None,
        images("{Adirondack,Jadeplant}/im{0,1}.png") | files_of("Adirondack/disp#.pfm", "Pf\n", range(2)),
    ),
    "sbu": (
        "segmentation",
        images("SBU/{SBUTrain4K,SBU-Test}/ShadowImages/lssd#.jpg", "SBU/{SBUTrain4K,SBU-Test}/ShadowMasks/lssd#.png"),
    ),
    "ade20k": (
        None,
        images(*(f"ADE/images/{k}/b/bedroom/ADE_{k}_0000#{e}" for k in ("training", "validation") for e in _ADE)),
    ),
    "davis": (
        None,
        images("DAVIS/JPEGImages/480p/{bear,camel,dog}/0000#.jpg", "DAVIS/Annotations/480p/{bear,camel,dog}/0000#.png")
        | {"DAVIS/ImageSets/2017/train.txt": "bear\ncamel\n", "DAVIS/ImageSets/2017/val.txt": "dog\n"},
    ),
    "ucf101": (
        None,
        images(*(f"{c}/v_{c}_g0{g}_c01/frame#.jpg" for c in ("Archery", "Biking") for g in (1, 2)))
        | {
            f"ucfTrainTestlist/{split}list01.txt": "".join(
                f"{c}/v_{c}_g0{g}_c01.avi {n}\n" for n, c in enumerate(("Archery", "Biking"), 1)
            )
            for g, split in enumerate(("train", "test"), 1)
        },
    ),
    "exdark": (
        None,
        images(*(f"ExDark/{c}/2015_{n}#.jpg" for n, c in enumerate(("Boat", "Cup"))))
        | {
            f"ExDark_Annno/{c}/2015_{n}{k}.jpg.txt": f"% bbGt version=3\n{c} 1 1 5 5 0 0 0 0 0 0 0\n"
            for n, c in enumerate(("Boat", "Cup"))
            for k in range(4)
        },
    ),
    "exdark-with-a-table": (
        None,
        images("Cup/2015_0#.jpg", "Boat/2015_1#.jpg")
        | files_of("anno/Cup/2015_0#.jpg.txt", "% bbGt version=3\nCup 1 1 5 5 0 0 0 0 0 0 0\n")
        | files_of("anno/Boat/2015_1#.jpg.txt", "% bbGt version=3\nBoat 1 1 5 5 0 0 0 0 0 0 0\n")
        | {"list.txt": rows("Name Class Light", "2015_{0}.jpg {1} 1", ("00", "01", "10", "11"), (1, 1, 2, 2))},
    ),
    "numbers-for-names-of-folders": (
        None,
        images("Cup/0#a.jpg", "Boat/1#a.jpg")
        | {"list.csv": rows("name,class", "0{n}a.jpg,1", numbers=range(4)) + "10a.jpg,2\n11a.jpg,2\n"},
    ),
    "partition-as-numbers": (
        None,
        images("i/#a.jpg", numbers=_N) | {"d.csv": rows("image,label,partition", "{n}a.jpg,c{0},{0}", (0, 1, 2))},
    ),
    "lists-of-splits": (
        None,
        images("images/0#.jpg", "images/1#.jpg", numbers=_N)
        | {f"{s}.txt": "".join(f"{k}{n}.jpg {n % 2}\n" for n in _N) for k, s in enumerate(("train", "val"))},
    ),
    "activitynet": (
        None,
        images("frames/v_{a1,b2,c3}/00000#.jpg") | {"a.json": _json({"database": {"a1": {}, "b2": {}, "c3": {}}})},
    ),
    "lasot": (
        None,
        images("cat/cat-{1,2}/img/0000#.jpg", "dog/dog-{1,2}/img/0000#.jpg")
        | files("1,1,5,5\n", "cat/cat-{1,2}/groundtruth.txt", "dog/dog-{1,2}/groundtruth.txt"),
    ),
    "got-10k": (None, images("train/T_{1,2}/0000#.jpg") | files("1,1,5,5\n", "train/T_{1,2}/groundtruth.txt")),
    "trackingnet": (None, images("T/frames/v{a,b,c}_0/#.jpg") | files("1,1,5,5\n", "T/anno/v{a,b,c}_0.txt")),
    "youtube-vos": (
        None,
        images("train/{JPEGImages,Annotations}/{0a1,0b2}/0000#.png") | {"train/m.json": _json({"0a1": {}, "0b2": {}})},
    ),
    "hpatches": (None, images("v_{adam,boat}/#.png") | files("1 0 0\n", "v_{adam,boat}/H_1_{2,3}")),
    "icdar": (None, images("{cat,dog}/img_#.jpg") | files_of("gt/gt_img_#.txt", "1,2,10,2,10,8,1,8,STOP\n")),
    "citypersons": (
        None,
        images("leftImg8bit/aachen/a_00000#_leftImg8bit.png")
        | images("leftImg8bit/ulm/u_00000#_leftImg8bit.png", numbers=range(4, 9))
        | files_of("gtBbox/aachen/a_00000#_gtBbox.json", '{"objects": []}'),
    ),
    "spacenet": (
        None,
        images("{AOI_2,AOI_3}/PAN_img#.png")
        | files_of("geojson/buildings_img#.geojson", '{"type": "FeatureCollection", "features": []}'),
    ),
    "crowdhuman": (
        None,
        images("day/27#,c0.jpg", "night/2#8,c1.jpg")
        | {"a.odgt": "".join(f'{{"ID": "27{n},c0", "gtboxes": []}}\n' for n in range(4))},
    ),
    "flir": (
        "coco",
        images("{train,val}/{thermal,rgb}/F_#.jpg")
        | {f"{split}/thermal_annotations.json": coco("thermal/F_{n}.jpg") for split in ("train", "val")},
    ),
    "inaturalist": (
        None,
        images("all/{Aves,Fungi}/#a.jpg")
        | {
            "train.json": _json(
                {
                    "images": [{"id": n, "file_name": f"all/Aves/{n}a.jpg"} for n in range(4)],
                    "annotations": [{"id": n, "image_id": n, "category_id": 1} for n in range(4)],
                    "categories": [{"id": 1, "name": "a"}],
                }
            )
        },
    ),
    "carpk": (
        None,
        images("Images/2016_NTU_0#.png") | {f"{s}.txt": f"2016_NTU_0{n}\n" for n, s in enumerate(("train", "test"))},
    ),
    "awa2": (
        None,
        images("J/{cat,dog,owl}/#.jpg") | {"classes.txt": "cat\ndog\nowl\n", "a.txt": "cat\ndog\n", "b.txt": "owl\n"},
    ),
    "lung-and-colon": (None, images("colon/{acb,benign}/#.jpg", "lung/{scc,normal}/#.jpg")),
    "first-letters-of-classes": (
        None,
        images("{training,validation}/{b/bar,s/street}/#a.jpg"),
    ),
    "parts-of-another-format": (
        None,
        images("cat/c_a#.jpg", "cat/c_a#_parts_{1,2}.png") | images("dog/d_b#.jpg", "dog/d_b#_parts_1.png", numbers=_N),
    ),
    "fruits-360": (
        "imagefolder",
        images("Training/{Apple,Kiwi}/#_100.jpg") | images("Test/{Apple,Kiwi}/#_100.jpg", numbers=range(50, 54)),
    ),
    "captions-as-objects": (
        None,
        images("i/a_#.jpg", numbers=_N)
        | {"d.json": _json([{"filename": f"a_{n}.jpg", "sentences": [{"raw": "a cat on a mat"}]} for n in _N])},
    ),
    "tusimple": (
        None,
        images("clips/60{10,20}/#.jpg")
        | {"labels.json": _json([{"raw_file": f"clips/{k}/3.jpg"} for k in (6010, 6020)])},
    ),
    "scenes-of-aligned-folders": (
        None,
        images(*(f"{s}/{s}_1/{k}/00#.png" for s in ("train", "test") for k in ("blur", "sharp"))),
    ),
    "combined-classes-with-a-bar": (
        None,
        images("i/#a.jpg", numbers=_N) | {"d.csv": rows("image,label", "{n}a.jpg,{0}", ("a|b", "c", "d"))},
    ),
    "combined-classes-with-a-space": (
        None,
        images("i/#a.jpg", numbers=_N)
        | {"d.csv": rows("image,tags", "{n}a.jpg,{0}", ("dry clear town", "clear town", "haze"))},
    ),
}
