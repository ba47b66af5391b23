"""The names in a batch: "image", "label", "mask", and the keys of the features that the user asked for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features

IMAGE, LABEL, MASK = "image", "label", "mask"


def own_names(catalog: catalog_lib.Catalog, pad: bool = False) -> dict[str, str]:
    """Returns the names that every batch has by itself, each with a description."""
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
    """Returns the features with these keys, each once, in the order of `keys`.

    Args:
        catalog: catalog of the dataset.
        keys: keys of features, from the user.
        own: names that every batch has by itself, from `own_names`.
        list_size: length of all lists in a batch, which adds the name "KEY/count" for each; None keeps their lengths.

    Raises:
        ConfigError: if a feature does not exist, or its key is already a name in the batch.
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
