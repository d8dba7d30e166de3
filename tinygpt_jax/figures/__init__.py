"""Figures and words of saved results, by families of kinds; `registry` leads from a kind to both. No model is run here.

matplotlib is the optional extra `plot`.
"""

from tinygpt_jax.errors import UserError


def require_matplotlib() -> None:
    """Raises UserError, which says what to install, where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("figures need matplotlib, which is missing: pip install matplotlib") from error
