"""Tries a config on a few images: what it makes of them, beside what they were, in one picture (`plan --try`)."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import heapq
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from imagebeam import errors, example, features, storage
from imagebeam.pipelines import job as job_lib
from imagebeam.pipelines import request as request_lib
from imagebeam.pipelines import storage_tables
from imagebeam.transforms import elements, user_code
from imagebeam.transforms.html_report import thumbnails
from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, pixels, prepare
from imagebeam.transforms.shard import feature_functions, read_ahead, read_images, writer_processes

if TYPE_CHECKING:
    import PIL.Image

_MAX_LISTED = 10_000  # images to choose from: the first ones of the source
_SIDE_PX = 256  # longer side of a picture in the sheet, at most
_TEXT_PX = 480  # width of the text beside the pictures
_GAP_PX, _LINE_PX = 12, 18
_MAX_CHARS, _MAX_LINES = 64, 14
_PURPOSE = b"imagebeam.try"


class Task(NamedTuple):
    """Images to try in a writer process, which an image or a function may kill."""

    packed_refs: bytes
    policy: prepare.ImagePolicy
    read_ahead: read_ahead.ReadAhead
    functions: feature_functions.FeatureFunctions
    skipped: tuple[tuple[int, elements.Reason], ...] = ()  # as in ShardTask


class Tried(NamedTuple):
    """One image that was tried."""

    key: str
    reason: str  # why it would be a reject; "" if it would be stored
    lines: tuple[str, ...]  # its label, sizes and features, or the detail of the reject
    before: bytes  # PNG of at most _SIDE_PX; b"" if it cannot be decoded
    after: bytes


@storage_tables.with_storages
def try_images(request: request_lib.Request, count: int) -> list[Tried]:
    """Returns what a command makes of `count` images: a choice by hash of the first 10,000 that the source lists.

    Raises:
        ConfigError: if there is no image, or a function of the user cannot be called.
    """
    checked = request_lib.check(request)
    if checked.config.output.uri is None:
        output = checked.config.output.model_copy(update={"uri": "/nowhere"})  # its address alone is asked for
        checked = checked._replace(config=checked.config.model_copy(update={"output": output}))
    job = job_lib.make_job(checked)
    settings = job.settings
    refs = sorted(_choose(job, count), key=lambda ref: ref.key)
    if not refs:
        raise errors.ConfigError("try-nothing", "--try: the source lists no image that could be tried")
    task = Task(elements.pack_refs(refs), settings.policy, settings.read_ahead, settings.functions)
    with writer_processes.WriterProcesses(1) as pool:
        try:
            tried: list[Tried] = pool.submit(run, task, writer_processes.without_killer).result()
        except writer_processes.WriterError as e:
            if (found := errors.find_in(str(e), e)) is not None:
                raise found from None
            raise
    return tried


def _choose(job: job_lib.Job, count: int) -> Iterator[elements.ImageRef]:
    refs: list[elements.ImageRef] = []
    for listing in map(job.rules.apply, job.source.list_all()):
        refs += elements.unpack_refs(listing.packed_refs)
        if len(refs) >= _MAX_LISTED:
            break
    yield from heapq.nsmallest(count, refs[:_MAX_LISTED], key=lambda ref: elements.hash64(ref.key, 0, _PURPOSE))


def run(task: Task) -> list[Tried]:
    """Returns what becomes of the images; in a writer process."""
    refs = elements.unpack_refs(task.packed_refs)
    before = {
        ref.key: data if ref.inside is None else data[ref.inside[0] : sum(ref.inside)]
        for ref, data in read_ahead.fetch(refs, task.read_ahead)
        if isinstance(data, bytes)
    }
    images: Iterable[feature_functions.Found] = read_images.read_images(
        refs, task.policy, task.read_ahead, dict(task.skipped)
    )
    functions = (*task.functions.functions, *task.functions.inferred)  # RunInference would give the same
    if functions:
        images = dataclasses.replace(task.functions, functions=functions, inferred=()).add_to(images)
    computed = [each.feature for each in functions]
    tried = []
    for ref, image in images:
        source = _decode(before.get(ref.key, b""))
        if isinstance(image, elements.Reject):
            lines: list[str] = [image.detail]
            tried.append(Tried(ref.key, image.reason.value, tuple(lines), _as_png(source), b""))
            continue
        assert isinstance(image, checked_image.Image)
        lines = [f"label {ref.label!r}"] if ref.label is not None else []
        was = "?" if source is None else f"{source.width} x {source.height}"
        lines.append(f"{was} px -> {image.width} x {image.height} px, {image.format}, {len(image.data):,} bytes")
        lines += [_describe(feature, value) for feature, value in zip(computed, image.computed)]
        after = None
        with contextlib.suppress(checked_image.BadImageError):
            after = feature_functions.show(image)
        tried.append(Tried(ref.key, "", tuple(lines), _as_png(source), _as_png(after)))
    return tried


def _describe(feature: features.Feature, value: bytes) -> str:
    values = example.parse_values(value)
    shown = ", ".join(
        f"{each:.6g}" if isinstance(each, float) else user_code.describe_value(each) for each in values[:4]
    )
    return f"{feature.key}: {feature.kind} {list(feature.shape or ())}: {shown}{', ...' if len(values) > 4 else ''}"


def _decode(data: bytes) -> PIL.Image.Image | None:
    try:
        decoded = pillow_decoder.decode_any(data, str(image_formats.sniff_format(data)))
    except (checked_image.BadImageError, KeyError):
        return None
    return pixels.to_eight_bits(pixels.with_alpha(decoded))


def _as_png(picture: PIL.Image.Image | None) -> bytes:
    if picture is None:
        return b""
    small = picture.convert("RGB")
    small.thumbnail((_SIDE_PX, _SIDE_PX))
    file = io.BytesIO()
    small.save(file, "PNG")
    return file.getvalue()


# --- the sheet -------------------------------------------------------------------------------------------------------


def write_sheet(tried: Sequence[Tried], uri: str) -> None:
    """Writes a PNG with a row for each image: before, after, and what is stored or why it would be a reject.

    Raises:
        ConfigError: if the file cannot be written.
    """
    from PIL import Image, ImageDraw, ImageFont

    row_px = _SIDE_PX + 2 * _GAP_PX
    sheet = Image.new("RGB", (2 * (_SIDE_PX + _GAP_PX) + _TEXT_PX + 2 * _GAP_PX, row_px * len(tried)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for number, one in enumerate(tried):
        top = number * row_px + _GAP_PX
        for column, data in enumerate((one.before, one.after)):
            left = _GAP_PX + column * (_SIDE_PX + _GAP_PX)
            if data:
                sheet.paste(Image.open(io.BytesIO(data)), (left, top))
            else:
                draw.rectangle((left, top, left + _SIDE_PX - 1, top + _SIDE_PX - 1), outline="lightgray")
        lines = [one.key, *([f"reject: {one.reason}"] if one.reason else []), *one.lines]
        wrapped = [line[start : start + _MAX_CHARS] for line in lines for start in range(0, len(line), _MAX_CHARS)]
        for place, line in enumerate(wrapped[:_MAX_LINES]):
            at = (_GAP_PX + 2 * (_SIDE_PX + _GAP_PX), top + place * _LINE_PX)
            draw.text(at, thumbnails.visible(line), fill="firebrick" if one.reason else "black", font=font)
    file = io.BytesIO()
    sheet.save(file, "PNG")
    target = storage.normalize(uri)
    with errors.explained("sheet-unwritable", f"--sheet {uri!r} cannot be written"):
        storage.storage_of(target).write_whole(target, file.getvalue(), durable=False)


def rows(tried: Sequence[Tried], sheet: str) -> list[tuple[str, str]]:
    """Returns the rows of the table that `plan` prints."""
    reasons = collections.Counter(one.reason for one in tried if one.reason)
    found = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
    stored = len(tried) - sum(reasons.values())
    named = [("", f"{one.key}: {one.reason}: {one.lines[0]}") for one in tried if one.reason][:4]
    summary = f"{len(tried)} images: {stored} stored" + (f", rejected: {found}" if found else "")
    return [("tried", summary), *named, ("sheet", sheet)]
