"""``python -m jaxcoll`` starts the command line, like the console script ``jaxcoll``."""

import sys

from jaxcoll.cli import main

if __name__ == "__main__":
    sys.exit(main())
