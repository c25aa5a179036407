"""Bench: measures the speed of trajstitch on this machine."""
