"""Figures and words of saved results, by families of kinds; `registry` leads from a kind to both. No model is run here.

matplotlib is the optional extra `plot`.
"""

import contextlib
import os
import sys

from tinygpt_jax.errors import UserError


def require_matplotlib() -> None:
    """Raises UserError, which says what to install, where matplotlib is missing."""
    if sys.modules.get("matplotlib"):
        return
    left = os.environ.pop("MPLBACKEND", None)  # by a notebook, say; one that matplotlib lacks would stop its import
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("figures need matplotlib, which is missing: pip install matplotlib") from error
    finally:
        if left is not None:
            os.environ["MPLBACKEND"] = left
    if left is not None:  # for figures of the user's own: none here needs a backend
        with contextlib.suppress(ValueError):
            matplotlib.rcParams["backend"] = left
