"""Publication of staged files: the rights to commit, the record of the run, and the moves to final names."""
