"""The bytes of packed files: gzip, Snappy, zip, Parquet and NumPy, without Beam."""
