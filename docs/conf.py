"""The site of these pages, by Sphinx: ``scripts/docs`` builds it into results/site."""

import importlib.metadata
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from generated_pages import write_live_pages, write_pages  # noqa: E402

project = "jaxcoll"
author = "The jaxcoll developers"
copyright = f"{author}, Apache License 2.0"
release = version = importlib.metadata.version("jaxcoll")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
extensions += ["executed_blocks", "cross_links"]
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 3
# Pages also point to files of the repository, which a site has not. Fields of one name, such as
# `size`, are those of the class where they stand.
suppress_warnings = ["myst.xref_missing", "myst.header", "ref.python"]
exclude_patterns = ["experiments", "site"]
html_extra_path = ["reference/live", "extra"]

autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "code"

html_theme = "furo"
html_title = f"jaxcoll {release}"
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["figures.css"]

write_pages(HERE / "reference")
write_live_pages(HERE / "reference" / "live")
