"""The sections of a config on what is written: output, statistics, limits on rejects, updates and duplicates."""

from __future__ import annotations

import datetime
import posixpath
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic

from imagebeam import records, storage
from imagebeam.pipelines.config.sections import STRICT, Bytes, Count, NotBool
from imagebeam.transforms.shard import image_hashes

# Discriminated by the type of the value, so that an error is about that alternative alone.
CountBySplit = Annotated[
    Annotated[Count, pydantic.Tag("(one)")] | Annotated[dict[str, Count], pydantic.Tag("(by split)")],
    pydantic.Discriminator(lambda value: "(by split)" if isinstance(value, Mapping) else "(one)"),
]
_COMPRESSED = frozenset({".gz", ".gzip", ".bz2", ".xz", ".z", ".zlib", ".zst", ".zip"})


class OutputConfig(pydantic.BaseModel):
    """The folder of the dataset, and the form of its shards."""

    model_config = STRICT

    uri: str | None = None
    """Folder of the dataset; `--output` on the command line."""
    name: str | None = pydantic.Field(None, pattern=r"^[a-zA-Z]\w*$")
    """Name of the dataset in the catalog and for TFDS; by default made from the folder's name."""
    num_shards: CountBySplit | None = None
    """Number of shards, for every split or by split."""
    target_shard_bytes: Bytes | None = None
    """Image bytes per shard, such as 128MiB; decides the number of shards."""
    examples_per_shard: Count | None = None
    """Maximum of records per shard; decides the number of shards."""
    compression: Literal["none", "gzip"] = "none"
    """`gzip` costs time and saves little on JPEG, and TFDS cannot read it."""
    shuffle: Literal["hash", "none"] = "hash"
    """`hash` orders records by the hash of their keys; `none` by key or by row of the manifest."""
    writer: Literal["stream", "beam"] = "stream"
    """`beam` uses `beam.io.WriteToTFRecord`; then order and shard content differ from run to run."""
    report: bool = True
    """Whether the commit writes `report.html`: what is in the dataset, on one page, with pictures of a few images."""
    suffix: str = pydantic.Field(".tfrecord", pattern=r"^(\.[\w.-]+)?$")
    """Follows train-00000-of-00016; empty for the file names of the TPU models."""
    storage_options: dict[str, Any] = {}
    """Options of the storage at `output.uri`, as `source.storage_options` has them for the input."""

    @pydantic.field_validator("suffix", mode="before")
    @classmethod
    def _nothing_is_empty(cls, value: Any) -> Any:
        """Accepts `suffix:` without a value, which YAML reads as null, and `--set output.suffix=`."""
        return "" if value is None else value

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> OutputConfig:
        stem, dot, last = self.suffix.rpartition(".")
        if dot + last.lower() in _COMPRESSED:
            remedy = (
                f"output.compression: gzip adds .gz itself, so set output.suffix: {stem or chr(34) * 2}"
                if self.compression == "gzip"
                else "readers would take the shards for compressed; leave it out, or set output.compression: gzip, "
                "which adds .gz itself"
            )
            raise ValueError(f"output.suffix {self.suffix!r} is of compressed files: {remedy}")
        names = ("num_shards", "target_shard_bytes", "examples_per_shard")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"output.{' and output.'.join(given)} contradict each other; give one")
        if self.target_shard_bytes is not None and self.target_shard_bytes < 1:
            raise ValueError("output.target_shard_bytes must be at least 1")
        return self

    @property
    def dataset(self) -> str | None:
        """Name of the dataset, by default made from the folder's name; None without a folder."""
        if self.name is not None or not self.uri:
            return self.name
        name = re.sub(r"\W+", "_", posixpath.basename(storage.normalize(self.uri)), flags=re.ASCII).strip("_")
        return name if name[:1].isalpha() else f"dataset_{name}".rstrip("_")


class AboutConfig(pydantic.BaseModel):
    """What no program knows of a dataset, for `croissant.json`."""

    model_config = STRICT

    description: str | None = None
    """A few sentences; by default the number of images."""
    license: str | None = None
    """Address of the license, such as https://spdx.org/licenses/CC-BY-4.0.html, or its name."""
    citation: str | None = None
    """BibTeX of the publication to cite."""
    url: str | None = pydantic.Field(None, pattern=r"^https?://\S+$")
    """Page of the dataset."""
    version: str | None = pydantic.Field(None, pattern=r"^\d+\.\d+\.\d+$")
    """Version of the dataset, such as 1.0.0."""
    published: datetime.date | None = None
    """Date of the publication, such as 2026-12-01."""
    creators: tuple[str, ...] = ()
    """Names of the persons who made it."""
    publisher: str | None = None
    """Name of the organization that publishes it."""


