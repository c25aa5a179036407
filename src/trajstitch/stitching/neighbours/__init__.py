"""Neighbours: the exact nearest states of every state, on a CPU or a GPU."""
