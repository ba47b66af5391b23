"""Pascal VOC's format: images with an XML file of boxes for each.

Edges of boxes are pixels, counted from 1, and both are inside of the box: `xmin` 1 and `xmax` 10 are the ten leftmost
pixels of the image, so in a record the box goes from 0 to 10 / width.

Nothing but elements and text is accepted. A document type, which all entities and files from elsewhere need, is refused
before it is read.

Source: section 8 of the VOC2012 development kit, http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/
"""

from __future__ import annotations

import dataclasses
import itertools
import posixpath
import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import IO, Any, ClassVar, Literal
from xml.etree import ElementTree

from imagebeam import plural, storage
from imagebeam.transforms.formats import base_format, box_signs
from imagebeam.transforms.formats.annotations import syntax
from imagebeam.transforms.formats.annotations.syntax import Region, Row
from imagebeam.transforms.images import image_objects
from imagebeam.transforms.sources import annotated_files, folder_probe, image_source, input_places
from imagebeam.transforms.sources.folder_probe import Change, Finding, Folder


@dataclasses.dataclass(frozen=True)
class Voc(base_format.ObjectFormat):
    """Annotations of objects in Pascal VOC's XML, one file for each image."""

    ABOUT: ClassVar[str] = "images with an XML file of Pascal VOC for each"
    PRESETS: ClassVar[tuple[str, ...]] = ("voc",)

    images: base_format.PathsBySplit | None = None
    """Lists of images (`ImageSets/Main/train.txt`: a name on each line) or folders of images, below `source.uri`, by
    split. By default the lists train, val and test in `ImageSets/Main`, with trainval in place of a missing train;
    without lists the folders train, valid and test, or all images in one split, `train`."""
    image_folder: str = "JPEGImages"
    """Folder of the images that lists name."""
    annotation_folder: str = "Annotations"
    """Folder of the XML files: the last folder `image_folder` in the path of an image is replaced by it. An image in no
    such folder has its XML file beside it."""
    origin: base_format.ClassBase = 1
    """Number of the first pixel. 1: edges count from 1 and belong to the box, as Pascal VOC defines it, so `xmin` is
    stored as (xmin - 1) / width. 0: `xmin` is the distance from the left edge of the image, as some exports have it."""
    without_annotations: Literal["keep", "skip", "reject"] = "reject"
    """What to do with an image without an XML file: keep it as an image without objects, skip it, or reject it."""

    def gives(self) -> base_format.Gives:
        return base_format.Gives(
            splits=True, features=frozenset({"objects", "object flags"}), refuses=(base_format.no_frames("voc"),)
        )

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        parts, image_folder, annotation_folder = find(request.uri, self)
        xml, classes = Xml(self.origin), image_objects.ClassNames(())
        source = annotated_files.AnnotatedFilesSource(
            request.uri,
            parts,
            self._rule(image_folder, annotation_folder),
            syntax.RowReader(classes, xml, rejects_outside=self.outside == "reject", option="source.voc"),
            exclude=input_places.leave_out(request.output, request.uri),
            named_in=image_folder,
            option="source.voc",
            on_repeated_key="name each image in one list, and once in it (ImageSets/Main, or source.voc.images)",
        )
        return source.with_classes(self.classes, self.base, class_names)

    def _rule(self, image_folder: str, annotation_folder: str) -> annotated_files.PairRule:
        return annotated_files.PairRule(".xml", image_folder, annotation_folder, self.without_annotations)

    def reads(self, probe: folder_probe.FolderProbe, at: str) -> base_format.Reads:
        parts, images, annotations = find(probe.uri(at), self)
        return base_format.Reads.of_parts(parts, self._rule(images, annotations).files_of, (_OF_BOTH,), images)

    @classmethod
    def detect(cls, probe: folder_probe.FolderProbe, at: str) -> Iterator[Finding]:
        """Finds .xml files in Annotations beside JPEGImages, in any folder beside one of images, or beside images."""
        for found, holder in _find_candidates(probe, at):
            names = folder_probe.spread(holder.ending(".xml"), _NUM_HEADS)[:_NUM_HEADS]
            heads = [probe.head(holder.below(name)) for name in names]
            if any(map(_MARK.search, heads)):
                boxes = [box for head in heads for box in Xml(origin=0).boxes_in(head, {})]
                is_other = not any(each.tag == "object" for head in heads for each in _elements_of(head))
                is_other = is_other and any(map(_OBJECTS.search, heads))
                of_splits = Xml().doubt_on_splits(heads, folder_probe.split_meant(holder.path))
                judged = box_signs.judge(boxes, Xml.BOXES, "source.voc")
                is_from_0 = not judged.doubts and any(map(_EDGE_0.search, heads))
                notes = [*found.notes, *([_NOTE_FROM_0] if is_from_0 else []), *judged.notes]
                notes += filter(None, [Xml().unstored(heads)])
                doubts = (*found.doubts, *judged.doubts, *filter(None, [of_splits, _ELSEWHERE if is_other else ""]))
                yield dataclasses.replace(found, notes=tuple(notes), often=(_COUNTED_FROM_0,), doubts=doubts)
                return


