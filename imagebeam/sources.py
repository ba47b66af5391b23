"""The names that a source of your own is made of: `source.by: my_package.pets:Pets`. See docs/own_code.md.

Importing them imports neither Beam nor pydantic.
"""

from imagebeam.transforms.elements import ImageRef, Reason, Reject
from imagebeam.transforms.formats.base_format import Format, Gives, Request
from imagebeam.transforms.formats.own_source import Source
from imagebeam.transforms.sources.image_source import ImageSource, SourceFacts

__all__ = ["Format", "Gives", "ImageRef", "ImageSource", "Reason", "Reject", "Request", "Source", "SourceFacts"]
