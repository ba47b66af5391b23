"""Resizes JPEGs with img2dataset, 2 processes with 8 threads each, into tars of WebDataset, which it writes fastest."""

from __future__ import annotations

import argparse
import json
import os
import pathlib

import img2dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--stretch", action="store_true", help="not for this peer")
    args = parser.parse_args()
    output = pathlib.Path(args.output)
    urls = output / "urls.txt"
    names = sorted(os.listdir(args.input))
    urls.write_text("".join(f"{(pathlib.Path(args.input).resolve() / name).as_uri()}\n" for name in names))
    img2dataset.download(
        url_list=str(urls),
        output_folder=str(output / "dataset"),
        image_size=args.size,
        resize_mode="keep_ratio",
        resize_only_if_bigger=True,
        encode_quality=95,
        output_format="webdataset",
        processes_count=2,
        thread_count=8,
        number_sample_per_shard=-(-len(names) // 16),
        compute_hash=None,
        extract_exif=False,
        disallowed_header_directives=[],
    )
    stats = [json.loads(path.read_text()) for path in (output / "dataset").glob("*_stats.json")]
    if (written := sum(each["successes"] for each in stats)) != len(names):
        raise SystemExit(f"img2dataset wrote {written:,} images, expected {len(names):,}")


if __name__ == "__main__":
    main()
