"""Pages opened in headless Chromium: findings of a script, errors and requests."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
)

_WATCH = """<script>
window.faults = [];
addEventListener("error", (event) => faults.push(event.message));
addEventListener("securitypolicyviolation", (event) => faults.push(event.blockedURI));
</script>"""


def look(page: str, script: str, folder: Path) -> dict[str, Any]:
    """Open a page, run a script on it that returns an object, and take that out again.

    To the object come ``faults``, errors and refused requests, and ``requests``, all others.
    """
    report = f"""<script>
    const found = (() => {{ {script} }})();
    found.faults = faults;
    found.requests = performance.getEntriesByType("resource").map((entry) => entry.name);
    const said = document.createElement("pre");
    said.id = "found";
    said.textContent = JSON.stringify(found);
    document.body.appendChild(said);
    </script>"""
    path = folder / "page.html"
    watched = page.replace("<body>", f"<body>{_WATCH}", 1)
    path.write_text(watched.replace("</body>", f"{report}</body>"), encoding="utf-8")
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1200,900", "--dump-dom",
        "--enable-logging=stderr", "--virtual-time-budget=1000", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)  # type: ignore[arg-type]
    written = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert written is not None, done.stderr[-2000:]
    found = json.loads(html.unescape(written[1]))
    found["console"] = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return found
