"""Figures from saved results: they read, and never train or run a model. matplotlib is the optional extra `plot`."""
