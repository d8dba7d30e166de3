from tinygpt_jax.cli import entry

entry()
