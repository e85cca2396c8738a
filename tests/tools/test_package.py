"""The installed package: wheel, sdist, an installation without a C compiler, Windows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from confluent_kafka import Producer

import ottla
from ottla import Broker

ROOT = Path(__file__).parents[2]
PRETENDED_WINDOWS = """
import asyncio, multiprocessing, ssl, subprocess, sys, tempfile  # they look at the platform, too, and need the real one
sys.platform = "win32"
sys.modules["fcntl"] = None
import ottla
try:
    ottla.Broker()
except ottla.OttlaError as error:
    print(error)
with ottla.Consumer(bootstrap_servers=sys.argv[1], group_id="windows", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["orders"])
    print([record.value for record in consumer.poll(timeout=10)])
    consumer.commit()
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, and a wheel for this Python that ``tools/check_wheel.py`` has accepted."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, str(ROOT / "tools" / "build_wheels.py"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wheel_is_built_from_the_sdist_and_runs_the_first_program_of_the_readme(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert ("manylinux" in wheel.name or "musllinux" in wheel.name) is (sys.platform == "linux")
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith((".c", ".pxd"))] == []
    assert {"ottla/py.typed", "pyspark_ottla/__init__.py"} <= set(names)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_in_the_wheel_is_small_and_without_data(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    files = [one for one in zipfile.ZipFile(wheel).infolist() if not one.is_dir()]
    of_demo = [one for one in files if one.filename.startswith("ottla/demo/")]
    assert "ottla/demo/run.py" in {one.filename for one in of_demo}
    assert [one.filename for one in of_demo if not one.filename.endswith(".py")] == []
    assert sum(one.compress_size for one in of_demo) < 0.02 * wheel.stat().st_size


def test_only_its_command_loads_the_demo() -> None:
    program = "import sys, ottla.cli.app, ottla.testing; print([one for one in sys.modules if one.startswith('ottla.demo')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_consumer_of_a_classic_group_loads_neither_zookeeper_nor_streams() -> None:
    program = """
import re, sys, ottla
with ottla.Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", group_protocol="classic") as consumer:
    consumer.subscribe(["orders"])
    unused = re.compile(r"kazoo|ottla\\..*(zookeeper|both|streams|pump)")
    print([one for one in sys.modules if unused.match(one) and one != "ottla.errors.zookeeper"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_sdist_holds_the_source_and_nothing_that_was_generated(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"setup.py", "src/ottla/records/batch.py", "src/ottla/records/batch.pxd", "CHANGELOG.md", "LICENSE"} <= names
    assert [name for name in names if name.endswith((".c", ".so"))] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_metadata_say_where_it_runs_and_where_it_lives(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = HeaderParser().parsestr(archive.read(path).decode())
    classifiers = metadata.get_all("Classifier") or []
    for system in ("POSIX :: Linux", "MacOS", "Microsoft :: Windows"):
        assert f"Operating System :: {system}" in classifiers
    for version in ("3.11", "3.12", "3.13", "3.14"):
        assert f"Programming Language :: Python :: {version}" in classifiers
    assert {url.partition(",")[0] for url in metadata.get_all("Project-URL") or []} >= {"Repository", "Documentation", "Changelog"}
    readme = metadata.get_payload()
    assert isinstance(readme, str)
    images, links = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", readme), re.findall(r"\]\(([^)]*)\)", readme)
    assert len(images) >= 2
    assert [link for link in links if not link.startswith(("https://", "#"))] == [], "they lead nowhere on a package index"


def uncompiled(tmp_path: Path, **environment: str) -> str:
    """Return the stderr of ``import ottla`` and of its first use without compiled modules."""
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("*.so", "*.pyd", "*.c", "__pycache__"), dirs_exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name != "OTTLA_RECORDS"}
    program = "import ottla; ottla.Records; import ottla.records; print(ottla.records.COMPILED)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=inherited | {"PYTHONPATH": str(source)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
    return done.stderr


def test_an_uncompiled_install_warns_once_and_says_how_to_change_that(tmp_path: Path) -> None:
    warning = uncompiled(tmp_path)
    assert warning.count("RuntimeWarning: Ottla runs uncompiled") == 1
    assert "pip install --force-reinstall" in warning
    assert "OTTLA_RECORDS=python" in warning


def test_an_uncompiled_run_that_was_asked_for_warns_of_nothing(tmp_path: Path) -> None:
    assert uncompiled(tmp_path, OTTLA_RECORDS="python") == ""


def test_windows_has_the_client_and_a_clear_error_for_the_broker() -> None:
    with Broker() as broker:
        with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            producer.produce("orders", value="tea")
        done = subprocess.run(
            [sys.executable, "-c", PRETENDED_WINDOWS, broker.bootstrap_servers],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    refused, received = done.stdout.splitlines()
    assert "runs on Linux and macOS" in refused
    assert "WSL" in refused
    assert received == "[b'tea']"


def test_the_version_of_the_metadata_is_that_of_the_package() -> None:
    assert f'version = "{ottla.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
