"""One page on a run, from saved results alone."""
