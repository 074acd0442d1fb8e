"""``python -m jaxcoll.execute.links``: compiles the player beside this file."""

import sys
from pathlib import Path

from jaxcoll.execute.links.build import build

try:
    print(build(Path(__file__).parent))
except RuntimeError as error:
    sys.exit(f"jaxcoll.execute.links: {error}")
