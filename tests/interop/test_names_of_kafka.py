"""docs/where-is.md: the classes and methods of its last column are in the jars of Apache Kafka."""

from __future__ import annotations

import os
import re
import struct
import zipfile
from pathlib import Path

from tests.interop.real_kafka import TOOL, KafkaTool

PAGE = TOOL.parents[1] / "docs" / "where-is.md"
SECTIONS = PAGE.read_text(encoding="utf-8").partition("\n## Spark")[0]
"""Without Spark's connector, which has its own jars."""
NAME = re.compile(r"\| `([\w.]+)` \|$", re.MULTILINE)


def classes(jars: Path) -> dict[str, bytes]:
    """Return the class files by their paths, with ``.`` between the parts."""
    files = {}
    for jar in jars.glob("kafka*.jar"):
        with zipfile.ZipFile(jar) as content:
            for path in content.namelist():
                if path.endswith(".class"):
                    files[path.removesuffix(".class").replace("/", ".").replace("$", ".")] = content.read(path)
    return files


def test_kafka_has_the_classes_and_methods_of_the_page(kafka_tool: KafkaTool) -> None:
    del kafka_tool  # it downloads the jars
    home = Path(os.environ.get("OTTLA_KAFKA_HOME") or TOOL.parents[1] / ".kafka")
    files = classes(max(home.glob("jars-4.3.*")))
    names = NAME.findall(SECTIONS)
    assert len(names) > 40
    missing = []
    for name in names:
        owner, _, method = name.rpartition(".") if name.rpartition(".")[2][0].islower() else (name, "", "")
        constant = struct.pack(">H", len(method)) + method.encode()
        if not any(f".{path}".endswith(f".{owner}") and (not method or constant in content) for path, content in files.items()):
            missing.append(name)
    assert missing == [], "correct the last column of docs/where-is.md"
