from __future__ import annotations

import dataclasses
import itertools
import pathlib
from typing import Any, TypeAlias

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.pipelines import job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import recognize_folder
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.formats import voc
from imagebeam.transforms.formats.annotations import syntax
from imagebeam.transforms.images import checked_image, image_objects
from imagebeam.transforms.sources import annotated_files, input_places
from tests import case_tables, detection_sets, error_texts

Found: TypeAlias = tuple[tuple[input_places.Part, ...], str, str]


def find(root: pathlib.Path, **wanted: Any) -> Found:
    return voc.find(str(root), pydantic.TypeAdapter(voc.Voc).validate_python(wanted))


def parts_of(found: Found) -> list[tuple[str, str]]:
    return [(part.split, part.path) for part in found[0]]


_PARTS = "the elements part of objects are not stored"


def test_boxes_that_count_from_0_are_noted_and_xml_without_boxes_is_another_format(tmp_path: pathlib.Path) -> None:
    detection_sets.write_voc_folders(tmp_path, {"train": [1, 2, 3]})
    found = recognize_folder.recognize(str(tmp_path))
    assert found.sure is not None and (found.sure.preset, found.sure.notes) == ("voc", (_PARTS,))
    path = tmp_path / "train/2.xml"
    path.write_text(path.read_text().replace("</object>", "<bndbox><xmin>0</xmin></bndbox></object>"))
    found = recognize_folder.recognize(str(tmp_path))
    assert found.sure is not None and "source.voc.origin=0" in found.sure.notes[0]
    for path in tmp_path.glob("train/*.xml"):
        path.write_text(
            "<annotation><filename>1.jpg</filename><object><name>cat</name><polygon/></object></annotation>"
        )
    assert "voc" not in [each.preset for each in recognize_folder.recognize(str(tmp_path)).candidates]


def test_lists_are_splits(tmp_path: pathlib.Path) -> None:
    for lists, expected in [
        (["train", "val", "trainval"], ["train", "val"]),
        (["train", "val", "test"], ["train", "val", "test"]),
        (["trainval", "test"], ["trainval", "test"]),
        (["cat_train"], []),
    ]:
        folder = case_tables.new_folder(tmp_path)
        detection_sets.write_voc(folder, {name: [1] for name in lists})
        splits = [(name.replace("trainval", "train"), f"ImageSets/Main/{name}.txt") for name in expected]
        assert parts_of(find(folder)) == (splits or [("train", "JPEGImages")])
        assert find(folder)[1:] == ("JPEGImages", "Annotations")


def test_folders_are_splits_without_lists(tmp_path: pathlib.Path) -> None:
    for folders, expected, names in [
        (["train", "valid"], [("train", "train"), ("valid", "valid")], ("JPEGImages", "Annotations")),
        ([], [("train", "")], ("JPEGImages", "Annotations")),
        (["images", "annotations"], [("train", "images")], ("images", "annotations")),
    ]:
        root = case_tables.new_folder(tmp_path)
        for folder in folders:
            (root / folder).mkdir()
        found = find(root)
        assert (parts_of(found), found[1:]) == (expected, names)


def test_config_names_lists_and_folders(tmp_path: pathlib.Path) -> None:
    detection_sets.write_voc(tmp_path, {"day": [1]})
    (tmp_path / "more").mkdir()
    found = find(tmp_path, images={"train": ["ImageSets/Main/day.txt", "more"]})
    assert [tuple(part) for part in found[0]] == [
        ("train", "ImageSets/Main/day.txt", True),
        ("train", "more", False),
    ]
    with error_texts.raises("images-no-folder-or-list"):
        find(tmp_path, images={"train": "x"})


def test_folder_above_or_none_is_an_error(tmp_path: pathlib.Path) -> None:
    detection_sets.write_voc(tmp_path / "VOC2007", {"train": [1]})
    with error_texts.raises("input-holds-folder"):
        find(tmp_path)
    with error_texts.raises("input-not-folder"):
        find(tmp_path / "nowhere")


def open_voc(root: pathlib.Path, **voc: Any) -> annotated_files.AnnotatedFilesSource:
    fields = {"source": {"by": "voc", "uri": str(root), "voc": voc}, "output": {"uri": f"{root}-out"}}
    found = job.make_source(config_lib.parse_config(fields, "test"))
    assert isinstance(found, annotated_files.AnnotatedFilesSource)
    return found


def test_classes_are_collected_from_the_files_or_given(tmp_path: pathlib.Path) -> None:
    detection_sets.write_voc(tmp_path, {"train": range(8)})
    (tmp_path / "Annotations" / "000002.xml").write_text("<broken")
    assert open_voc(tmp_path).reader.classes.names == detection_sets.CLASSES
    (tmp_path / "names.txt").write_text("zebra\ncat\n")
    assert open_voc(tmp_path, classes="names.txt").reader.classes.as_json() == [["zebra", "cat"], None, 1]
    for file in (tmp_path / "Annotations").iterdir():
        file.write_text("<annotation/>")
    with error_texts.raises("annotations-no-class"):
        open_voc(tmp_path)
    with error_texts.raises("annotations-unreadable"):
        open_voc(tmp_path, images={"train": "ImageSets/Main/train.txt"}, annotation_folder="nowhere")


