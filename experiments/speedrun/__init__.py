"""The shortest time to a validation loss of 1.88 nats per character."""
