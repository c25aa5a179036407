"""The version of trajstitch, and the versions of what it runs on."""

__version__ = "0.2.0"

_PACKAGES = ("jax", "equinox", "optax", "numpy", "scipy", "gymnasium", "mujoco", "matplotlib")


def versions() -> dict[str, str]:
    """Return the versions of trajstitch, Python and the packages that results depend on."""
    import importlib.metadata
    import platform
    from contextlib import suppress

    found = {"trajstitch": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):  # improve needs no simulator, so there may be none
            found[name] = importlib.metadata.version(name)
    return found
