"""Images that repeat others: how they are found, counted and reported."""
