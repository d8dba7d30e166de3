"""When induction appears, and what it takes: see README.md."""