_NUM_HEADS = 5  # .xml files that are looked into
_MARK = re.compile(rb"<(bndbox|size)>")  # in each file of VOC, and in no other one of the name
_OBJECTS = re.compile(rb"<object\b")
_ELSEWHERE = (
    "the .xml files have objects, but not directly in <annotation>, as those of Pascal VOC: is it another format?"
)
_EDGE_0 = re.compile(rb"<[xy]min>\s*0+(\.0*)?\s*<")
_NOTE_FROM_0 = (
    "boxes begin at 0, where Pascal VOC counts pixels from 1: if the tool counts from 0, set source.voc.origin=0, or "
    "all boxes are a pixel too far to the left and top"
)
_ANNOTATIONS, _IMAGES = ("Annotations", "annotations"), ("JPEGImages", "images", "Images")
_NUM_FOLDERS = 10  # in which annotations are looked for
_NUM_BELOW = 5  # folders beside those of splits in which annotations are looked for
_COUNTED_FROM_0 = Change("source.voc.origin", 0, "for tools whose boxes count pixels from 0")


def _find_candidates(probe: folder_probe.FolderProbe, at: str) -> Iterator[tuple[Finding, Folder]]:
    """Yields findings, the likely ones first, each with a folder of its .xml files."""
    yield from _find_usual(probe, at)
    root = probe.look(at)
    if (several := _find_several(probe, root)) is not None:
        yield several
    if (other := _find_xml_beside(probe, root)) is not None:
        (pictures, *rivals), holder, number = other
        doubts = (
            [f"{folder_probe.and_list(rivals)} has images of the same names: set source.voc.image_folder"]
            if rivals
            else []
        )
        evidence = f"{holder} holds an .xml file for {number:,} images of {pictures}"
        settings = {"source.voc.annotation_folder": holder, "source.voc.image_folder": pictures}
        yield Finding("voc", evidence, settings, doubts=tuple(doubts)), probe.look(root.below(holder))
    for name in root.folders[:_NUM_FOLDERS]:
        inner = probe.look(root.below(name))
        shared = {posixpath.splitext(each)[0] for each in inner.ending(".xml")} & inner.stems
        if len(shared) >= folder_probe.NEARLY_ALL * len(inner.images) > 0:
            evidence = f"{inner.path} holds an .xml file for {plural.count(len(shared), 'image')}"
            doubt = f"{inner.path} may be one of several data sets: give it as --input"
            yield Finding("voc", evidence, doubts=(doubt,)), inner


def _find_usual(probe: folder_probe.FolderProbe, at: str) -> Iterator[tuple[Finding, Folder]]:
    """Finds Annotations with .xml files beside JPEGImages, or x.xml beside x.jpg, there or in a folder for a split."""
    root = probe.look(at)
    images = next((name for name in _IMAGES if name in root.folders), "")
    for name in _ANNOTATIONS if images else ():
        found = folder_probe.find_below(probe, root.below(name), ".xml") if name in root.folders else None
        if found is not None:
            evidence = f"{images} is beside {name}, which holds .xml files ({found[1]:,})"
            settings, doubts = _voc_folders(probe, root, images, name, found[0])
            notes = (*_flat(probe, root.below(images), found[0]),)
            yield Finding("voc", evidence, settings, notes, doubts=doubts), found[0]
            return
    for folder in folder_probe.split_places(probe, at):
        prefix = folder_probe.prefix_of(folder, at)
        if (texts := folder.ending(".xml")) and (folder.images or folder.path != at):
            evidence = f"{prefix}{texts[0]} is beside images ({folder.count(len(texts), '.xml file')})"
            paired = probe.share_held([folder.below(f"{stem}.xml") for stem in folder.stems])
            doubts = () if paired >= folder_probe.NEARLY_ALL else (f"{paired:.0%} of the images beside them have one",)
            yield Finding("voc", evidence, doubts=doubts), folder
            return


