"""Write the type stubs of ``ottla.protocol.messages`` from the classes: ``python tools/make_message_stubs.py``.

With ``--check`` it writes nothing, and exits with 1 if stubs are out of date.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import types
import typing
import uuid
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any

from ottla.protocol.apis import SPOKEN
from ottla.protocol.messages import load

FOLDER = pathlib.Path(__file__).parent.parent / "src/ottla/protocol/messages"
HEADER = '''"""{name}: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode

'''
PLAIN: tuple[tuple[type[Any], str], ...] = (
    (bool, "bool"),
    (IntEnum, "ErrorCode"),
    (int, "int"),
    (float, "float"),
    (str, "str"),
    (bytes, "bytes"),
    (uuid.UUID, "uuid.UUID"),
    (timedelta, "timedelta"),
    (datetime, "datetime"),
)


def spelled(annotation: Any) -> str:
    """Return the source text of a type; bounded numbers become their base class."""
    if annotation is None or annotation is types.NoneType:
        return "None"
    if annotation is Ellipsis:
        return "..."
    if typing.get_origin(annotation) is tuple:
        return f"tuple[{', '.join(spelled(argument) for argument in typing.get_args(annotation))}]"
    if typing.get_args(annotation):
        return " | ".join(spelled(argument) for argument in typing.get_args(annotation))
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return annotation.__name__
    return next(name for base, name in PLAIN if base in annotation.__mro__)


def stub(name: str, classes: dict[str, type[Any]]) -> str:
    """Return the text of one stub file."""
    parts = [HEADER.format(name=name)]
    for class_name, cls in classes.items():
        lines = [
            f"    {field.name}: {spelled(field.type)}" + (" = ..." if field.default is not dataclasses.MISSING else "")
            for field in dataclasses.fields(cls)
        ]
        body = "\n".join(lines) or "    pass"
        parts.append(f"@dataclass(frozen=True, slots=True, kw_only=True)\nclass {class_name}:\n{body}\n")
    return "\n".join(parts)


def stubs() -> dict[pathlib.Path, str]:
    """Return the path and text of every stub file."""
    texts: dict[pathlib.Path, str] = {}
    for api in SPOKEN:
        for side in ("request", "response"):
            name = f"{api.name.lower()}_{side}"
            texts[FOLDER / f"{name}.pyi"] = stub(name, load(api, side))
    return texts


def main() -> int:
    """Write or check all stubs."""
    stale = [path for path, text in stubs().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        print("\n".join(f"stale: {path.name}" for path in stale) or "stubs are current")
        return 1 if stale else 0
    for path, text in stubs().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
