"""``python -m jaxcoll``: the command line, as the console script ``jaxcoll`` starts it."""

import sys

from jaxcoll.cli import main

if __name__ == "__main__":
    sys.exit(main())