class StatisticsConfig(pydantic.BaseModel):
    """Content of `statistics.json` beyond counts."""

    model_config = STRICT

    pixels: bool = False
    """If true, every image is decoded for the mean and standard deviation of each channel, for `normalize="dataset"`:
    over all pixels as they are stored, 0 to 255, without alpha. An image that cannot be decoded is a reject."""
    analyze: Literal["train", "all"] = "train"
    """Which splits tf.Transform analyses for the transforms of `columns`: the split named train, or all."""


class RejectsConfig(pydantic.BaseModel):
    """Limit on rejected images."""

    model_config = STRICT

    max_fraction: Annotated[float, pydantic.Field(ge=0, le=1), NotBool] = 0.01
    """Share of the listed images; if more are rejected, nothing is committed and the exit code is 3."""


class DriftConfig(pydantic.BaseModel):
    """Limits on the difference of a snapshot from the one before, beyond what chance explains; null checks nothing."""

    model_config = STRICT

    labels: Annotated[float, pydantic.Field(ge=0, le=1), NotBool] | None = 0.1
    """Total variation distance of the shares of labels in a split, before and after: 0 the same, 1 none in common.
    Above any of the three a note is printed; with `--fail-on-drift` nothing is committed and the exit code is 3."""
    sizes: Annotated[float, pydantic.Field(ge=0), NotBool] | None = 0.5
    """Relative difference of the mean bytes, heights or widths of new images from those of the last snapshot."""
    rejects: Annotated[float, pydantic.Field(ge=0, le=1), NotBool] | None = 0.05
    """Rise of the share of rejects, of all reasons or of one, from the last snapshot to the images that are read."""


class UpdateConfig(pydantic.BaseModel):
    """Limits on what `convert --update` may change."""

    model_config = STRICT

    compare: Literal["version", "content"] = "version"
    """The sign that an image is another one: `version` is another generation or time of change of its file. With
    `content` an image with another version, or none, is compared by a hash of its bytes, which is recorded when it is
    written."""
    new_labels: Literal["append", "refuse"] = "append"
    """Classes that no image had before: `append` gives them ids after all others, `refuse` is an error."""
    max_removed_fraction: Annotated[float, pydantic.Field(ge=0, le=1), NotBool] = 0.3
    """Share of the images of the last snapshot; if more are gone from the input, nothing is written and the exit code
    is 3."""
    drift: DriftConfig = DriftConfig()


class DuplicatesConfig(pydantic.BaseModel):
    """The treatment of images that repeat others, within a split or in another one."""

    model_config = STRICT

    exact: Literal["off", "report", "drop", "fail"] = "off"
    """Images with the same bytes: in the source, or with `image.function` as they are stored. `report` counts them and
    lists them in `duplicates.jsonl`; `fail` commits nothing if there are any, with exit code 3; `drop` leaves one of
    them and rejects the others, and reads all images twice."""
    near: Literal["off", "report", "drop", "fail"] = "off"
    """The same for images that look alike, saved again, scaled or recolored. Every image is decoded for it. Images with
    the same bytes count here only if `exact` is off."""
    near_distance: Annotated[int, pydantic.Field(ge=0, le=image_hashes.MAX_DISTANCE), NotBool] = 4
    """Bits of 64 in which the perceptual hashes (pHash) of two such images differ at most."""
    keep_in: Annotated[tuple[str, ...], pydantic.Field(max_length=100)] = ()
    """Splits that keep their image if another split has it too, the first one first, such as [test, validation]. Then
    follow all others, and last those whose names begin with `train`. In one split the key decides."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> DuplicatesConfig:
        if self.near == "drop" and self.exact in ("report", "fail"):
            raise ValueError(
                f"duplicates.near: drop also drops images with the same bytes, and duplicates.exact is {self.exact}: "
                "set duplicates.exact: drop or off"
            )
        if self.near == "off" and self.near_distance != DuplicatesConfig.model_fields["near_distance"].default:
            raise ValueError("duplicates.near_distance needs duplicates.near: report, drop or fail")
        if self.keep_in and not self.settings().is_on:
            raise ValueError("duplicates.keep_in needs duplicates.exact or duplicates.near: report, drop or fail")
        for name in self.keep_in:
            if not records.SPLIT_NAME.fullmatch(name) or self.keep_in.count(name) > 1:
                raise ValueError(f"duplicates.keep_in names {name!r}: give each split once, by its name")
        return self

    def settings(self) -> image_hashes.DuplicateSettings:
        """Returns the settings of the transforms."""
        return image_hashes.DuplicateSettings(self.exact, self.near, self.near_distance, self.keep_in)

    def identity(self) -> dict[str, Any]:
        """Returns what decides which duplicates are known of a dataset; {} if none are looked for.

        `report` and `fail` look for the same ones: after a run that failed, its shards are kept.
        """
        actions = {kind: action for kind, action in self.settings().actions.items() if action != "off"}
        found: dict[str, Any] = {kind: "drop" if action == "drop" else "report" for kind, action in actions.items()}
        if self.near != "off":
            found["near_distance"] = self.near_distance
        return found | ({"keep_in": list(self.keep_in)} if self.keep_in else {})
