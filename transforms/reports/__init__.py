"""What a run reports of a dataset: rejects, statistics, changes since the snapshot before, and its HTML page."""
