"""Code of the user that a config names: functions over images, for features and for labels.

Importing this module imports no Beam.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from imagebeam import errors
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import sections
from imagebeam.transforms import user_code
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.images import checked_image, image_functions, prepare
from imagebeam.transforms.shard import feature_functions
from imagebeam.transforms.sources import image_source

_OF_PLACES = (  # sources of features that refer to places in an image
    *(f"image/object/{name}" for name in ("area", "bbox", "corners", "keypoint", "mask")),
    "image/segmentation",
)


class OwnCode(NamedTuple):
    """All code of the user that a job calls for its images."""

    label: user_code.UserCode | None
    images: image_functions.ImageFunctions
    features: feature_functions.FeatureFunctions
    limits: checked_image.Limits  # of every image, with a limit of time where code of the user runs
    digests: dict[str, str]  # by setting: of the source of the module, where no version was given


def columns_of(config: config_lib.Config, source: image_source.ImageSource) -> tuple[str, ...]:
    """Returns the sources of the values in ImageRef.columns, in their order."""
    return (*source.facts().columns, *(f"columns/{name}" for name in config.columns))


def find(config: config_lib.Config, source: image_source.ImageSource) -> OwnCode:
    """Returns the code of the user that a config names.

    Raises:
        ConfigError: if there is no such code, or the images are of a kind that it cannot change.
    """
    images = _image_functions(config, source)
    limits = checked_image.Limits(**config.image.limits.model_dump())
    if (images or config.features.functions) and limits.max_seconds is None:
        limits = dataclasses.replace(limits, max_seconds=user_code.MAX_SECONDS)
    label = sections.code_of("label.function", config.label.function)
    computing = _feature_functions(config, source, limits.max_seconds or user_code.MAX_SECONDS)
    of_features = (each.code for each in (*computing.functions, *computing.inferred))
    codes = (label, images.function, images.keep_if, *of_features)
    digests = {code.setting: code.digest for code in codes if code is not None and code.digest}
    if of_source := source.facts().code:
        digests[base_format.SETTING] = of_source
    return OwnCode(label, images, computing, limits, digests)


def _image_functions(config: config_lib.Config, source: image_source.ImageSource) -> image_functions.ImageFunctions:
    """Returns the functions of the user that see each image.

    Raises:
        ConfigError: if there is no such function, or the images are of a kind that it cannot change.
    """
    image, gives, facts = config.image, config.source.gives(), source.facts()
    if image.function is not None and gives.extra_images:
        raise errors.ConfigError(
            "function-of-extra-images",
            f"image.function would change one of several images of an example ({', '.join(gives.extra_images)} as "
            "well): leave it out, or convert each of them alone",
        )
    if image.function is not None and (facts.shape is not None or facts.is_raw) and image.encode == prepare.KEEP:
        raise errors.ConfigError(
            "function-of-bare-pixels",
            "image.function changes pixels, and those of this source are stored as they are: set image.encode: png, or "
            "raw",
        )
    return image_functions.ImageFunctions(
        sections.code_of("image.function", image.function),
        sections.code_of("image.keep_if", image.keep_if),
        columns_of(config, source),
        keeps_size=any(each.source.startswith(_OF_PLACES) for each in config.resolve_features()),
    )


def _feature_functions(
    config: config_lib.Config, source: image_source.ImageSource, max_seconds: float
) -> feature_functions.FeatureFunctions:
    """Returns the functions of the user that compute features.

    Raises:
        ConfigError: if there is no such function.
    """
    given = config.features.functions
    functions: dict[bool, list[feature_functions.FeatureFunction]] = {False: [], True: []}
    for feature in config.features.computed():
        one = given[feature.key]
        code = sections.code_of(f"features.functions {feature.key}", one)
        assert code is not None
        functions[one.run_inference].append(feature_functions.FeatureFunction(feature, code, one.batch))
    columns, inferred = columns_of(config, source), tuple(functions[True])
    if inferred and config.image.frames == prepare.EACH:
        raise errors.ConfigError(
            "inference-of-frames",
            f"features.functions {inferred[0].feature.key}: run_inference is for files of one image each, and "
            "image.frames is each: leave out one of the two",
        )
    return feature_functions.FeatureFunctions(tuple(functions[False]), columns, inferred, max_seconds)
