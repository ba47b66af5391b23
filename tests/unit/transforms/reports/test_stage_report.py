from __future__ import annotations

from typing import Any

from imagebeam.transforms.reports import stage_report
from imagebeam.transforms.shard import writer_processes


def test_error_in_a_share_of_the_thumbnails_is_why_there_is_no_page() -> None:
    broken: Any = stage_report._Task("/out", "/out/staging", catalog=None, statistics={}, removed=None, changes=b"{}")  # type: ignore[arg-type]
    with writer_processes.start(2) as pool:
        page = stage_report._make_somewhere(broken, pool.token)
    assert (page.html, page.problem.partition(":")[0]) == (b"", "AttributeError")
