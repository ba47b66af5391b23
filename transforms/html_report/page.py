"""Puts the sections together into one file."""

from __future__ import annotations

from imagebeam import plural
from imagebeam.transforms.html_report import facts as facts_lib
from imagebeam.transforms.html_report import markup, sections, style
from imagebeam.transforms.images import image_formats

_SECTIONS = (
    ("overview", "Overview", sections.overview),
    ("pictures", "Pictures", sections.pictures),
    ("labels", "Labels", sections.labels),
    ("images", "Images", sections.images),
    ("rejects", "Rejects", sections.rejects),
    ("duplicates", "Duplicates", sections.duplicates),
    ("changes", "Changes", sections.changes),
    ("features", "Features", sections.stored_features),
    ("origin", "Origin", sections.origin),
)


def render(facts: facts_lib.Facts) -> bytes:
    """Returns the page in UTF-8, below 1 MB. The same facts give the same bytes."""
    catalog = facts.catalog
    made = [(name, title, make(facts)) for name, title, make in _SECTIONS]
    links = "\n".join(f'<a href="#{name}">{title}</a>' for name, title, content in made if content)
    name = markup.attribute(catalog.name[: markup.MAX_CHARS])
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{style.POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="robots" content="noindex">
<link rel="icon" href="data:,">
<title>{name}: {facts.num_images:,} images</title>
<style>{style.CSS}</style>
</head>
<body>
<header>
<h1>{markup.text(catalog.name)}</h1>
<p class="lead">{_lead(facts)}</p>
<nav aria-label="Sections">
{links}
</nav>
</header>
<main>
{"".join(content for _, _, content in made)}</main>
<footer>Written by imagebeam {markup.text(catalog.versions.get("imagebeam", ""))} from the shards and the catalog of
the dataset.</footer>
</body>
</html>
"""
    return text.encode()


def _lead(facts: facts_lib.Facts) -> markup.Html:
    catalog = facts.catalog
    formats = ["bare pixels" if name == image_formats.RAW else name.upper() for name in sorted(facts.total("formats"))]
    kinds = {"int64": "with an integer as the target", "float": "with a number as the target"}
    parts = [
        plural.count(facts.num_images, "image"),
        f"of {plural.count(len(catalog.labels), 'class')}"
        if catalog.labels
        else kinds.get(catalog.label_kind or "", ""),
        f"stored as {' and '.join(formats)}" if formats else "",
    ]
    return markup.text(", ".join(filter(None, parts)) + ", in TFRecord files of tf.train.Example.", 300)
