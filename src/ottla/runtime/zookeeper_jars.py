"""The jars of a ZooKeeper server, found in a folder of jars such as PySpark's.

Owns the names of the jars. Must not know how a server is started. Invariant: a class path has each jar once, in the newest version
that the folder has.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

from ottla.errors import OttlaError

NEEDED = ("zookeeper", "zookeeper-jute", "slf4j-api", "snappy-java", "metrics-core")
"""Without these no server starts."""
LOGGING = ("log4j-api", "log4j-core", "log4j-slf4j2-impl")
"""With these the server logs; they are used if all are there."""

_JAR = re.compile(r"(?P<name>.+?)(?:-(?P<version>\d[^/]*))?\.jar")


def find_jars(folder: Path | None) -> list[Path]:
    """Return the jars in ``folder``; if that is ``None``, in the installed PySpark. The jars of ``LOGGING`` are among them or not.

    Raises ``OttlaError`` with the names of the missing jars.
    """
    found = _newest(_spark_jars() if folder is None else _listed(folder))
    missing = [name for name in NEEDED if name not in found]
    if missing:
        where = "in the jars of PySpark" if folder is None else f"in {folder}"
        listed = ", ".join(f"{name}-*.jar" for name in missing)
        raise OttlaError(
            f"jars of ZooKeeper are missing {where}: {listed}",
            hint="pip install 'pyspark>=4.0' brings them all; --jars, or jars=, names another folder that has them",
        )
    logging = LOGGING if all(name in found for name in LOGGING) else ()
    return [found[name] for name in (*NEEDED, *logging)]


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.absolute().iterdir())
    except OSError as error:
        raise OttlaError(
            f"the folder of jars cannot be read: {folder}: {error.strerror}", hint="--jars, or jars=, is the folder that has them"
        ) from error


def _spark_jars() -> list[Path]:
    # find_spec() does not import PySpark, which takes a second.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise OttlaError(
            "a ZooKeeper server needs the jars of PySpark, which is not installed",
            hint="pip install 'pyspark>=4.0', or name a folder that has the jars with --jars, or jars=",
        )
    return [jar for folder in spec.submodule_search_locations for jar in Path(folder, "jars").glob("*.jar")]


def _newest(paths: Iterable[Path]) -> dict[str, Path]:
    """The newest jar of each name."""
    newest: dict[str, tuple[tuple[int, ...], Path]] = {}
    for path in sorted(paths):
        match = _JAR.fullmatch(path.name)
        if match is None:
            continue
        version = tuple(int(number) for number in re.findall(r"[0-9]+", match["version"] or ""))
        if match["name"] not in newest or newest[match["name"]][0] <= version:
            newest[match["name"]] = version, path
    return {name: path for name, (_, path) in newest.items()}
