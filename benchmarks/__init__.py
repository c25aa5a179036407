"""Benchmarks behind the tables in docs/; run each from the repository root as `python -m benchmarks.NAME`."""
