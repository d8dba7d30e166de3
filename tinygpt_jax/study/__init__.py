"""What is done with a run's model: measured, saved, drawn."""
