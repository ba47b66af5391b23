"""The section `duplicates` of a config: what is done with images that repeat others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic

from imagebeam import shard_names
from imagebeam.pipelines.config.field_types import STRICT, NotBool
from imagebeam.transforms.shard import image_hashes


class DuplicatesConfig(pydantic.BaseModel):
    """What is done with images that repeat others, within a split or in another one."""

    model_config = STRICT

    exact: Literal["off", "report", "drop", "fail"] = "off"
    """Images with the same bytes. `report` counts them and lists them in `duplicates.jsonl`; `fail` commits nothing if
    there are any, with exit code 3; `drop` leaves one of them and rejects the others, and reads all images twice."""
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
            if not shard_names.SPLIT_NAME.fullmatch(name) or self.keep_in.count(name) > 1:
                raise ValueError(f"duplicates.keep_in names {name!r}: give each split once, by its name")
        return self

    def settings(self) -> image_hashes.DuplicateSettings:
        """Returns the settings of the transforms."""
        return image_hashes.DuplicateSettings(self.exact, self.near, self.near_distance, self.keep_in)

    def identity(self) -> dict[str, Any]:
        """Returns what decides which duplicates are known of a dataset; {} if none are looked for.

        `report` and `fail` look for the same ones: after a run that failed, its shards are kept.
        """
        found: dict[str, Any] = {}
        for kind, action in self.settings().actions.items():
            if action != "off":
                found[kind] = "drop" if action == "drop" else "report"
        if self.near != "off":
            found["near_distance"] = self.near_distance
        return found | ({"keep_in": list(self.keep_in)} if self.keep_in else {})
