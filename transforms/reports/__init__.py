"""Reports of a dataset: rejects, statistics, changes since the snapshot before, and the HTML page."""
