from __future__ import annotations

import io
import json

import pytest

from imagebeam.transforms.objects import json_depth, object_tables


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"images": [' * 500 + b"]}" * 500, id="as deep as allowed"),
        pytest.param(json.dumps({"info": "[" * 3_000}).encode(), id="brackets in a text"),
        pytest.param(json.dumps({"info": '[{"\\' * 2_000}).encode(), id="brackets and quotes in a text"),
        pytest.param(b"[" * 900 + b"]" * 900 + b"[" * 900, id="side by side"),
        pytest.param(b"", id="empty"),
    ],
)
@pytest.mark.parametrize("chunk", [1 << 20, 7, 1])
def test_annotation_files_are_not_too_deep(data: bytes, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_depth, "_CHUNK_BYTES", chunk)
    json_depth.check_depth(io.BytesIO(data), "a.json")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"[" * 100_000, id="lists"),
        pytest.param(b'{"images": ' * 1_001, id="objects"),
        pytest.param(b'["[", ' * 1_001, id="lists with texts"),
        pytest.param(b"[1, " * 600 + b'"]]]]", ' + b"[{" * 201, id="closed in a text alone"),
    ],
)
@pytest.mark.parametrize("chunk", [1 << 20, 3])
def test_json_that_is_too_deep_is_refused(data: bytes, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_depth, "_CHUNK_BYTES", chunk)
    with pytest.raises(
        object_tables.AnnotationFileError, match=r"'a.json' holds lists or objects nested more than 1,000 deep, so"
    ):
        json_depth.check_depth(io.BytesIO(data), "a.json")
