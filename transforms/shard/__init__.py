"""Writes one shard: what a writer process imports. Nothing here imports Beam, so that a writer process is small."""
