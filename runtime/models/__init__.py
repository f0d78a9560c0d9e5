"""Models as data: architecture records, weights, tapes."""
