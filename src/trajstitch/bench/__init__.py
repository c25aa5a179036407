"""Bench: whole tables of data sets, methods and seeds, and the speed of every stage beside a plain loop."""