# --- XML files -------------------------------------------------------------------------------------------------------

CLASSES = image_objects.ClassNames(("cat", "dog"), base=1)
READER = syntax.RowReader(CLASSES, voc.Xml(), option="source.voc")
BOX = "<bndbox><xmin>1</xmin><ymin>6</ymin><xmax>20</xmax><ymax>15</ymax></bndbox>"
DOG = f"<object><name>dog</name>{BOX}</object>"
SIZE = "<size><width>40</width><height>20</height></size>"


def xml(*parts: str) -> bytes:
    return f"<annotation>{''.join(parts)}</annotation>".encode()


def test_edges_count_from_one_and_belong_to_the_box() -> None:
    found = READER.read(xml(SIZE, DOG))
    assert found.expected == (20, 40)
    assert dict(zip(READER.columns, found.values)) == {
        "image/object/bbox/xmin": (0.0,),
        "image/object/bbox/xmax": (0.5,),
        "image/object/bbox/ymin": (0.25,),
        "image/object/bbox/ymax": (0.75,),
        "image/object/class/label": (2,),
        "image/object/class/text": (b"dog",),
        "image/object/difficult": (0,),
        "image/object/truncated": (0,),
        "image/object/view": (b"Unspecified",),
    }
    from_zero = dataclasses.replace(READER, syntax=voc.Xml(0)).read(xml(SIZE, DOG))
    assert from_zero.values[0] == (0.025,)


def test_box_that_cvat_has_turned_becomes_the_one_around_it() -> None:
    for degrees, edges in [("90.0", (5 / 40, 15 / 40, 0, 1)), ("0.0", (0.0, 0.5, 0.25, 0.75))]:
        rotation = f"<attribute><name>rotation</name><value>{degrees}</value></attribute>"
        data = xml(SIZE, DOG.replace("</object>", f"<attributes>{rotation}</attributes></object>"))
        assert [value for values in READER.read(data).values[:4] for value in values] == pytest.approx(edges)
        is_turned = image_objects.NOTE_ON_TURNED in READER.syntax.unstored([data])
        assert is_turned == (degrees != "0.0")


def test_flags_pose_and_parts_of_objects() -> None:
    objects = [detection_sets.Box("cat", 0, 0, 40, 20), detection_sets.Box("dog", 4, 5, 6, 10)]
    found = READER.read(detection_sets.voc_xml(objects).encode())
    assert found.values[:4] == ((0.0, 0.1), (1.0, 0.15), (0.0, 0.25), (1.0, 0.5))  # the boxes of parts are none
    assert found.values[4:] == ((1, 2), (b"cat", b"dog"), (0, 1), (1, 0), (b"Left", b"Left"))


def test_spellings_of_one_object_are_equal() -> None:
    for data in [
        b"\xef\xbb\xbf" + xml(SIZE, DOG),  # byte-order-mark
        b'<?xml version="1.0" encoding="utf-8"?>\r\n' + xml(SIZE, DOG),  # declaration
        xml(SIZE, DOG).decode().encode("utf-16"),  # utf-16
        b'<?xml version="1.0" encoding="iso-8859-1"?>' + xml(SIZE, DOG, "<x>\xe9</x>"),  # latin-1
        xml(DOG.replace("dog", " &#100;og\n"), SIZE),  # character-reference
        xml(SIZE, DOG.replace("<xmin>1<", "<xmin>1.0<").replace("dog", "<![CDATA[dog]]>")),  # float
        xml(SIZE, "<!-- <object> -->", DOG),  # comment
    ]:
        found = READER.read(data)
        assert found.values[:2] == ((0.0,), (0.5,))
        assert found.values[5] == (b"dog",)
        assert voc.class_names(data) == {"dog"}


def test_bad_file_rejects_the_image() -> None:
    for data, detail in [
        (b"", "is not XML: no element found"),  # empty
        (b"\x89PNG", "is not XML"),  # not-xml
        (xml(SIZE, DOG)[:-4], "is not XML"),  # cut
        (b"<html/>", "begins with <html>, expected <annotation>"),  # other-root
        (xml(DOG), "<size>: height is None, expected a finite number"),  # no-size
        (xml(SIZE.replace("40", "0"), DOG), "<size>: the size is 0 x 20, expected pixels"),  # zero-size
        (xml(SIZE, SIZE), "states <width> twice"),  # two-sizes
        (xml(SIZE, "<object><name>dog</name></object>"), "object 1: xmin is None, expected a finite number"),  # no-box
        (xml(SIZE, f"<object>{BOX}</object>"), "object 1: it has no class"),  # no-name
        (xml(SIZE, DOG.replace(BOX, BOX * 2)), "states <xmin> twice in object 1"),  # two-boxes
        (xml(SIZE, DOG, DOG.replace(">20<", ">nan<")), "object 2: xmax is 'nan', expected a"),  # nan
        (xml(SIZE, DOG.replace(">20<", ">1e999<")), "xmax is '1e999'"),  # infinite
        (xml(SIZE, DOG.replace(">20<", ">0<")), "the box ends before it begins: 1 to 0"),
        (xml(SIZE, DOG.replace("<name>", "<difficult>2</difficult><name>")), "difficult is '2'"),  # flag
        (b'<?xml version="1.0" encoding="gbk"?>' + xml(SIZE), "save it as UTF-8"),  # encoding
        (b"<!DOCTYPE annotation>" + xml(SIZE), "has a document type"),  # document-type
    ]:
        with pytest.raises(checked_image.BadImageError) as found:
            READER.read(data)
        assert found.value.reason is Reason.BAD_VALUE
        assert detail in found.value.detail
        assert ("save it as UTF-8" in found.value.detail) == (detail == "save it as UTF-8")


