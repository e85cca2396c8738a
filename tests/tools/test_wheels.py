"""The wheels of a release: the Pythons and systems that have one, and the extras that their tests install."""

from __future__ import annotations

import fnmatch
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools import build_wheels

ROOT = Path(__file__).parents[2]
VERSIONS = ["311", "312", "313", "314"]
LINUX = [f"{libc}_{arch}" for libc in ("manylinux", "musllinux") for arch in ("x86_64", "aarch64")]
MACOS = ["macosx_x86_64", "macosx_arm64"]
WANTED = {f"cp{version}-{platform}" for version in VERSIONS for platform in (*LINUX, *MACOS)}
OTHERS = {f"{python}-{platform}" for python in ("cp310", "cp314t", "pp311") for platform in (*LINUX, *MACOS)} | {
    f"cp{version}-{platform}" for version in VERSIONS for platform in ("manylinux_i686", "musllinux_i686", "win32", "win_amd64")
}
"""Identifiers of cibuildwheel that have no wheel."""


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def matches(identifier: str, patterns: str) -> bool:
    """Match as cibuildwheel does, except braces, which the patterns here do not have."""
    assert not set("{}") & set(patterns)
    return any(fnmatch.fnmatchcase(identifier, pattern) for pattern in patterns.split())


def test_there_are_wheels_for_every_python_on_linux_and_macos(pyproject: dict[str, Any]) -> None:
    config = pyproject["tool"]["cibuildwheel"]
    assert {one for one in WANTED if matches(one, config["build"]) and not matches(one, config["skip"])} == WANTED
    assert {one for one in OTHERS if matches(one, config["build"]) and not matches(one, config["skip"])} == set()
    assert set(config["linux"]["archs"]) == {"x86_64", "aarch64"}
    assert set(config["macos"]["archs"]) == {"x86_64", "arm64"}
    for arch in config["linux"]["archs"]:
        assert config["linux"][f"manylinux-{arch}-image"].startswith("manylinux_")
        assert config["linux"][f"musllinux-{arch}-image"].startswith("musllinux_")


@pytest.mark.skipif(importlib.util.find_spec("cibuildwheel") is None, reason="cibuildwheel is not installed")
@pytest.mark.parametrize("platform", ["linux", "macos"])
def test_cibuildwheel_builds_them(platform: str) -> None:
    command = [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", "--platform", platform, str(ROOT)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert set(printed) == {one for one in WANTED if ("macosx" in one) is (platform == "macos")}


def test_the_pythons_are_those_of_the_classifiers(pyproject: dict[str, Any]) -> None:
    prefix = "Programming Language :: Python :: 3."
    named = [one.removeprefix(prefix) for one in pyproject["project"]["classifiers"] if one.startswith(prefix)]
    assert [f"3{minor}" for minor in named] == VERSIONS
    assert pyproject["project"]["requires-python"] == ">=3.11"


def test_wheels_are_tested_with_the_packages_of_the_readme(pyproject: dict[str, Any]) -> None:
    assert build_wheels.installed_with_ottla() == pyproject["tool"]["cibuildwheel"]["test-requires"].split()


def test_a_readme_that_does_not_install_ottla_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_wheels, "README", tmp_path / "README.md")
    (tmp_path / "README.md").write_text("```\npip install 'ottla[cli]' # and more\n```\n")
    with pytest.raises(SystemExit, match=r"installs \['ottla\[cli\]'\], not ottla"):
        build_wheels.installed_with_ottla()
    (tmp_path / "README.md").write_text("```\npip install ottla 'some>=1' other  # comment\n```\n")
    assert build_wheels.installed_with_ottla() == ["some>=1", "other"]
