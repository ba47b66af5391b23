"""Benchmarks: scripts that print one JSON object each. See README.md."""
