"""Storage: files are written whole or not at all, and without pickle."""
