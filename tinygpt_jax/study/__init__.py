"""The verbs that work on a run: measure it, save and draw the results, write a page on it."""
