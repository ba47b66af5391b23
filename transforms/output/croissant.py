"""Describes a dataset in Croissant, the metadata format of MLCommons that catalogs and search engines of datasets read.

Source: the specification of Croissant 1.0; tests load what is written with mlcroissant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import features

FILE = "croissant.json"

_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject", "fileSet", "format"),
    *("includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex"),
    *("repeated", "replace", "samplingRate", "separator", "source", "subField", "transform"),
)
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS},
}
_DATA_TYPES = {features.BYTES: "sc:Text", features.INT64: "cr:Int64", features.FLOAT: "cr:Float32"}
_IMAGES = (features.ENCODED, "image/segmentation/class/encoded", "image/object/mask")
_ABOUT = {  # keys of the section `about` with texts that stand in the file as they are
    "license": "license",
    "url": "url",
    "version": "version",
    "published": "datePublished",
    "citation": "citeAs",
}
_SHARDS = "shards"


def about(catalog: catalog_lib.Catalog) -> dict[str, Any]:
    """Returns the values of the section `about` of the config with which a dataset was written."""
    return {name: value for name, value in catalog.config.get("about", {}).items() if value}


def describe(catalog: catalog_lib.Catalog, suffix: str) -> bytes:
    """Returns the content of `croissant.json`: the same for the same dataset, so without the time of the run.

    Args:
        catalog: of the dataset, whose shards are all in its folder.
        suffix: of the names of its shards.
    """
    given = about(catalog)
    described: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": catalog.name,
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "description": given.get("description") or _count_examples(catalog),
    }
    described |= {key: given[name] for name, key in _ABOUT.items() if name in given}
    described["creator"] = [{"@type": "sc:Person", "name": each} for each in given.get("creators", ())]
    if "publisher" in given:
        described["publisher"] = {"@type": "sc:Organization", "name": given["publisher"]}
    described |= {"distribution": [_file_set(catalog, suffix)], "recordSet": _record_sets(catalog)}
    return json.dumps({name: value for name, value in described.items() if value}, indent=1).encode() + b"\n"


def _count_examples(catalog: catalog_lib.Catalog) -> str:
    counts = ", ".join(f"{split.num_examples:,} in {name}" for name, split in catalog.splits.items())
    return f"Images as TFRecord files of tf.train.Example, written by imagebeam: {counts}."


def _file_set(catalog: catalog_lib.Catalog, suffix: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": _SHARDS,
        "name": _SHARDS,
        "description": f"{catalog_lib.CATALOG_FILE} has the size and the crc32c of each file.",
        "encodingFormat": ["application/x-tfrecord", *(["application/gzip"] if catalog.compression == "gzip" else [])],
        "includes": [f"{name}-*-of-*{suffix}" for name in catalog.splits],
    }


def _record_sets(catalog: catalog_lib.Catalog) -> list[dict[str, Any]]:
    classes = dict(enumerate(catalog.labels, catalog.label_base)) if catalog.label_kind == "class" else {}
    enumerations = {"labels": (features.LABEL, classes)}
    enumerations["object_classes"] = ("image/object/class/label", dict(catalog.object_classes))
    enumerations = {name: (source, names) for name, (source, names) in enumerations.items() if names}
    references = {source: f"{name}/id" for name, (source, _) in enumerations.items()}
    return [
        _table("splits", "cr:Split", {"name": "sc:Text"}, ((name,) for name in catalog.splits)),
        *(
            _table(name, "sc:Enumeration", {"id": "cr:Int64", "name": "sc:Text"}, names.items())
            for name, (_, names) in enumerations.items()
        ),
        {
            "@type": "cr:RecordSet",
            "@id": "examples",
            "name": "examples",
            "field": [
                {
                    "@type": "cr:Field",
                    "@id": "split",  # no feature can have this id
                    "name": "split",
                    "dataType": "sc:Text",
                    "source": {
                        "fileSet": {"@id": _SHARDS},
                        "extract": {"fileProperty": "filename"},
                        "transform": {"regex": r"^(.+)-\d+-of-\d+"},
                    },
                    "references": {"field": {"@id": "splits/name"}},
                },
                *(_feature(feature, references.get(feature.source)) for feature in catalog.features),
            ],
        },
    ]


def _table(name: str, kind: str, columns: Mapping[str, str], rows: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    """Returns a record set whose records are in the file; its first column identifies them."""
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "dataType": kind,
        "key": {"@id": f"{name}/{next(iter(columns))}"},
        "field": [_field(name, column, data_type) for column, data_type in columns.items()],
        "data": [dict(zip((f"{name}/{column}" for column in columns), row)) for row in rows],
    }


def _feature(feature: features.Feature, reference: str | None) -> dict[str, Any]:
    is_image = feature.source in _IMAGES or (features.extra_image_part(feature.source) or ("", ""))[1] == "encoded"
    is_image = is_image and feature.kind == features.BYTES
    return {
        **_field("examples", feature.key, "sc:ImageObject" if is_image else _DATA_TYPES[feature.kind]),
        "description": features.meaning_of(feature.source),
        "source": {"fileSet": {"@id": _SHARDS}, "extract": {"column": feature.key}},
        **({"repeated": True} if feature.many else {}),
        **({"references": {"field": {"@id": reference}}} if reference else {}),
    }


def _field(record_set: str, name: str, data_type: str) -> dict[str, Any]:
    return {"@type": "cr:Field", "@id": f"{record_set}/{name}", "name": name, "dataType": data_type}
