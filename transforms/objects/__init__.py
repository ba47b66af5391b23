"""Annotation files as tools write them: parsers that give the objects of images, with boxes, classes and masks."""
