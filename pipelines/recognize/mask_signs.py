"""Signs of masks: files with the names of the images, in another folder or beside them; and what their numbers mean."""

from __future__ import annotations

import collections
import dataclasses
import io
import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

from imagebeam import plural, storage
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import mask_folders, mask_trees
from imagebeam.pipelines.recognize.mask_folders import MASK_FORMATS, extensions_of
from imagebeam.transforms import npy_header
from imagebeam.transforms.formats.masks import Masks
from imagebeam.transforms.images import mask_pixels
from imagebeam.transforms.sources import files, folder_probe, name_signs
from imagebeam.transforms.sources.folder_probe import Finding, Folder, FolderProbe

_OF_SPLIT = r"\g<split>/"
_MAX_COLORS = 256
_NUM_COLOR_FOLDERS = 10  # folders that are searched for the colors of classes
_VOID = re.compile(rb"(?i)\bvoid\b")
_CAR = re.compile(r"[^/_]+_\d+\.jpg")
_CARVANA = (r"train/(?P<name>.*)\.jpg", r"train_masks/\g<name>_mask.gif")
_DIGIT = re.compile(r"\d")
_TARGETS = (
    "is it the picture that is wanted, as of a photo without noise or haze? Then take the preset pairs "
    "(docs/recipes/pairs.md); of masks set source.masks.colors"
)
_NUM_TRIED = 3  # masks that are read


