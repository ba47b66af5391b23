"""The names in a batch: "image", "label", "mask", and beside them the features that are asked for, under their keys."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features

IMAGE, LABEL, MASK = "image", "label", "mask"


def own_names(catalog: catalog_lib.Catalog, pad: bool = False) -> dict[str, str]:
    """The names that a feed gives out by itself, and what each of them is."""
    sources = {feature.source for feature in catalog.features}
    names = {IMAGE: "the picture"} if features.ENCODED in sources else {}
    if features.LABEL in sources:
        names[LABEL] = "the label"
    if pad:
        names[MASK] = "the mask of pad=True"
    return names


def choose_features(
    catalog: catalog_lib.Catalog, keys: Sequence[str], own: Mapping[str, str], list_size: int | None = None
) -> list[features.Feature]:
    """The features of these keys, each once, in the order asked for.

    Args:
        catalog: of the dataset.
        keys: as the user named them.
        own: names that the feed gives out by itself, as of `own_names`.
        list_size: that lists are brought to, which adds the name "KEY/count" for each.

    Raises:
        ConfigError: if there is no such feature, or its name is taken.
    """
    by_key = {feature.key: feature for feature in catalog.features}
    taken = dict(own)
    chosen = []
    for key in dict.fromkeys(keys):
        if key not in by_key:
            [nearest] = difflib.get_close_matches(key, by_key, 1) or [""]
            hint = f" (did you mean {nearest!r}?)" if nearest else ""
            raise errors.ConfigError(f"there is no feature {key!r}; the dataset has {', '.join(by_key)}{hint}")
        chosen.append(by_key[key])
        if list_size is not None and by_key[key].many:
            taken[f"{key}/count"] = f"how many values {key!r} has"
    for feature in chosen:
        if feature.key in taken:
            raise errors.ConfigError(
                f"feature {feature.key!r} has the name of {taken[feature.key]} in a batch: leave it out of features, "
                f"or convert again with another key for it, features: {{{feature.source}: my_{feature.key}}}"
            )
    return chosen
