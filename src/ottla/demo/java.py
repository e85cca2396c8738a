"""The check for a Java that Spark can use.

Owns the search for Java and its version. Must not know Spark. Invariant: no JVM keeps running.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

REQUIRED_VERSION = 17
INSTALL = f"install Java {REQUIRED_VERSION} or newer, e.g. apt-get install openjdk-17-jre-headless"
TIMEOUT = 20.0


def missing_java() -> str | None:
    """Return why Spark cannot run, or ``None`` if it can."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        return f"there is no Java {where}; {INSTALL}"
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", timeout=TIMEOUT).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return f"cannot run {java}: {getattr(error, 'strerror', None) or error}; {INSTALL}"
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is None:
        return f"the output of {java} -version has no version; {INSTALL}"
    return f"Java {version[1]} is too old; {INSTALL}" if int(version[1]) < REQUIRED_VERSION else None
