"""Check an installed wheel of Ottla.

    python tools/check_wheel.py

It checks that the hot modules are compiled, that the wheel contains no C sources, and that the README's first program prints the
expected output and nothing to stderr. ``cibuildwheel`` and ``tools/build_wheels.py`` run it in an environment with the wheel and
the other packages of the README's ``pip install``. Must not import Ottla from the checkout. Invariant: exit code 0 means all checks
passed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
PRINTED = "b'table 7' b'two coffees'\n"


def run(program: str) -> str:
    """Return the output of a program. Exits if it fails or writes to stderr."""
    with tempfile.TemporaryDirectory() as elsewhere:  # not in the checkout, whose package `import ottla` would find first
        command = [sys.executable, "-W", "default", "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=elsewhere, check=False)
    if done.returncode or done.stderr:
        sys.exit(f"exit code {done.returncode}, stderr:\n{done.stderr}\nof the program:\n{program}")
    return done.stdout


def main() -> None:
    """Run all checks."""
    home, compiled = run("import ottla, ottla.records as r; print(ottla.__file__); print(r.COMPILED)").split()
    if compiled != "True":
        sys.exit(f"{home} is not compiled")
    if sources := sorted(Path(home).parent.rglob("*.c")):
        sys.exit(f"the wheel contains C sources: {', '.join(map(str, sources))}")
    first = re.search(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert first is not None, "the README has no program"
    if (printed := run(first[1])) != PRINTED:
        sys.exit(f"the first program of the README printed {printed!r}, not {PRINTED!r}")
    print(f"{home}: compiled, and the README's first program works")


if __name__ == "__main__":
    main()
