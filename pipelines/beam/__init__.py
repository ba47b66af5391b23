"""Beam as the jobs use it: which runner, its options, and an import that takes as little time as possible."""