def _flat(probe: folder_probe.FolderProbe, images: str, holder: Folder) -> Iterator[str]:
    """Yields what to do if .xml files are in one folder, and their images in several: images/cat/1.jpg and 1.xml."""
    names = probe.look(images).folders
    below = [probe.look(posixpath.join(images, name)) for name in names[:_NUM_BELOW]]
    stems = {posixpath.splitext(name)[0] for name in holder.ending(".xml")}
    is_flat = not probe.look(images).images and posixpath.basename(holder.path) not in names
    if is_flat and any(stems & each.stems for each in below):
        yield (
            f"the images are in folders of {images} ({folder_probe.name_some(names)}), and their .xml files directly "
            f"in {holder.path}: move each .xml file into a folder there with the name of the one of its image, or each "
            f"image into {images}"
        )


def _find_several(probe: folder_probe.FolderProbe, root: Folder) -> tuple[Finding, Folder] | None:
    """Returns the finding for several folders that hold Annotations and JPEGImages; None if they have lists of images.

    Lists name images of one folder. With them, each folder is a data set of its own. The two may also be called
    annotations and images, in all of the folders alike.
    """
    inner = [probe.look(root.below(name)) for name in root.folders[:_NUM_FOLDERS]]
    pairs = itertools.product(_IMAGES, _ANNOTATIONS)
    of_pairs = [(pair, [each for each in inner if {*pair} <= {*each.folders}]) for pair in pairs]
    (image_folder, annotation_folder), held = max(of_pairs, key=lambda each: len(each[1]))
    holders = [probe.look(each.below(annotation_folder)) for each in held]
    texts = sum(len(each.ending(".xml")) for each in holders)
    if (
        len(held) < 2
        or len(root.folders) > _NUM_FOLDERS
        or not texts
        or any("ImageSets" in each.folders for each in held)
    ):
        return None
    names = [posixpath.basename(each.path) for each in held]
    splits = folder_probe.splits_in(names)
    images: dict[str, list[str]] = {}
    for name in names:
        split = splits.get(name, "train")
        images.setdefault(split, []).append(f"{name}/{image_folder}")
    shown = folder_probe.and_list(names)
    evidence = f"{shown} each hold {image_folder} and {annotation_folder} ({texts:,} .xml files)"
    doubts = () if len(splits) == len(names) else (f"{shown} may be data sets of their own: give one as --input",)
    holder = next(each for each in holders if each.ending(".xml"))
    settings: dict[str, Any] = {"source.voc.images": images}
    if (image_folder, annotation_folder) != (Voc.image_folder, Voc.annotation_folder):
        settings |= {"source.voc.image_folder": image_folder, "source.voc.annotation_folder": annotation_folder}
    return Finding("voc", evidence, settings, doubts=doubts), holder


