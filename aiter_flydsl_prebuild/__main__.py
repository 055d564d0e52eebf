"""``python -m aiter_flydsl_prebuild``: the command line."""

import sys

from .builder.cli import main

if __name__ == "__main__":
    sys.exit(main())
