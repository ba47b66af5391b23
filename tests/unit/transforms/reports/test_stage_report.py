from __future__ import annotations

from typing import Any

from imagebeam.transforms.reports import stage_report
from imagebeam.transforms.shard import writer_processes

NEEDED = ("PIL.JpegImagePlugin", "imagebeam.transforms.html_report.make_report")


def test_writer_process_that_is_prepared_has_imported_what_a_page_needs() -> None:
    with writer_processes.start(1) as pool:
        assert pool.submit(stage_report.prepare, None).result() is None
        imported = pool.submit(eval, f"[name for name in {NEEDED} if name in __import__('sys').modules]").result()
    assert tuple(imported) == NEEDED


def test_error_in_a_share_of_the_thumbnails_is_why_there_is_no_page() -> None:
    broken: Any = stage_report._Task("/out", "/out/staging", catalog=None, statistics={}, removed=None, changes=b"{}")  # type: ignore[arg-type]
    with writer_processes.start(2) as pool:
        page = stage_report._make_somewhere(broken, pool.token)
    assert (page.html, page.problem.partition(":")[0]) == (b"", "AttributeError")