def find_masks(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds masks with the names of the images, in other folders or beside them."""
    found = itertools.chain(mask_folders.find_pairs(probe, at), _pairs(probe, at), mask_trees.find(probe, at))
    finding = next(found, None)
    if finding is None:
        return
    file = next(_color_files(probe, at), None)
    if file is not None:
        void = _VOID.search(probe.head(file))
        settings = {
            **finding.settings,
            "source.masks.colors": file.removeprefix(f"{at}/"),
            "source.masks.ignore": [void[0].decode()] if void else [],
        }
        evidence = f"{finding.evidence}; {posixpath.basename(file)} has the colors of the classes"
        yield dataclasses.replace(finding, preset="camvid", settings=settings, evidence=evidence)
        return
    image, mask = (finding.settings.get(f"source.masks.{key}") for key in ("image", "mask"))
    if (image, mask) == _CARVANA and all(map(_CAR.fullmatch, probe.look(posixpath.join(at, "train")).images)):
        yield Finding("carvana", finding.evidence)
        return
    masks = find_some(probe, Masks(image, mask), at) if image and mask else []
    heads = read_some(probe, masks)
    first = next(iter(heads), "")
    if path := next((path for path, head in heads.items() if path.endswith(".npy") and not _is_grid(head)), ""):
        doubt = f"{path} is no array of rows and columns, as masks are"
        yield dataclasses.replace(finding, doubts=(*finding.doubts, doubt))
        return
    if _have_other_palettes([*heads.values()]):
        doubt = (
            f"the palettes of {describe(heads)} differ, so a number is not the same class in all: name the colors of "
            "the classes in source.masks.colors"
        )
        yield dataclasses.replace(finding, doubts=(*finding.doubts, doubt))
        return
    if heads and is_colored(heads[first]):
        note = (
            f"{first} is drawn in colors: if each color is a class, name them in source.masks.colors, such as "
            "{road: [128, 64, 128]}, or the file that lists them"
        )
        is_photo = any(is_colored(each, above=_MAX_COLORS) for each in heads.values())
        is_stored = heads[first].startswith(b"\x89PNG")  # as it is
        if is_photo or not is_stored or name_signs.TRUTH.fullmatch(posixpath.basename(posixpath.dirname(first))):
            doubt = f"{first} is drawn in colors: {_TARGETS}"
            yield dataclasses.replace(finding, doubts=(*finding.doubts, doubt))
        else:
            yield dataclasses.replace(finding, notes=(*finding.notes, note))
        return
    numbers = [mask_pixels.count_numbers(head) for head in heads.values()]
    if heads and mask_pixels.are_black_and_white(numbers):
        note = (
            f"{describe(heads)} have only the numbers 0 and 255, which become the classes 0 and 1 by "
            "source.masks.colors; without it they are the classes 0 and 255"
        )
        settings = {**finding.settings, "source.masks.colors": mask_pixels.BLACK_AND_WHITE}
        yield dataclasses.replace(finding, notes=(*finding.notes, note), settings=settings)
    elif _have_two_numbers(numbers):
        doubt = f"{describe(heads)} have 1 in some and 255 in others: make them one class first"
        yield dataclasses.replace(finding, doubts=(*finding.doubts, doubt))
    elif _are_instances([mask_pixels.count_numbers(head, all_modes=True) for head in heads.values()]):
        doubt = f"{describe(heads)} have the numbers from 0 to that of their objects: instances, and no classes?"
        yield dataclasses.replace(finding, doubts=(*finding.doubts, doubt))
    elif path := next((path for path, head in heads.items() if _is_measured(head)), ""):
        what = "is it depth, a picture, or the number of an object?"
        doubt = f"{path} has 16 bits, or more numbers than classes: {what} {_TARGETS}"
        yield dataclasses.replace(finding, doubts=(*finding.doubts, doubt))
    else:
        yield finding


def _have_other_palettes(heads: Sequence[bytes]) -> bool:
    """Returns whether PNG files have palettes of other colors; one that is cut short may be of the same."""
    starts = [(head, head.find(b"PLTE")) for head in heads if head.startswith(b"\x89PNG")]
    palettes = [head[at + 4 : at + 4 + int.from_bytes(head[at - 4 : at], "big")] for head, at in starts if at > 0]
    shortest = min(map(len, palettes), default=0)
    return len({palette[:shortest] for palette in palettes}) > 1


def _have_two_numbers(numbers: Sequence[Mapping[int, int]]) -> bool:
    """Returns whether some masks are of 0 and 1, all others of 0 and 255."""
    found = {frozenset(each) - {0} for each in numbers} - {frozenset()}
    return found == {frozenset({1}), frozenset({255})}


def _are_instances(numbers: Sequence[Mapping[int, int]]) -> bool:
    """Returns whether each mask has the numbers from 0 on without gaps, and some have more than others."""
    highest = {max(each, default=0) for each in numbers}
    are_counted = all({*each} == {*range(len(each))} for each in numbers)
    return len(numbers) >= _NUM_TRIED and are_counted and len(highest) > 1 and max(highest) > 1


def _is_measured(head: bytes) -> bool:
    """Returns whether a file is a gray image of 16 bits or more, or has more gray numbers than masks have classes."""
    numbers = mask_pixels.count_numbers(head)
    is_picture = len(numbers) > mask_pixels.MAX_CLASSES and not mask_pixels.are_smoothed([numbers])
    return is_picture or _mode_of(head).startswith(("I", "F"))


def _mode_of(head: bytes) -> str:
    """Returns Pillow's mode of an image by the beginning of its file; "" if that does not show it."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(head)) as image:
            return image.mode
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return ""


def is_colored(head: bytes, above: int = 0) -> bool:
    """Returns whether the pixels of an image are colors, not numbers or indexes of a palette; more than so many."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(head)) as image:
            return image.mode in ("RGB", "RGBA") and not (above and image.getcolors(above))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # such as of a file whose head was read
        return False


def _is_grid(head: bytes) -> bool:
    """Returns whether a file in NumPy's format holds an array of two axes, or of three."""
    try:
        return len(npy_header.read(io.BytesIO(head)).shape) in (2, 3)
    except ValueError:
        return False


def _color_files(probe: FolderProbe, at: str) -> Iterator[str]:
    root = probe.look(at)
    for folder in [root, *(probe.look(root.below(name)) for name in root.folders[:_NUM_COLOR_FOLDERS])]:
        yield from (folder.below(name) for name in folder.files if name_signs.COLORS_OF_CLASSES.fullmatch(name))


def _pairs(probe: FolderProbe, at: str) -> Iterator[Finding]:
    root = probe.look(at)
    for folder in folder_probe.split_places(probe, at):
        masks = [name for name in folder.folders if name_signs.MASKS.search(name)]
        images = [name for name in folder.folders if name not in masks]
        for mask in masks:
            for image in sorted(images, key=lambda name: _likeness(name, mask)):
                found = _match(probe, folder, image, mask, at)
                if found is not None:
                    yield found
    yield from mask_folders.find_example_folders(probe, at)
    below = [probe.with_images(each.path) or each for each in probe.some(root, root.folders)]
    for folder in [root, *below]:
        if (beside := _match_beside(folder, at)) is not None:
            yield beside
    for folder in [root, *below]:
        if (beside := _match_other_format(probe, folder, at)) is not None:
            yield beside


def _likeness(image: str, mask: str) -> tuple[bool, bool, str]:
    return not mask.lower().startswith(image.lower()), image.lower() not in ("images", "image", "jpegimages"), image


def _match(probe: FolderProbe, folder: Folder, image: str, mask: str, at: str) -> Finding | None:
    """Returns the finding for a folder of images and one of masks; None if their names do not fit."""
    images, masks = probe.look(folder.below(image)), probe.look(folder.below(mask))
    prefix = folder_probe.prefix_of(folder, at)
    names = [prefix.rstrip("/")] if prefix else []
    outer, inner = ("(?P<split>[^/]+)/", "") if prefix else ("", "")
    if masked := _splits_with_masks(probe, at, image, mask) if prefix else []:
        names, outer = masked, f"(?P<split>{'|'.join(masked)})/"
    if not images.images and not prefix:
        names = [name for name in images.folders if name in masks.folders]
        held = next((name for name in names if probe.look(images.below(name)).images), None)
        if held is None or len(names) < len(images.folders) / 2:
            return None
        inner = "(?P<split>[^/]+)/"
        images, masks = probe.look(images.below(held)), probe.look(masks.below(held))
    known = mask_folders.stems_of(masks)
    affixes = mask_folders.find_affixes(sorted(images.stems), known, _DIGIT)
    if affixes is None:
        return None
    extension = collections.Counter(map(folder_probe.extension_of, masks.images or masks.files)).most_common(1)[0][0]
    if extension not in MASK_FORMATS and extension not in (".jpg", ".jpeg"):
        return None
    before, after = affixes
    number = sum(f"{before}{stem}{after}" in known for stem in images.stems)
    spelt = next(name[-len(extension) :] for name in masks.files if name.lower().endswith(extension))
    evidence = (
        f"{number:,} of {images.count(len(images.images), 'image')} in "
        f"{folder_probe.prefix_of(images, at)[:-1]} have a {extension} file of the same name in "
        f"{folder_probe.prefix_of(masks, at)[:-1]}"
    )
    return mask_folders.finding_of_masks(
        rf"{outer}{re.escape(image)}/{inner}(?P<name>.*)\.{extensions_of(images.images)}",
        rf"{outer and _OF_SPLIT}{mask}/{inner and _OF_SPLIT}{before}\g<name>{after}{spelt}",
        names,
        evidence,
        () if name_signs.MASKS.search(mask) else (f"{mask} may hold masks, or other pictures of the same images",),
    )


def _splits_with_masks(probe: FolderProbe, at: str, image: str, mask: str) -> list[str]:
    """Returns the splits whose images have masks; none if all have some, as those of tests often do not."""
    places = [each for each in folder_probe.split_places(probe, at) if probe.look(each.below(image)).images]
    masked = [each for each in places if probe.look(each.below(mask)).files]
    return [folder_probe.prefix_of(each, at).rstrip("/") for each in masked] if len(masked) < len(places) else []


def _match_beside(folder: Folder, at: str) -> Finding | None:
    """Returns the finding for x_mask.png beside x.png; None if there are none."""
    suffixes: collections.Counter[tuple[str, str]] = collections.Counter()
    for name in folder.images:
        stem, extension = posixpath.splitext(name)
        match = name_signs.MASK_ENDING.fullmatch(stem)
        if match and match["name"] in folder.stems:
            suffixes[match["suffix"], extension] += 1
    if not suffixes:
        return None
    (suffix, extension), number = suffixes.most_common(1)[0]
    if number < 0.4 * len(folder.images):
        return None
    images = [name for name in folder.images if not posixpath.splitext(name)[0].endswith(suffix)]
    end = re.escape(suffix)
    has_more = any(suffix in name for name in images)  # x_mask_1.png
    pattern = rf"(?!.*{end})(?P<name>.*)" if has_more else rf"(?P<name>.*)(?<!{end})"
    evidence = (
        f"{number:,} of {folder.count(len(images), 'image')}{_place_of(folder, at)} have a file with "
        f"{suffix}{extension} at the end of its name beside them"
    )
    pattern = rf"{pattern}\.{extensions_of(images)}"
    return mask_folders.finding_of_masks(pattern, rf"\g<name>{suffix}{extension}", (), evidence, ())


def _place_of(folder: Folder, at: str) -> str:
    """Returns a folder in words: ` in MT_Blowhole/Imgs (the first such folder)`; "" for `at` itself."""
    place = folder_probe.prefix_of(folder, at)[:-1]
    return f" in {place} (the first such folder)" if place else ""


def _match_other_format(probe: FolderProbe, folder: Folder, at: str) -> Finding | None:
    """Returns the finding for x.png beside x.jpg, if the PNG files hold a few numbers; None if they are pictures."""
    images = [name for name in folder.ending(".jpg", ".jpeg")]
    paired = [name for name in images if f"{posixpath.splitext(name)[0]}.png" in folder.files]
    if len(paired) < 2 or len(paired) < mask_folders.SHARE * len(images):
        return None
    masks = [f"{posixpath.splitext(name)[0]}.png" for name in paired[:: -(-len(paired) // _NUM_TRIED)]]
    if not all(map(_holds_classes, map(probe.head, map(folder.below, masks)))):
        return None
    place = folder_probe.prefix_of(folder, at)
    name = "(?P<name>.+/[^/]+)" if place else "(?P<name>.*)"  # images beside the folders belong to a README
    evidence = (
        f"{len(paired):,} of {folder.count(len(images), 'image')}{_place_of(folder, at)} have a .png file of the same "
        "name beside them, which holds the numbers of classes"
    )
    return mask_folders.finding_of_masks(rf"{name}\.{extensions_of(paired)}", r"\g<name>.png", (), evidence, ())


def _holds_classes(head: bytes) -> bool:
    """Returns whether a PNG has a palette, or gray pixels of a few different numbers or of fewer than 8 bits."""
    depth, color_type = head[24:25], head[25:26]
    if head.startswith(b"\x89PNG\r\n\x1a\n") and (color_type == b"\3" or (color_type == b"\0" and depth < b"\x08")):
        return True
    return 0 < len(mask_pixels.count_numbers(head)) <= mask_pixels.MAX_CLASSES


# --- what the numbers of masks mean, judged by a few ------------------------------------------------------------------

_NUM_READ, _MIN_READ = 8, 3  # masks: of small files, and of large ones
_NUM_FOLDERS = 4  # folders of images whose masks are read
_MAX_MASK_BYTES = 1 << 21  # black and white takes few, and a TIFF without compression of 1,024 x 1,024 some more
_BOUNDS = folder_probe.Bounds(folders=16, entries=300, all_entries=1_200, heads=_NUM_READ)


def notes_on_numbers(config: config_lib.Config) -> tuple[str, ...]:
    """Returns a note if masks, judged by a few, are drawn in black and white, exactly or smoothed.

    At most 16 folders are listed, and the beginnings of 8 masks are read.
    """
    masks = config.source.masks
    if masks.rule is None or masks.colors is not None or config.source.by != "files" or config.source.uri is None:
        return ()
    root = files.split_glob(storage.normalize(config.source.uri))[0]
    probe = FolderProbe(root, _BOUNDS, exclude=storage.normalize(config.output.uri or ""))
    heads = read_some(probe, _first_masks(probe, masks.rule))
    numbers = [mask_pixels.count_numbers(head) for head in heads.values()]
    if mask_pixels.are_smoothed(numbers):
        return (
            f"most pixels of {describe(heads)} are nearly black or white, the others have many numbers, and each "
            "number is a class that is stored: if JPEG or a resize has smoothed them, store exact numbers first",
        )
    if not heads or not mask_pixels.are_black_and_white(numbers):
        return ()
    return (
        f"{describe(heads)} have only the numbers 0 and 255, and these are the classes that are stored; for "
        f'the classes 0 and 1 add --set "source.masks.colors={mask_pixels.BLACK_AND_WHITE_TEXT}"',
    )


def read_some(probe: FolderProbe, paths: Sequence[str]) -> dict[str, bytes]:
    """Returns the first 2 MiB of masks by their paths, without those that cannot be read.

    After three of them, no more are read once they are 2 MiB together.
    """
    heads: dict[str, bytes] = {}
    for path in paths:
        if len(heads) >= _MIN_READ and sum(map(len, heads.values())) >= _MAX_MASK_BYTES:
            break
        if head := probe.head(path, _MAX_MASK_BYTES):
            heads[path] = head
    return heads


def describe(heads: Mapping[str, bytes]) -> str:
    """Returns which masks were looked at: `masks/1.png and 7 other masks (no more were looked at)`."""
    first, number = next(iter(heads)), len(heads) - 1
    others = f" and {plural.count(number, 'other mask')}" if number else ""
    return f"{first}{others} (no more were looked at)"


def _first_masks(probe: FolderProbe, rule: Masks) -> list[str]:
    """Returns the paths of masks for images in a few folders, of the highest level that has some; they may not exist.

    A level is looked at with two thirds of the folders that may still be, so that deeper ones are reached, too.
    """
    level = [""]
    found: list[list[str]] = []  # paths of images
    folders_of_masks = set[str]()
    num_left = _BOUNDS.folders
    while level and not found:
        below: list[str] = []
        for path in folder_probe.spread(level, _NUM_FOLDERS)[: -(-2 * num_left // 3)]:
            if path in folders_of_masks:
                continue
            folder = probe.look(path)
            num_left -= 1
            below += map(folder.below, folder.folders)
            if images := [each for each in map(folder.below, folder.images) if rule.is_image(each)]:
                found.append(images)
                folders_of_masks.add(posixpath.dirname(rule.mask_of(images[0]) or ""))
            if len(found) == _NUM_FOLDERS:
                break
        level = below
    return [mask for image in _choose(found) if (mask := rule.mask_of(image)) is not None]


def find_some(probe: FolderProbe, rule: Masks, at: str) -> list[str]:
    """Returns the paths of a few masks that exist, for the images below the folder `at` that were seen."""
    above = f"{at}/" if at else ""
    found = []
    for folder in probe.seen():
        paths = [folder.below(name) for name in folder.images if folder.below(name).startswith(above)]
        masks = [f"{above}{mask}" for path in paths if (mask := rule.mask_of(path.removeprefix(above))) is not None]
        if masks := [mask for mask in masks if probe.holds(mask)]:
            found.append(masks)
    return _choose(found)


def _choose(folders: Sequence[Sequence[str]]) -> list[str]:
    """Returns up to 8 paths in several folders: first one of each, spread over the folders and over the names."""
    chosen = folder_probe.spread(folders, _NUM_READ)[:_NUM_READ]
    each = [folder_probe.spread(paths, _NUM_READ // len(chosen)) for paths in chosen]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*each))
    return [path for path in in_turn if path is not None][:_NUM_READ]
