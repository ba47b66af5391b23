"""Resizes JPEGs with img2dataset, 2 processes with 8 threads each, into tars of WebDataset, which it writes fastest."""

from __future__ import annotations

import json
import pathlib
import sys

import img2dataset


def main(source: str, size: str, folder: str) -> None:
    output = pathlib.Path(folder)
    urls = output / "urls.txt"
    paths = sorted(pathlib.Path(source).resolve().iterdir())
    urls.write_text("".join(f"{path.as_uri()}\n" for path in paths))
    img2dataset.download(
        url_list=str(urls),
        output_folder=str(output / "dataset"),
        image_size=int(size),
        resize_mode="keep_ratio",
        resize_only_if_bigger=True,
        encode_quality=95,
        output_format="webdataset",
        processes_count=2,
        thread_count=8,
        number_sample_per_shard=-(-len(paths) // 16),
        compute_hash=None,
        extract_exif=False,
        disallowed_header_directives=[],
    )
    stats = [json.loads(path.read_text()) for path in (output / "dataset").glob("*_stats.json")]
    if (written := sum(each["successes"] for each in stats)) != len(paths):
        raise SystemExit(f"img2dataset wrote {written:,} images, expected {len(paths):,}")


if __name__ == "__main__":
    main(*sys.argv[1:])
