"""One run's activations put into another."""
