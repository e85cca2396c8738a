"""The search for a Java that is new enough.

Owns where Java is looked for, and how its version is read. Must not know what Java will run. Invariant: no JVM keeps running.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from ottla.errors import OttlaError

INSTALL = "install Java 17 or newer, e.g. apt-get install openjdk-17-jre-headless"
TIMEOUT = 20.0
"""Seconds that ``java -version`` may take."""


def find_java(required_version: int) -> str:
    """Return the path of Java: that of ``JAVA_HOME`` if the variable is set, otherwise the first on the ``PATH``.

    Raises ``OttlaError``, with the command that installs Java as its hint, if there is none, if it cannot be run, or if it is older
    than ``required_version``.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None:
        raise OttlaError(f"there is no Java {f'in JAVA_HOME ({home})' if home else 'on the PATH'}", hint=INSTALL)
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", timeout=TIMEOUT).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise OttlaError(f"cannot run {java}: {getattr(error, 'strerror', None) or error}", hint=INSTALL, cause=error) from error
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is None:
        raise OttlaError(f"the output of {java} -version has no version", hint=INSTALL)
    if int(version[1]) < required_version:
        raise OttlaError(f"Java {version[1]} is too old", hint=INSTALL)
    return java
