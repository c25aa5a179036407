"""Models: learnt from the data before stitching or planning; inputs and outputs are in raw units."""
