"""Keeps whole shards of remote datasets on a local disk, within a limit of bytes."""
