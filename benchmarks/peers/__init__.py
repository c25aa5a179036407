"""Comparisons with other libraries, each in a virtual environment of its own."""
