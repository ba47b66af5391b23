"""Parquet files that hold the bytes of images."""
