"""Whether Spark can run here.

Owns the question which Java there is. Must not know Spark. Invariant: the answer comes without starting a JVM that
stays.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

NEEDED = 17
INSTALL = f"install Java {NEEDED} or newer, e.g. apt-get install openjdk-17-jre-headless"
TIMEOUT = 20.0


def reason_against() -> str | None:
    """Why Spark cannot run here, or ``None`` if it can."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "here"
        return f"there is no Java {where}; {INSTALL}"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", timeout=TIMEOUT).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return f"{java} cannot be run: {getattr(error, 'strerror', None) or error}; {INSTALL}"
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None:
        return f"{java} -version names no version; {INSTALL}"
    return f"Java {found[1]} is too old; {INSTALL}" if int(found[1]) < NEEDED else None
