"""Write ``constraints.txt`` from the packages that are installed in this environment, one exact pin per line.

``make pins`` runs it after a dependency was added to ``pyproject.toml`` and installed. Owns the file. It must have only names and
versions, no URLs and no hashes. Invariant: the build dependencies (setuptools, Cython) are pinned as well.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
NOT_OURS = {"pip", "ottla"}
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([A-Za-z0-9._+!-]+)$")


def installed() -> list[str]:
    """Return ``name==version`` of every package in this environment except pip and Ottla itself."""
    freeze = [sys.executable, "-m", "pip", "freeze", "--all", "--exclude-editable"]
    lines = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout.splitlines()
    pins = [match for line in lines if (match := PIN.match(line)) and match[1].lower() not in NOT_OURS]
    return sorted((pin[0] for pin in pins), key=str.lower)


if __name__ == "__main__":
    head = "# Exact versions of all that `make install` brings. Written by `make pins`; not edited by hand.\n"
    CONSTRAINTS.write_text(head + "\n".join(installed()) + "\n", encoding="utf-8")
