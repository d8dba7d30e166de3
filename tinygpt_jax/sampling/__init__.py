"""Text from a trained model."""

from tinygpt_jax.sampling.generate import Sample, generate, sample, stream
