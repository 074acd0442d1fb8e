"""A Sphinx extension: the Python blocks of notebooks/*.md are run when the site is built.

Below each block stands what it printed, and its last expression as a notebook would show it: a
table, a figure or its repr. Nothing is stored, so no output can be stale. There is no Jupyter
kernel: it would take 180 MB, and one process per page does the same. The pages stay Markdown.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)

# Runs blocks given as JSON on stdin; writes figures into the folder it is started in.
_RUNNER = """
import ast, contextlib, io, json, sys
names, results = {"__name__": "__main__"}, []
for number, source in enumerate(json.load(sys.stdin)):
    tree, value, printed = ast.parse(source), None, io.StringIO()
    last = tree.body.pop().value if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"block {number}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last), f"block {number}", "eval"), names)
    result = {"printed": printed.getvalue()}
    if hasattr(value, "savefig"):
        result["figure"] = f"{sys.argv[1]}-{number}.png"
        value.savefig(result["figure"], dpi=90)
    elif hasattr(value, "_repr_html_"):
        result["html"] = value._repr_html_()
    elif value is not None:
        result["printed"] += repr(value)
    results.append(result)
json.dump(results, sys.stdout)
"""


def run_page(text: str, name: str, folder: Path) -> list[dict[str, str]]:
    """What each block of a page gives: ``printed``, and ``html`` or ``figure``, a file in folder.

    Raises:
        RuntimeError: a block fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER, name],
        input=json.dumps(BLOCK.findall(text)),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"notebooks/{name}.md does not run: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def with_outputs(text: str, results: list[dict[str, str]]) -> str:
    """The page with each block's results below it."""
    found = iter(results)

    def below(block: re.Match[str]) -> str:
        result, parts = next(found), [block[0]]
        if result["printed"]:
            parts.append(f"```text\n{result['printed'].rstrip()}\n```\n")
        if "html" in result:
            parts.append(f"```{{raw}} html\n{result['html']}\n```\n")
        if "figure" in result:
            parts.append(f"![What the block above draws](figures/{result['figure']})\n")
        return "\n".join(parts)

    return BLOCK.sub(below, text)


def _read(app, name: str, source: list[str]) -> None:
    folder, _, page = name.rpartition("/")
    if folder == "notebooks":
        figures = Path(app.srcdir) / "notebooks" / "figures"
        source[0] = with_outputs(source[0], run_page(source[0], page, figures))


def setup(app) -> dict[str, bool]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
