"""Finds the split and the number of a TFRecord file in its path, as tools name such files.

train-00000-of-01024                              train        TPU models, tf-vision
mnist-test.tfrecord-00000-of-00001                test         TensorFlow Datasets
flowers_train_00000-of-00005.tfrecord             train        TF-slim
coco_val.record-00000-of-00010                    val          Object Detection API
validation/00-512x512-798.tfrec                   validation   Kaggle
Train-00000-of-00001.tfrecord.gz                  train        TFRecorder
"""

from __future__ import annotations

import re
from typing import NamedTuple

from imagebeam import shard_names

DEFAULT_SPLIT = "train"  # where neither name nor folder says one

_WORD = re.compile(
    r"(train|training|trainval|validation|valid|val|minival|test|testing|testdev|eval|evaluation|dev|unlabeled|holdout)"
    r"\d*",
    re.IGNORECASE,
)
_SEPARATORS = re.compile(r"[-_.\s]+")
_NUMBERED = re.compile(r"(?P<stem>.+?)[-_.](?P<number>\d+)[-_]of[-_](?P<total>\d+)(?P<rest>\..*)?")
_TFRECORD_SUFFIX = re.compile(r"\.(tfrecords?|tfrec|records?)$", re.IGNORECASE)
_SUFFIXES = re.compile(r"(\.(tfrecords?|tfrec|records?|gz|gzip))+$", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?P<stem>.*?)[-_.]?(?P<number>\d+)")


class NamedFile(NamedTuple):
    """What the path of a file says."""

    split: str
    series: str  # the path without the number: equal for the files that one program wrote
    number: int = -1  # -1 if it has none
    total: int = 0  # of the files of the series; 0 if it is not known


def parse_path(path: str) -> NamedFile:
    """Returns what a path says, relative to the folder of the dataset."""
    folder, _, name = path.rpartition("/")
    match = _NUMBERED.fullmatch(name)
    if match is not None:
        stem, is_tfds = _TFRECORD_SUFFIX.subn("", match["stem"])
        series = f"{folder}/{match['stem']}*{match['rest'] or ''}"
        split = _word_in(stem) or (stem.rpartition("-")[2] if is_tfds and "-" in stem else "")
        split = split or _word_in_folders(folder) or stem
        return NamedFile(_as_split(split), series, int(match["number"]), int(match["total"]))
    stem = _SUFFIXES.sub("", name)
    last = _LAST_NUMBER.fullmatch(stem)
    split = _word_in(stem) or _word_in_folders(folder) or DEFAULT_SPLIT
    if last is None or _WORD.fullmatch(stem):
        return NamedFile(_as_split(split), f"{folder}/{name}")
    return NamedFile(_as_split(split), f"{folder}/{last['stem']}*{name[len(stem) :]}", int(last["number"]))


def find_word(path: str) -> str | None:
    """Returns the word in a path that names a split, such as `train`; None if there is none."""
    folder, _, name = path.rpartition("/")
    match = _NUMBERED.fullmatch(name)
    stem = _SUFFIXES.sub("", name if match is None else match["stem"])
    return _word_in(stem) or _word_in_folders(folder) or None


def split_by(pattern: re.Pattern[str], path: str) -> str | None:
    """Returns the split that the user's pattern finds in a path, by its group `split` or else its first group."""
    match = pattern.search(path)
    if match is None:
        return None
    found = match["split"] if "split" in pattern.groupindex else match[1] if pattern.groups else match[0]
    return _as_split(found or DEFAULT_SPLIT)


def _word_in(text: str) -> str:
    """Returns the last word in a text that names a split; "" if there is none."""
    words = [word for word in _SEPARATORS.split(text) if _WORD.fullmatch(word)]
    return words[-1].lower() if words else ""


def _word_in_folders(folder: str) -> str:
    return next(filter(None, map(_word_in, reversed(folder.split("/")))), "")


def _as_split(text: str) -> str:
    """Returns a text as the name of a split, which has only letters, digits and three signs."""
    if shard_names.SPLIT_NAME.fullmatch(text):
        return text
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.-") or DEFAULT_SPLIT