def test_unknown_class_rejects_the_image() -> None:
    with pytest.raises(checked_image.BadImageError, match="object 1: the class 'cow' is none of") as found:
        READER.read(xml(SIZE, DOG.replace("dog", "cow")))
    assert found.value.reason is Reason.UNKNOWN_LABEL


LAUGHS = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 20))
ATTACKS = {
    "billion-laughs": f'<!DOCTYPE annotation [<!ENTITY e0 "ha">{LAUGHS}]><annotation>&e19;</annotation>',
    "quadratic": f'<!DOCTYPE annotation [<!ENTITY a "{"x" * 100_000}">]><annotation>{"&a;" * 10_000}</annotation>',
    "file": '<!DOCTYPE annotation [<!ENTITY f SYSTEM "file:///etc/passwd">]><annotation>&f;</annotation>',
    "external-dtd": '<!DOCTYPE annotation SYSTEM "http://127.0.0.1:9/x.dtd"><annotation/>',
    "parameter-entity": '<!DOCTYPE a [<!ENTITY % p SYSTEM "http://127.0.0.1:9/p"> %p;]><annotation/>',
    "undefined-entity": "<annotation>&lol;</annotation>",
    "depth": "<annotation>" + "<a>" * 1_000_000,
    "attributes": "<annotation " + " ".join(f'a{n}="x"' for n in range(100_000)),
    "too-long": "<annotation>" + " " * (16 << 20),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_a_reject_and_expands_nothing(name: str) -> None:
    with pytest.raises(checked_image.BadImageError):
        READER.read(ATTACKS[name].encode())
    assert voc.class_names(ATTACKS[name].encode()[:100_000]) == set()


def test_box_is_clipped_or_dropped_and_counted() -> None:
    for edges, values, dropped in [
        ((0, 0, 41, 21), ((0.0,), (1.0,), (0.0,), (1.0,)), {}),  # clipped
        ((40, 1, 40, 1), ((0.975,), (1.0,), (0.0,), (0.05,)), {}),  # one-pixel
        ((50, 1, 60, 5), ((), (), (), ()), {image_objects.OUTSIDE: 1}),  # outside
    ]:
        names = ("xmin", "ymin", "xmax", "ymax")
        box = "".join(f"<{name}>{edge}</{name}>" for name, edge in zip(names, edges))
        data = xml(SIZE, f"<object><name>dog</name><bndbox>{box}</bndbox></object>")
        found = READER.read(data)
        assert (found.values[:4], found.dropped) == (values, dropped)
        if edges[0] != 40:
            with pytest.raises(checked_image.BadImageError, match=r"source\.voc\.outside: clip would cut it"):
                dataclasses.replace(READER, rejects_outside=True).read(data)


def test_image_without_file_has_no_objects() -> None:
    assert READER.read(None).values == ((),) * 9
    assert READER.read(xml(SIZE)).values == ((),) * 9


_PIECES = (
    "<annotation> </annotation> <object> </object> <name> dog </name> &lt; <!-- <!DOCTYPE <![CDATA[ ]]> <part> 1e9 nan"
)
PIECES = st.sampled_from((SIZE, DOG, BOX, "\x00", *_PIECES.split()))


@given(st.one_of(st.binary(max_size=60), st.lists(PIECES, max_size=12).map("".join).map(str.encode)))
def test_any_bytes_give_valid_boxes_or_a_reject(data: bytes) -> None:
    names = voc.class_names(data)
    try:
        found = READER.read(data)
    except checked_image.BadImageError as e:
        assert e.reason in (Reason.BAD_VALUE, Reason.UNKNOWN_LABEL)
        return
    for xmin, xmax, ymin, ymax in zip(*found.values[:4]):
        assert 0 <= xmin < xmax <= 1
        assert 0 <= ymin < ymax <= 1
    assert {text.decode() for text in found.values[5]} <= names


@pytest.mark.parametrize("count", [0, 1, 3])
def test_class_names_are_those_of_the_objects(count: int) -> None:
    objects = list(itertools.islice(itertools.cycle([detection_sets.Box("cat", 0, 0, 2, 2)]), count))
    assert voc.class_names(detection_sets.voc_xml(objects).encode()) == ({"cat"} if count else set())
    assert voc.class_names(xml("<object><pose/><name>dog</name></object>")) == {"dog"}
