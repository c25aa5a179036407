"""Entry point of `python -m trajstitch`, for when the script is not on the path."""

import sys

from trajstitch.cli import main

sys.exit(main())
