"""Opens the source of a config, and the rules that find label and split of its images.

Imports no Beam: a local job lists its images, with labels and splits, while Beam is imported.
"""

from __future__ import annotations

from imagebeam.pipelines import job_rules, open_source
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.inputs import label_files, opened_source
from imagebeam.transforms import reference_order
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.sources import label_rule, split_rule


def open_rules(config: config_lib.Config, is_update: bool = False) -> job_rules.ImageRules:
    """Returns the source of a config and its rules.

    Args:
        config: of the job.
        is_update: whether images are left out that the snapshot before has.

    Raises:
        ConfigError: if an address, the manifest's columns, the IDX files or the vocabulary is not as the config says,
            or a package is missing.
    """
    source = open_source.make_source(config)
    in_column = config.label.by == "column"
    # with label.columns, the columns are the vocabulary: a class without an image keeps its id
    vocabulary = label_files.read_vocabulary(config.label.vocabulary, in_column) or config.label.columns or None
    names = label_names.LabelNames(
        vocabulary or opened_source.class_names(source),
        label_files.read_texts(config.label.texts, in_column),
        label_files.read_lists(config.label.lists),
    )
    group, pattern = config.split.group, config.label.pattern or ""
    label = label_rule.LabelRule(
        by=config.label.by,
        level=1 if config.split.by == "directory" else 0,
        pattern=config.label.pattern,
        group=group if group and f"(?P<{group}>" in pattern else None,  # otherwise it is a column
        kind=config.label.kind,
        names=names,
        advice=opened_source.advise_on_folders(config, source),
    )
    split = split_rule.SplitRule(
        by=config.split.by,
        name=config.split.name,
        fractions=tuple((config.split.fractions or {}).items()),
        counts=tuple((config.split.counts or {}).items()),
        carve=tuple((name, carve.split, carve.first) for name, carve in config.split.carve.items()),
        stratify=config.split.stratify,
        grouped=config.split.group is not None,
        seed=config.split.seed,
        rename=tuple(config.split.rename.items()),
        declared=config.split.declared,
    )
    return job_rules.ImageRules(
        source,
        open_source.listing_rules_of(config),
        names,
        label,
        split,
        order=reference_order.order_of(config.output.shuffle, config.split.seed),
        is_complete=not is_update and not config.duplicates.settings().only("drop").is_on,
    )