def _voc_folders(
    probe: folder_probe.FolderProbe, folder: Folder, images: str, annotations: str, holder: Folder
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the settings for .xml files in folders below the one of annotations, and a note if several hold some.

    Folders that the images are in, too, such as those of splits, need none.
    """
    inside = holder.path.removeprefix(folder.below(annotations)).strip("/")
    first = inside.partition("/")[0]
    if inside in ("", "xmls") or first in probe.look(folder.below(images)).folders:
        return {}, ()
    above = probe.look(folder.below(annotations))
    others = [name for name in folder_probe.likely_first(above, _NUM_BELOW) if name != first]
    held = [name for name in others if probe.look(above.below(name)).ending(".xml")]
    notes = (f"{folder_probe.name_some(held)} in {above.path} has .xml files, too, and is not read",) if held else ()
    return {"source.voc.annotation_folder": f"{annotations}/{inside}"}, notes


def _find_xml_beside(probe: folder_probe.FolderProbe, folder: folder_probe.Folder) -> tuple[list[str], str, int] | None:
    """Returns the folders of images, and one of .xml files with their names, and how many names they share."""
    inner = [(name, probe.look(folder.below(name))) for name in folder.folders[:_NUM_FOLDERS]]
    for texts, holder in inner:
        stems = {posixpath.splitext(name)[0] for name in holder.ending(".xml")}
        shared = {name: len(stems & other.stems) for name, other in inner} if stems and not holder.images else {}
        if fitting := [name for name, number in shared.items() if number >= folder_probe.NEARLY_ALL * len(stems)]:
            return fitting, texts, shared[fitting[0]]
    return None


# --- where the images are ---------------------------------------------------------------------------------------------

_LISTS = "ImageSets/Main"
_OF_BOTH = f"{_LISTS}/trainval.txt"  # says no more than train.txt and val.txt
_OTHER_IMAGES, _OTHER_ANNOTATIONS = ("images", "Images"), ("annotations", "Annotations")
_NESTED = "xmls"  # in the folder of annotations, beside masks, as in the Oxford pets


def find(root: str, wanted: Voc) -> tuple[tuple[input_places.Part, ...], str, str]:
    """Returns the parts of the data set in the folder `root`, and its folders of images and of annotations.

    Raises:
        ConfigError: if its images cannot be found.
    """
    input_places.require_folder(root, f"the one that holds {wanted.annotation_folder}")
    folders = input_places.names_in(root)
    images, annotations = _folder_names(folders, wanted)
    if wanted.annotation_folder == Voc.annotation_folder and annotations in folders:
        nested = f"{annotations}/{_NESTED}"
        annotations = nested if input_places.kind_of(storage.join(root, nested)) == storage.DIRECTORY else annotations
    if wanted.images is not None:
        return input_places.given_parts(root, wanted.images, "source.voc.images"), images, annotations
    if annotations.partition("/")[0] in folders:
        return tuple(_listed_parts(root, images)), images, annotations
    inner = next((name for name in folders if _is_voc(storage.join(root, name), wanted)), None)
    if inner is not None:
        raise input_places.give_inner(root, inner)
    return input_places.parts_of_splits(folders), images, annotations


def _folder_names(folders: list[str], wanted: Voc) -> tuple[str, str]:
    """Returns the names of the folders of images and annotations: others that are common if those are not there."""
    images, annotations = wanted.image_folder, wanted.annotation_folder
    if images == Voc.image_folder and images not in folders:
        images = next((name for name in _OTHER_IMAGES if name in folders), images)
    if annotations == Voc.annotation_folder and annotations not in folders:
        annotations = next((name for name in _OTHER_ANNOTATIONS if name in folders), annotations)
    return images, annotations


def _is_voc(folder: str, wanted: Voc) -> bool:
    return input_places.kind_of(storage.join(folder, wanted.annotation_folder)) == storage.DIRECTORY


def _listed_parts(root: str, images: str) -> Iterator[input_places.Part]:
    """Yields the lists of a data set, or its folder of images if it has none."""
    there = {
        name
        for name in ("train", "val", "trainval", "test")
        if input_places.kind_of(storage.join(root, f"{_LISTS}/{name}.txt")) == storage.FILE
    }
    chosen = {"train": "train", "val": "val", "test": "test"}
    if "train" not in there and "trainval" in there:
        chosen = {"train": "trainval", "test": "test"}
    found = [(split, name) for split, name in chosen.items() if name in there]
    yield from (input_places.Part(split, f"{_LISTS}/{name}.txt", is_list=True) for split, name in found)
    if not found:
        yield input_places.Part("train", images)


# --- XML files --------------------------------------------------------------------------------------------------------

_ROOT = "annotation"
_EDGES = ("xmin", "ymin", "xmax", "ymax")
_OF_OBJECT = ("name", "pose", "truncated", "difficult", "bndbox")
_FIELDS = (*_OF_OBJECT[:-1], *(f"bndbox/{edge}" for edge in _EDGES))
_OF_IMAGE = ("object", "size", "folder", "filename", "path", "source", "owner", "segmented")
_UNSPECIFIED = "Unspecified"  # the format's own word for an unknown pose
_NAMES = re.compile(rb"<object>\s*<name>([^<&]+)</name>")


class _Builder(ElementTree.TreeBuilder):
    """Collects the elements of a file without a document type."""

    def doctype(self, *_: object) -> None:
        raise syntax.OtherFormError("has a document type (<!DOCTYPE), which could define entities: remove it")


def parse(data: bytes) -> ElementTree.Element:
    """Returns the root of an annotation file.

    Raises:
        ValueError: if it is not XML of this format.
    """
    try:
        root = ElementTree.fromstring(data, ElementTree.XMLParser(target=_Builder()))
    except ElementTree.ParseError as e:
        raise ValueError(f"is not XML: {e}") from e
    except syntax.OtherFormError:
        raise
    except (LookupError, ValueError) as e:  # an encoding that the parser does not know
        raise ValueError(f"is not XML that can be read: {e}; save it as UTF-8") from e
    if root.tag != _ROOT:
        raise syntax.OtherFormError(f"begins with <{reprlib.repr(root.tag)[1:-1]}>, expected <{_ROOT}>")
    return root


def _texts(element: ElementTree.Element, paths: Sequence[str], where: str = "") -> dict[str, str]:
    """Returns the texts of the elements at paths, by the names of those that are there."""
    texts = {}
    for path in paths:
        found, name = element.findall(path), path.rpartition("/")[2]
        if len(found) > 1:
            raise ValueError(f"states <{name}> twice{where}")
        if found:
            texts[name] = (found[0].text or "").strip()
    return texts


def class_names(data: bytes) -> set[str]:
    """Returns the classes of the objects in an annotation file; none if it cannot be parsed.

    Files as common programs write them are searched, in a fifth of the time that it takes to parse them.
    """
    if not (b"<!" in data or b"&" in data or b"\0" in data or b"encoding" in data.lower()):
        found = _NAMES.findall(data)
        if len(found) == data.count(b"<object"):
            try:
                return {name.decode("utf-8").strip() for name in set(found)}
            except UnicodeDecodeError:
                return set()
    try:
        names = {each.findtext("name", "").strip() for each in parse(data).findall("object")}
    except ValueError:
        return set()
    return names - {""}


@dataclasses.dataclass(frozen=True)
class Xml(syntax.Syntax):
    """The files of Pascal VOC."""

    FOLDERS = (("", ""),)
    SIZED = True
    MORE = (syntax.DIFFICULT, "image/object/truncated", "image/object/view")

    origin: int = 1  # number of the first pixel; with 0, xmin and xmax are distances from the image's edge

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        root = parse(file.read())
        yield Row("", "", None, _size_of(root))
        for number, element in enumerate(root.findall("object"), 1):
            fields = _texts(element, _FIELDS, f" in object {number}") | _rotation_of(element)
            yield Row("", f"object {number}", fields.get("name") or syntax.UNKNOWN, fields)

    def unstored(self, heads: Iterable[bytes]) -> str:
        heads = [*heads]
        objects = [each for head in heads for each in _elements_of(head) if each.tag == "object"]
        of_boxes = [each for element in objects for each in element.iterfind("bndbox/*")]
        found = {
            "objects": [each.tag for element in objects for each in element if _says_more(each, _OF_OBJECT)],
            "boxes": [each.tag for each in of_boxes if _says_more(each, _EDGES)],
            "images": [name for head in heads for name, _ in self.fields_in(head)],
        }
        turned = [image_objects.NOTE_ON_TURNED] if any(map(_rotation_of, objects)) else []
        lines = [f"{', '.join(dict.fromkeys(names))} of {what}" for what, names in found.items() if names]
        return "; ".join([*([f"the elements {' and '.join(lines)} are not stored"] if lines else []), *turned])

    def fields_in(self, head: bytes) -> Iterator[tuple[str, str]]:
        for each in _elements_of(head):
            if _says_more(each, _OF_IMAGE):
                yield each.tag, "".join(each.itertext()).strip()

    def region(self, fields: Any, size: tuple[int, int]) -> Region:
        xmin, xmax, ymin, ymax = syntax.box_of_edges(*syntax.numbers(fields, *_EDGES))
        flags = (_flag(fields.get(flag), flag) for flag in ("difficult", "truncated"))
        view = image_objects.encode_text(fields.get("pose") or _UNSPECIFIED)
        box = (xmin - self.origin, xmax, ymin - self.origin, ymax)
        if image_objects.ROTATION in fields:
            box = image_objects.around_turned(box, *syntax.numbers(fields, image_objects.ROTATION))
        return Region(box, more=(*flags, view))


def _rotation_of(element: ElementTree.Element) -> dict[str, str]:
    """Returns the angle by which CVAT has turned the box of an object, in degrees; {} if it has not."""
    attributes = element.iterfind("attributes/attribute")
    texts = {each.findtext("name"): each.findtext("value", "").strip() for each in attributes}
    angle = texts.get(image_objects.ROTATION, "")
    return {image_objects.ROTATION: angle} if angle.strip("0.") else {}


def _elements_of(head: bytes) -> list[ElementTree.Element]:
    """Returns the elements of an image; none if more than the first bytes of its file are needed."""
    try:
        return [*parse(head)]
    except ValueError:
        return []


def _says_more(element: ElementTree.Element, stored: Collection[str]) -> bool:
    return element.tag not in stored and "".join(element.itertext()).strip() not in ("", "0")


def _size_of(root: ElementTree.Element) -> tuple[int, int]:
    try:
        return syntax.stated_size(_texts(root, ("size/width", "size/height")))
    except ValueError as e:
        raise ValueError(f"<size>: {e}") from e


def _flag(text: str | None, name: str) -> int:
    if text not in (None, "", "0", "1"):
        raise ValueError(f"{name} is {reprlib.repr(text)}, expected 0 or 1")
    return int(text or 0)
