"""What a model's parts do, read from its weights and activations."""
