"""XLA on a CPU, set up before JAX starts: sums are right, and can be the same on any number of cores."""

from __future__ import annotations

import os

_WRONG_SUMS = "0.10.2"  # this jaxlib sums squares of a product over 32,769 rows wrongly (jax-ml/jax issue 39103)
THREADS = "PJRT_NPROC"  # the variable that says how many threads XLA has on a CPU
_REMEDY = "--xla_cpu_experimental_ynn_fusion_type=-reduce"


def avoid_wrong_sums() -> None:
    """Keep the jaxlib that sums wrongly from doing so, unless XLA_FLAGS decides; before JAX compiles anything."""
    try:
        from jaxlib.version import __version__ as installed
    except ImportError:
        return
    flags = os.environ.get("XLA_FLAGS", "")
    if installed == _WRONG_SUMS and "ynn_fusion_type" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_REMEDY}".strip()


def use_one_thread() -> None:
    """Let XLA have one thread: with more, it divides sums among them, and they are rounded otherwise."""
    os.environ[THREADS] = "1"
