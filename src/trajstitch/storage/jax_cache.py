"""JAX cache: keep programs compiled for a GPU between runs; compiling there takes longer than many stages do."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def keep_compiled() -> None:
    """Use JAX's persistent cache, in the user's cache folder unless JAX_COMPILATION_CACHE_DIR says otherwise.

    Not on a CPU: programs compile fast there, and those compiled for one processor may not run on another.
    """
    if jax.default_backend() == "cpu" or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(home / "trajstitch" / "compiled"))  # type: ignore[no-untyped-call]
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)  # type: ignore[no-untyped-call]
