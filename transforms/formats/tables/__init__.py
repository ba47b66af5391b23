"""Tables with a row for each image: CSV, JSON lines, JSON and Parquet."""
