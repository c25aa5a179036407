"""Stitching: the graph of plausible steps, and new trajectories along its edges (paper, Algorithm 1)."""
