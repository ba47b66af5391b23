from __future__ import annotations

import io
import json

import pytest

from imagebeam.transforms.sources import annotation_tables


def test_annotation_files_are_not_too_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in [
        b'{"images": [' * 500 + b"]}" * 500,  # as deep as allowed
        json.dumps({"info": "[" * 3_000}).encode(),  # brackets in a text
        json.dumps({"info": '[{"\\' * 2_000}).encode(),  # brackets and quotes in a text
        b"[" * 900 + b"]" * 900 + b"[" * 900,  # side by side
        b"",  # empty
    ]:
        for chunk in [1 << 20, 7, 1]:
            monkeypatch.setattr(annotation_tables, "_CHUNK_BYTES", chunk)
            annotation_tables.check_depth(io.BytesIO(data), "a.json")


def test_json_that_is_too_deep_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in [
        b"[" * 100_000,  # lists
        b'{"images": ' * 1_001,  # objects
        b'["[", ' * 1_001,  # lists with texts
        b"[1, " * 600 + b'"]]]]", ' + b"[{" * 201,  # closed in a text alone
    ]:
        for chunk in [1 << 20, 3]:
            monkeypatch.setattr(annotation_tables, "_CHUNK_BYTES", chunk)
            with pytest.raises(
                annotation_tables.AnnotationFileError,
                match=r"'a.json' holds lists or objects nested more than 1,000 deep, so",
            ):
                annotation_tables.check_depth(io.BytesIO(data), "a.json")
