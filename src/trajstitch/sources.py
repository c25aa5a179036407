"""Sources: what the name of a data set may be, in the words that the commands' help and messages share.

It imports nothing, so that --help answers at once; what each name means is in formats/__init__.py.
"""

_FILES = "a file (.hdf5, .h5, .npz, .traj)"
# What can be read, and what can be written.
SOURCES = f"{_FILES}, lerobot:FOLDER, robomimic:FILE, imitation:FOLDER, d4rl:NAME, minari:ID, hf:USER/NAME or demo"
TARGETS = f"{_FILES}, lerobot:FOLDER, robomimic:FILE, imitation:FOLDER or minari:ID"
