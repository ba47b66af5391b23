"""How records become batches: which ones and in what order, their bytes, their pixels, and who is fed."""
