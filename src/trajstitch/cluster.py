"""Cluster: connect to Ray, an optional package, by address or on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trajstitch.errors import InputError
from trajstitch.xla import THREADS


@contextmanager
def connected(address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """Yield Ray, connected to a cluster; InputError in one sentence where that is not possible.

    Arguments:
        address: of a running cluster, such as HOST:6379, or local: a cluster of this machine, which ends with the
            block; unless given RAY_ADDRESS, or else local.
        cpus: CPUs of a cluster of this machine; its cores unless given.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # a task without a GPU sees none
    try:
        import ray
    except ImportError as error:
        raise InputError("a Ray cluster needs Ray; run pip install 'trajstitch[ray]'") from error
    if ray.is_initialized():  # the caller's own connection
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"include_dashboard": False, "num_cpus": cpus, "_node_ip_address": "127.0.0.1"}
    if THREADS in os.environ:  # which other machines' processes do not inherit
        options["runtime_env"] = {"env_vars": {THREADS: os.environ[THREADS]}}
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = "on this machine" if address == "local" else f"at {address}"
        raise InputError(f"no Ray cluster {where}: {' '.join(str(error).split())[:300]}") from error
    try:
        yield ray
    finally:
        ray.shutdown()
