"""The set-up scripts, run with fake java, apt-get and python3 commands.

The tests do not modify the machine: the PATH has only the fake commands, and the standard ones that the scripts need.
"""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
PLAIN = ("sh", "sed", "grep", "head", "cat", "rm", "env", "chmod", "dirname")
JAVA = """#!/bin/sh
echo 'openjdk version "{version}" 2025-01-01' >&2
"""


@dataclass
class Machine:
    """A machine that has only the commands that a test adds."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        for name in PLAIN:
            program = shutil.which(name)
            assert program is not None
            self.folder.joinpath(name).symlink_to(program)
        self.put("id", "#!/bin/sh\necho 0\n")

    def put(self, name: str, script: str) -> None:
        program = self.folder / name
        program.write_text(script)
        program.chmod(0o755)

    def put_apt_get(self, **installs: tuple[str, str]) -> None:
        """``package=(program, script)``: the program that each package installs; other packages do not exist."""
        script = [f"#!{sys.executable}", "import pathlib, sys", f"here = pathlib.Path({str(self.folder)!r})"]
        script += ["with (here / 'apt.log').open('a') as log: print(*sys.argv[1:], file=log)"]
        script += [f"offer = { ({name.replace('_', '-'): what for name, what in installs.items()})!r}"]
        script += ["if sys.argv[1] == 'update': sys.exit(0)", "if sys.argv[-1] not in offer: sys.exit(100)"]
        script += ["name, text = offer[sys.argv[-1]]", "(here / name).write_text(text)", "(here / name).chmod(0o755)"]
        self.put("apt-get", "\n".join(script) + "\n")

    def apt_calls(self) -> list[str]:
        log = self.folder / "apt.log"
        return log.read_text().splitlines() if log.exists() else []

    def run(self, *command: str | Path, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.folder), **self.environment}
        return subprocess.run(command, env=environment, stdin=stdin, capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "bin")


class TestEnsureJava:
    script = TOOLS / "ensure_java.sh"

    @pytest.mark.parametrize("version", ["17.0.15", "21.0.3", "25"])
    def test_says_nothing_where_java_is_new_enough(self, machine: Machine, version: str) -> None:
        machine.put("java", JAVA.format(version=version))
        machine.put_apt_get()
        done = machine.run(self.script)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert machine.apt_calls() == []

    def test_java_home_counts(self, machine: Machine, tmp_path: Path) -> None:
        home = tmp_path / "jdk"
        home.joinpath("bin").mkdir(parents=True)
        machine.put("java", JAVA.format(version="17.0.1"))
        machine.folder.joinpath("java").rename(home / "bin" / "java")
        machine.environment["JAVA_HOME"] = str(home)
        assert machine.run(self.script).returncode == 0

    @pytest.mark.parametrize("version", [None, "1.8.0_392", "11.0.21"])
    def test_installs_as_root_without_a_terminal(self, machine: Machine, version: str | None) -> None:
        if version:
            machine.put("java", JAVA.format(version=version))
        machine.put_apt_get(openjdk_17_jre_headless=("java", JAVA.format(version="17.0.15")))
        done = machine.run(self.script)
        assert (done.returncode, done.stdout) == (0, "Java 17 is missing: installing it with apt-get\n")

    def test_takes_a_newer_java_where_17_is_not_offered(self, machine: Machine) -> None:
        machine.put_apt_get(openjdk_21_jre_headless=("java", JAVA.format(version="21.0.7")))
        assert machine.run(self.script).returncode == 0
        assert [call.split()[-1] for call in machine.apt_calls()] == [
            "-qq",
            "openjdk-17-jre-headless",
            "openjdk-21-jre-headless",
        ]

    def test_says_so_when_the_install_fails(self, machine: Machine) -> None:
        machine.put_apt_get()
        done = machine.run(self.script)
        assert done.returncode == 1
        assert "install it by hand" in done.stdout.splitlines()[-1]

    def test_installs_nothing_unless_root(self, machine: Machine) -> None:
        machine.put_apt_get(openjdk_17_jre_headless=("java", JAVA.format(version="17.0.15")))
        machine.put("id", "#!/bin/sh\necho 1000\n")
        done = machine.run(self.script)
        assert done.returncode == 1
        assert done.stdout.startswith("Java 17 or newer is missing: install it")
        assert done.stdout.count("\n") == 1
        assert machine.apt_calls() == []

    def test_installs_nothing_at_a_terminal(self, machine: Machine) -> None:
        machine.put_apt_get(openjdk_17_jre_headless=("java", JAVA.format(version="17.0.15")))
        controller, terminal = pty.openpty()
        try:
            done = machine.run(self.script, stdin=terminal)
        finally:
            os.close(controller)
            os.close(terminal)
        assert done.returncode == 1
        assert machine.apt_calls() == []


class TestMakeVenv:
    script = TOOLS / "make_venv.sh"

    def pretend(self, version: tuple[int, int], *, ensurepip: bool = True) -> str:
        """Return a python3 script that reports ``version`` and creates an empty directory as virtual environment."""
        return f"""#!/bin/sh
case "$*" in
  *print*) echo {version[0]}.{version[1]} ;;
  *version_info*) exit {0 if version >= (3, 11) else 1} ;;
  *ensurepip*) exit {0 if ensurepip else 1} ;;
  "-m venv "*) : > "$3" ;;
  *) exit 99 ;;
esac
"""

    def test_makes_it(self, machine: Machine, tmp_path: Path) -> None:
        machine.put("python3", self.pretend((3, 13)))
        assert machine.run(self.script, "python3", tmp_path / "venv").returncode == 0
        assert tmp_path.joinpath("venv").exists()

    @pytest.mark.slow
    def test_makes_a_real_one(self, tmp_path: Path) -> None:
        venv = tmp_path / "venv"
        subprocess.run([self.script, sys.executable, venv], check=True, timeout=60, stdin=subprocess.DEVNULL)
        assert venv.joinpath("bin", "pip").exists()

    @pytest.mark.parametrize(("version", "words"), [(None, "python3 is missing"), ((3, 10), "Python 3.10 and Ottla needs 3.11")])
    def test_refuses_an_old_python(self, machine: Machine, tmp_path: Path, version: tuple[int, int] | None, words: str) -> None:
        if version:
            machine.put("python3", self.pretend(version))
        done = machine.run(self.script, "python3", tmp_path / "venv")
        assert done.returncode == 1
        assert words in done.stderr
        assert done.stderr.count("\n") == 1

    def test_installs_debians_venv_as_root_without_a_terminal(self, machine: Machine, tmp_path: Path) -> None:
        machine.put("python3", self.pretend((3, 11), ensurepip=False))
        machine.put_apt_get(**{"python3.11-venv": ("python3", self.pretend((3, 11)))})
        assert machine.run(self.script, "python3", tmp_path / "venv").returncode == 0

    def test_prints_the_install_command_otherwise(self, machine: Machine, tmp_path: Path) -> None:
        machine.put("python3", self.pretend((3, 11), ensurepip=False))
        machine.put("id", "#!/bin/sh\necho 1000\n")
        done = machine.run(self.script, "python3", tmp_path / "venv")
        assert done.returncode == 1
        assert "apt-get install python3.11-venv" in done.stderr
        assert not tmp_path.joinpath("venv").exists()
