"""What the names of the files of one data set say: shards that are missing, or that may be there twice."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator

from imagebeam import plural
from imagebeam.transforms.sources.folder_probe import name_some

OF = re.compile(  # train-00000-of-00005-1a2b3c.parquet
    r"(?P<stem>.+?)(?P<mark>[-_.])(?P<number>\d{3,})(?P<of>[-_]of[-_])(?P<total>\d{3,})(?P<rest>[-_.].*)?"
)
_NUMBERED = re.compile(r"(?P<stem>.*?)[-_.]?(?P<number>\d+)(?:\.[A-Za-z]\w*)*")
_EXTENSIONS = re.compile(r"(?:\.[A-Za-z]\w*)+\Z")
# What follows the name of a file in that of a part, or of another writing, of the same.
_OTHER_WRITING = re.compile(r"(?i)[-_.]?(v\d+|mini|small|tiny|subset|sample|debug|old|new|full|copy|bak\w*|orig\w*)")


def missing(paths: Iterable[str]) -> Iterator[str]:
    """Yields a note for each series of shards of which some are not there, by the paths of the others."""
    series: dict[tuple[str, int], dict[int, re.Match[str]]] = {}
    for match in filter(None, map(OF.fullmatch, sorted(paths))):
        series.setdefault((match["stem"], int(match["total"])), {})[int(match["number"])] = match
    for (stem, total), shards in series.items():
        start = int(0 not in shards and total in shards)  # some count from 1
        if numbers := sorted({*range(start, total + start)} - {*shards}):
            are, one = "is" if len(numbers) == 1 else "are", next(iter(shards.values()))
            first = f"{stem}{one['mark']}{numbers[0]:0{len(one['number'])}}{one['of']}{one['total']}"
            yield (
                f"{len(numbers):,} of the {plural.count(total, 'file')} of {stem} {are} not there, the first is "
                f"{first}; fetch them for the whole data set"
            )


def repeated(names: Iterable[str]) -> list[str]:
    """Returns doubts on files of one folder that may hold the same examples as others, by their names."""
    doubts = list[str]()
    shards: collections.defaultdict[str, dict[str, dict[str, str]]] = collections.defaultdict(dict)
    widths: collections.defaultdict[str, dict[int, str]] = collections.defaultdict(dict)
    stems: dict[str, str] = {}
    for name in sorted(names):
        if match := OF.fullmatch(name):
            first = shards[match["stem"]].setdefault(match["total"], {}).setdefault(match["number"], name)
            if first != name:
                doubts.append(f"{first} and {name} are the same shard by their names: is one of an older version?")
        elif (match := _NUMBERED.fullmatch(name)) and match["number"].startswith("0") and match["number"] != "0":
            widths[match["stem"]].setdefault(len(match["number"]), name)
        stems.setdefault(match["stem"] if match else _EXTENSIONS.sub("", name), name)
    for several in [[next(iter(own.values())) for own in totals.values()] for totals in shards.values()]:
        if len(several) > 1:
            doubts.append(f"{name_some(several)} are of other numbers of shards: are some of an older version?")
    for several in [[*each.values()] for each in widths.values() if len(each) > 1]:
        doubts.append(f"{name_some(several)} are numbered in two ways: do some repeat others?")
    for stem, name in stems.items():
        longer = [each for each in stems if stem and each.startswith(stem)]
        if others := [stems[each] for each in longer if _OTHER_WRITING.fullmatch(each[len(stem) :])]:
            doubts.append(f"{name_some(others)} may repeat examples of {name}, by the names: leave out one of them")
    return doubts[:2]
