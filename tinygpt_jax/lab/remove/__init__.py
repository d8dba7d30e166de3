"""What a model loses without a part of it."""
