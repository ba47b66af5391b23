"""Conclusions from a name alone: one group of words for each, with what follows from it.

A name never makes a finding sure. It is a doubt, or it chooses between two readings that the files allow.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection

_ALONE, _END = "(?<![a-z])", "(?![a-z])"


def _any_of(*words: str) -> re.Pattern[str]:
    return re.compile(f"(?i){'|'.join(words)}")


# --- folders, lists and images ---------------------------------------------------------------------------------------

# The images in it are of one split.
SPLITS = {
    "train": ("train", "training", "trainval"),
    "validation": ("val", "valid", "validate", "validation", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
SPLIT_OF_WORD = {word: split for split, words in SPLITS.items() for word in words}
# So are the images of rows with such a value in a column, if every other row has one, too.
SPLIT_OF_SHORT = {
    **{"tr": "train", "trn": "train", "va": "validation", "vl": "validation"},
    **{"te": "test", "ts": "test", "tst": "test"},
}
SPLIT_WORD = _any_of(f"{_ALONE}({'|'.join(sorted(SPLIT_OF_WORD, key=len, reverse=True))}){_END}")
# A file may list the images of splits, or the splits of images.
LISTS_OF_SPLITS = _any_of("split", "partition", f"{_ALONE}fold", "imagesets")

# Nobody has labelled its images.
UNLABELED = _any_of("un[-_ ]?label")

# A synset of WordNet is a class, whatever else is there.
SYNSET = re.compile(r"n\d{8}")

# It may hold masks of the images beside it: `MASKS` is searched for, `MASKS_ALONE` is the whole name, `MASK_ENDING` the
# end of one beside an image of the rest of it.
_MASK = (r"annotations?", r"masks?", r"labels?", r"gt", r"ground[_ ]?truth")
MASKS = _any_of(
    *("mask", "annot", "(?<!un)(?<!un-)label", "segment", "semantic", f"{_ALONE}((sem)?segm?|ann){_END}"),
    *(f"{_ALONE}gt", "ground[_ ]?truth", "trimap", "matte"),
)
MASKS_ALONE = _any_of(*_MASK, r"segmentation\w*")
MASK_ENDING = re.compile(rf"(?P<name>.+)(?P<suffix>[_\-.]((?i:{'|'.join(_MASK)}|segm?(entation)?)|L))")
# All that is below it are masks. Folders of labels may be classes.
BELOW_MASKS = _any_of("mask", "annot", "ground.?truth")
# It may be the picture that is wanted, as well as a mask.
TRUTH = _any_of("gt", r"ground[_ ]?truth")
# It shows masks to people, or the instances in them: it is no mask that is read if there is another one.
FOR_PEOPLE = _any_of(r"(?:^|[/_-])(viz|vis|overlay|preview|colou?rs?|rgb|instances?(ids)?)$")
# Of several folders or files, it has the images.
IMAGES = _any_of(f"{_ALONE}(images?|imgs?|jpegimages|originals?|photos?|pictures?|rgb|input){_END}")

# It is one of several aligned images of an example, in the order in which they come; folders of the whole names may
# also be parts by place or time. They are no classes if all beside it are such names, too.
ALIGNED = (
    *(
        "input",
        "a",
        r"lr\w*",
        "low",
        r"noisy\w*",
        "raw",
        "pre",
        "before",
        "left",
        "rgb",
        "target",
        "output",
        "out",
        "b",
    ),
    *(r"hr\w*", "high", r"(clean|original)\w*", "gt", "post", "after", "right", "depth", "label"),
)
_ROLES = _any_of(
    *ALIGNED,
    r"list|x\d|normal|reference|distorted|disp(arity)?|augmented\w*|real|mean|noise\d*|blur(red|ry)?|sharp",
    r"bw|gr[ae]y(scale)?|colou?r|hazy|clear|rain(y)?|norain|foggy|gallery|probes?|quer(y|ies)|bounding_box_\w+",
    r"(full|half|quarter|low|high)_dose|short|long|fg|bg|(fore|back)ground|alpha|source|(low|high)[_-]?res\w*",
    r"he|ihc|trans(mission)?|expert_?\w|degraded|restored|processed|edited|final|full|small|medium|large|label+ed",
    r"ground[_ ]?truths?|inputs?|o[ds]",
    r"n?ir|infra-?red|vis?(ible|ual)?|thermal|opt(ical)?|sar|t1\w*|t2\w*|flair|dwi|adc|ct|mri?|pet",
    r"(cam(era)?|view)?[_ -]?(left|right|front|back|rear|top|bottom|side)([_ -](left|right))?",
)
# These aligned images are classes as often.
OFTEN_CLASSES = _any_of("[ab]", "low", "high", "left", "right", "pre", "post", "before", "after")
# It is a part of a data set, and no class, whatever is beside it.
_PARTS = _any_of(
    r"(images?|imgs?|masks?)(_[a-z]+)?|jpegimages|pictures?|photos?|labels?|annotations?|segmentation\w*|targets?",
    r"ground[_ ]?truth|(img|ann|image|mask|label)_dir|leftimg8bit|image_\d|calib|velodyne|(\w+_)?part_?\d+",
    r"imagesets|meta([ _-]?(data|info\w*))?s?|docs?|scripts?|src|code|utils|models?|data|datasets?|un-?label+ed",
    r"gt\w*|thumb(nail)?s?|assets|figures|screenshots|static|results?|outputs?|plots|@eadir|__macosx|rejected",
    r"[_$].*|unsorted|to[ _-]?(check|do|sort|review|label)|(needs?[ _-])?review",
    r"venv|node_modules|wandb|mlruns|lightning_logs|checkpoints?",
    r"\w+_(results?|outputs?|predictions?)|\d+\. .*(images|ground ?truths?)|predict(ions?)?|inference|hold-?out",
)
# It is one of several parts by device, person or date. Two of them are enough to be no classes.
_PLACES = _any_of(
    r"(cam(era)?|fold|split|view|session|batch|(data|sub)?set|scene|chunk|shard|images?|imgs?)[_ -]?\d+|\d+x\d+(px)?",
    r"(cam(era)?|view|session|(data|sub)?set)[_ -]?[a-d]|(v(ersion)?|vol(ume)?|phase|dis[ck])[_ -]?\d+(\.\d+)*",
    r"(19|20)\d\d([-_.]?(0[1-9]|1[0-2])([-_.]?\d\d)?)?|(19|20)\d\d[-_.]?(0[1-9]|1[0-2])[-_.]?[0-3]\d[-_. ].*",
    r"1\d\d[a-z_]{5}",  # 100CANON, as cameras name them
)
# What a camera or program counts: nothing before such a number is a class.
COUNTED = _any_of(
    r"^(img|image|dsc[nf]?|photo|picture|pic|p|screenshot|scan|file|page|sample)s?$", "frame", "mask", r"\d"
)
# A number after it counts the images of one subject, which do not belong into different splits.
OF_SUBJECT = r"slice|frame|tile|patch|crop|page"

# Annotations or tables may be below it: it is looked into first.
ANNOTATIONS = _any_of(
    "anno|label|meta|list|split|csv|xml|json|coco|bbox|box|gt|truth|caption|imagesets|table|data|train",
)
# It is a file about the data set, and says nothing of one image.
ON_THE_SET = _any_of(
    r"read_?me|licen[cs]e|copying|authors|attribution|citation|notice|changelog|.*(md5|sha\d+|checksum)",
    r".*\.(md|rst|pdf|docx?|html?|tex|bib|py|ipynb|sh|bat|c|h|cpp|m|js|css|log|cfg|lock|tmp|bak)$",
    r"thumbs\.db|[._]ds_store|desktop\.ini|(pyproject|cargo|poetry)\.toml",
)
# It lists the classes of masks with their colors, as CamVid and tools for labelling name it.
COLORS_OF_CLASSES = _any_of(
    r"class_dict\w*\.csv", r"label_?colou?rs?\.(txt|csv)", r"label_?map\.txt", r"colou?rs?_?map\.(txt|csv)"
)


def masks_among(paths: Collection[str]) -> set[str]:
    """Returns the paths of folders that are named as masks, judged below the folder that holds all of them."""
    above = posixpath.commonpath(paths) if paths else ""
    return {path for path in paths if MASKS.search(path.removeprefix(above))}


def is_part(name: str) -> bool:
    """Returns whether a folder is a part of a data set by its name, and no class."""
    return _PARTS.fullmatch(name) is not None


def is_role(name: str) -> bool:
    """Returns whether a folder has one of several aligned images of an example, by its name."""
    return _ROLES.fullmatch(name) is not None


def are_parts(names: Collection[str]) -> bool:
    """Returns whether folders are parts of one data set by their names, and no classes."""
    own = _without_common_words(names)
    are_roles = all(map(_ROLES.fullmatch, names)) or (
        len({*own}) == len(names) > 1 and all(map(_ROLES.fullmatch, own)) and not any(map(OFTEN_CLASSES.fullmatch, own))
    )
    return are_places(names) or all(map(is_part, names)) or are_roles


def are_places(names: Collection[str]) -> bool:
    """Returns whether two folders or more are parts by device, person or date, by their names."""
    return sum(map(bool, map(_PLACES.fullmatch, names))) > 1


def have_roles(names: Collection[str]) -> bool:
    """Returns whether folders are parts of one data set, or each name has the word of one: left-image, depth-map."""
    words = [[each for each in re.split("[_ -]", name) if _ROLES.fullmatch(each)] for name in names]
    return are_parts(names) or (all(words) and len({*map(tuple, words)}) > 1)


def _without_common_words(names: Collection[str]) -> list[str]:
    """Returns names without the words with which all of them begin or end: opt and sar of opt_256, sar_256."""
    words = [re.split("[_ -]", name) for name in names]
    while words and min(map(len, words)) > 1 and len({each[-1] for each in words}) == 1:
        words = [each[:-1] for each in words]
    while words and min(map(len, words)) > 1 and len({each[0] for each in words}) == 1:
        words = [each[1:] for each in words]
    return ["_".join(each) for each in words]


# --- columns of tables ------------------------------------------------------------------------------------------------

# It names images; the first one that does is taken.
IMAGE_COLUMNS = ("image", "file_name", "filename", "image_path", "path", "file", "image_id", "id", "image_name", "img")
# Numbers in it may name images.
IMAGE_NUMBERS = _any_of("id", "ima?ge?", "file", "name", "path", "photo", "picture")
# It has addresses of images.
ADDRESSES = _any_of("(image|img|photo|picture)?_?(url|uri|link|src)")
# It is the label; the first one that is there is taken.
SURE_LABELS = ("label", "labels", "class", "class_name", "category", "target")  # even if all values seen are equal
LABELS = (
    *SURE_LABELS, "breed", "species", "diagnosis", "category_id", "label_id", "class_id", "tag", "tags",
    "attribute_ids", "landmark_id", "level", "dx", "emotion", "type", "age", "score", "rating", "cultivar", "variety",
    "finding labels", "y",
)  # fmt: skip
# The label may be the folder instead, if images are in several.
LABELS_OR_NOT = ("level", "type", "age", "score", "rating", "y", "tag", "tags")
# It is never the label.
NO_LABELS = _any_of(
    f".*(url|path|title|author|license|{_ALONE}user|owner|source|copyright|date|time|md5|sha\\d*|hash).*"
)
# It says where an image is from, and is no label unless it is asked for. Not so class_id.
GROUPS = _any_of(
    r"(?!.*(label|class|categor|species|breed|target))(.+[_ ]id|(?-i:.+[a-z]ID)|id|uuid|camera|photographer|device|"
    r"event|site|location|seq(uence)?|patient|subject|user|session)"
)
# It says the split of an image.
SPLIT_COLUMNS = ("split", "set", "usage", "subset", "partition", "fold", "kfold")
# Its texts describe images.
CAPTIONS = _any_of(".*(caption|sentence|description|comment|text).*")
# It holds masks, or names them.
MASK_COLUMNS = _any_of(rf".*(encoded_?pixels|{_ALONE}rle|run_?lengths?|segmentation|polygon|{_ALONE}masks?).*")
# It is an edge of a box, or the whole box.
BOX_EDGES = _any_of(
    "(x|y)_?(min|max|0|1|2)",
    "bbox.*",
    "(x|y)_?(center|centre)?_?(left|top)?",
    "(c|center|centre)_?(x|y)",
    "w(idth)?|h(eight)?|left|top|right|bottom",
)
