"""Evaluation: simulators stepped in batches; policies rolled out and scored in them."""
