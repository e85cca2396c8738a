"""Many runs of ``ottla`` from one process, which imports the command line once and forks for each of them.

Owns the standard streams of these runs. Must not know what a command does. Invariant: a run sees what a new process would see:
its own arguments, and for each closed stream ``None`` and a free descriptor.

Reads lines with a JSON list of runs from stdin and writes, for each, a line with a JSON list of outcomes to stdout.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
import traceback
from typing import IO, Any

IMPORTED = (
    "ottla.cli.app",
    "ottla.admin",
    "ottla.consumer",
    "ottla.embedded",
    "ottla.zookeeper_admin",
    "ottla.demo.run",
    "ottla.producer",
    "kio.serial",
    "pydantic.type_adapter",
    "pydantic.json_schema",
)
"""What the commands import, some of it late."""
NAMES = ("stdin", "stdout", "stderr")


def run(arguments: list[str], streams: dict[str, str]) -> dict[str, Any]:
    """Run ``ottla``. A stream is ``closed``, ``full``, ``broken`` (a pipe without a reader), a text for stdin, or kept."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as into:
        into.write(streams.get("stdin", "").encode())
        into.seek(0)
        child = os.fork()
        if child == 0:
            _be_ottla(arguments, streams, (into, out, err))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return {"code": code, "stdout": texts[0], "stderr": texts[1]}


def _be_ottla(arguments: list[str], streams: dict[str, str], files: tuple[IO[bytes], ...]) -> None:
    from ottla.cli import main

    code = 99
    try:
        for number, (name, file) in enumerate(zip(NAMES, files, strict=True)):
            _connect(number, name, streams.get(name, ""), file)
        sys.argv = ["ottla", *arguments]
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        with contextlib.suppress(BaseException):
            os.write(2, traceback.format_exc().encode())
    finally:
        try:
            sys.stdout.flush()  # as Python does at the end
        except BaseException as error:
            code = 120
            with contextlib.suppress(BaseException):
                os.write(2, f"Exception ignored at exit: {error!r}".encode())
        os._exit(code)


def _connect(number: int, name: str, kind: str, file: IO[bytes]) -> None:
    if kind == "closed":
        os.close(number)
        setattr(sys, name, None)
    elif kind == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), number)
    elif kind == "broken":
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, number)
    else:
        os.dup2(file.fileno(), number)


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    for asked in sys.stdin:
        print(json.dumps([run(each["arguments"], each["streams"]) for each in json.loads(asked)]), flush=True)
