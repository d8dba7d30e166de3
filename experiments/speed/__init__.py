"""How fast we are, beside PyTorch and Hugging Face, taking turns on the same machine: see README.md."""
