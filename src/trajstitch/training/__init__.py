"""Training: the training loop, and the small networks that all models consist of."""
