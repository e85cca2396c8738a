"""``ottla.settings`` agrees with the table of settings."""

from __future__ import annotations

import runpy
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

from ottla.config import AdminConfig, ConsumerConfig
from ottla.config.producer import ProducerConfig
from ottla.config.spelling import spellings
from ottla.settings import AdminSettings, ConsumerSettings, ProducerSettings

ROOT = Path(__file__).parents[2]


def test_the_module_agrees_with_the_table(tmp_path: Path) -> None:
    tool: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "write_settings_types.py"))
    written = tmp_path / "settings.py"
    written.write_text(tool["module"](), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", "--config", ROOT / "pyproject.toml", written], check=True)
    module = (ROOT / "src" / "ottla" / "settings.py").read_text(encoding="utf-8")
    assert module == written.read_text(encoding="utf-8"), "run python tools/write_settings_types.py"


@pytest.mark.parametrize(
    ("typed", "config", "apart"),
    [
        (AdminSettings, AdminConfig, set()),
        (ConsumerSettings, ConsumerConfig, {"key_deserializer", "value_deserializer"}),
        (ProducerSettings, ProducerConfig, set()),
    ],
)
def test_every_spelling_that_can_be_a_keyword_has_a_type(typed: Any, config: Any, apart: set[str]) -> None:
    keywords = {name for name in spellings(config) if "." not in name}
    assert set(typing.get_type_hints(typed)) == keywords - apart
