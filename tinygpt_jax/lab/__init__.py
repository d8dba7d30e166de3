"""The head lab: what every head does, measured."""
