"""Annotations in the syntaxes of data sets and labeling tools: one source, a short parser for each syntax."""
