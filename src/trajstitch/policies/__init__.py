"""Policies: networks and planners that choose actions, and their files."""
