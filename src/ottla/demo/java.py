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
TIMEOUT = 20.0


def reason_against() -> str | None:
    """Why Spark cannot run here, or ``None`` if it can."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "here"
        return f"there is no Java {where}; install Java {NEEDED} or newer, e.g. apt-get install openjdk-17-jre-headless"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=TIMEOUT).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < NEEDED:
        version = found[1] if found else "of unknown version"
        return f"Java {version} is too old; install Java {NEEDED} or newer, e.g. apt-get install openjdk-17-jre-headless"
    return None
