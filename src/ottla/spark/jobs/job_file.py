"""Job files: ``def queries(spark) -> dict[str, DataStreamWriter]``.

Owns the loading of a file, as ``python FILE`` does it, and the checks of what ``queries()`` returns. Must not know how a query is
run. Invariant: whatever is wrong with a file is one error that names the file, and the line where there is one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ottla.errors import OttlaError
from ottla.spark.jobs.causes import TRACEBACK, cause_of
from ottla.spark.jobs.writers import settings_of
from ottla.spark.locations import local_path

FUNCTION = "queries"
EXAMPLE = "def queries(spark): return {'orders': frame.writeStream.format(...)}"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of queries: also those of directories."""


NEEDS_SESSION = (
    f"the session begins after the file is loaded: put this into {FUNCTION}(spark), or give udf() a type such as StringType() "
    "instead of a text"
)


class JobError(OttlaError):
    """A job file that cannot be run. ``details``: the lines of a traceback that are in the user's code."""

    def __init__(self, message: str, *, hint: str | None = None, details: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.details = details


class Job:
    """A loaded job file."""

    def __init__(self, path: Path, function: Callable[[Any], Any]) -> None:
        self.path = path
        self._function = function

    def writers(self, spark: Any) -> dict[str, Any]:
        """Call ``queries(spark)`` and return its writers, by name. Raises ``JobError``."""
        try:
            returned = self._function(spark)
        except Exception as error:
            raise _raised(self.path, f"{FUNCTION}(spark)", error) from error
        return checked_writers(self.path, returned)


def load_job(path: Path) -> Job:
    """Load a job file. Its directory becomes the first of ``sys.path``, as for a program. Raises ``JobError``."""
    check_file(path)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    _let_workers_import_from(folder)
    function = getattr(_execute(path), FUNCTION, None)
    if not callable(function):
        reason = "has no function" if function is None else f"has {_kind(function)} instead of a function"
        raise JobError(f"{path} {reason} {FUNCTION}(spark)", hint=EXAMPLE)
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise JobError(f"{path}: {FUNCTION}() is called with the session as its only argument: {error}", hint=EXAMPLE) from error
    except ValueError:  # one written in C, which Python cannot say
        pass
    return Job(path, function)


def check_file(path: Path) -> None:
    """Raise ``JobError`` if there is no such file."""
    if not path.is_file():
        raise JobError(f"{path} is not a file" if path.exists() else f"{path} does not exist", hint=f"a job file has {EXAMPLE}")


def checked_writers(path: Path, returned: Any) -> dict[str, Any]:
    """Return what ``queries()`` has returned if it is a dictionary of writers with valid names. Raises ``JobError``."""
    if not isinstance(returned, Mapping):
        stop_started(returned if isinstance(returned, list | tuple) else [returned])
        raise JobError(f"{path}: {FUNCTION}() returned {_kind(returned)}, not a dictionary of writers", hint=EXAMPLE)
    if not returned:
        raise JobError(f"{path}: {FUNCTION}() returned no queries", hint=EXAMPLE)
    for name, writer in returned.items():
        where = f"{path}: the query {name!r}"
        if not isinstance(name, str) or not NAME.fullmatch(name):
            stop_started(returned.values())
            raise JobError(f"{where} has an invalid name", hint="begin with one of a-z, A-Z and 0-9; then also '.', '_' and '-'")
        if _is_started(writer):
            stop_started(returned.values())
            raise JobError(f"{where} is started already", hint="return the writer without calling start() or toTable()")
        if not (hasattr(writer, "_jwrite") or hasattr(writer, "_write_proto")) or not hasattr(writer, "foreachBatch"):
            stop_started(returned.values())
            hint = "return frame.writeStream.format(...)" if hasattr(writer, "writeStream") else "return a DataStreamWriter"
            raise JobError(f"{where} is {_kind(writer)}, not a DataStreamWriter", hint=hint)
    owners: dict[int, str] = {}
    for name, writer in returned.items():
        if (owner := owners.setdefault(id(writer), name)) != name:
            reason = f"the queries {owner!r} and {name!r} are one writer"
            raise JobError(f"{path}: {reason}", hint="call writeStream for each: option() and format() change the writer itself")
    return dict(returned)


def check_checkpoints(path: Path, writers: Mapping[str, Any], checkpoints: str) -> dict[str, str]:
    """Return the checkpoint of each query: the one that the job has set, or ``checkpoints/NAME``.

    Raises ``JobError`` if two queries have the same.
    """
    found = {name: settings_of(writer).checkpoint or f"{checkpoints}/{name}" for name, writer in writers.items()}
    owners: dict[str, list[str]] = {}
    for name, location in found.items():
        owners.setdefault(_normalized(location), []).append(name)
    shared = [
        f"the queries {', '.join(map(repr, names[:-1]))} and {names[-1]!r} have the same checkpoint {found[names[-1]]}"
        for names in owners.values()
        if len(names) > 1
    ]
    if shared:
        hint = "each query needs its own; without the option checkpointLocation it gets one"
        raise JobError(f"{path}: {'; '.join(shared)}", hint=hint)
    return found


def stop_started(values: Any) -> None:
    """Stop the queries among ``values``."""
    for value in values:
        if _is_started(value):
            with contextlib.suppress(Exception):
                value.stop()


def _is_started(value: Any) -> bool:
    return hasattr(value, "awaitTermination") and hasattr(value, "lastProgress")


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    name = "StreamingQuery" if _is_started(value) else type(value).__name__
    return f"an {name}" if name[:1] in "AEIOUaeiou" else f"a {name}"


def _normalized(location: str) -> str:
    path = local_path(location)
    return location.rstrip("/") if path is None else os.path.realpath(path)


def _execute(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise JobError(f"{path} is not a Python file", hint="its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        place = error.filename or str(path)
        if error.lineno is not None:  # there is none for a file with a NUL
            place += f":{error.lineno}"
        raise JobError(f"{place}: {error.msg}", details=_quoted(error)) from error
    except ImportError as error:
        if "relative import" in str(error):
            hint = "a job file is a program: write 'import helpers' instead of 'from . import helpers'"
            raise JobError(f"{path}: {error}", hint=hint) from error
        raise _raised(path, "loading it", error) from error
    except Exception as error:
        raise _raised(path, "loading it", error) from error
    except SystemExit as error:
        raise JobError(f"{path} called sys.exit({error.code!r}) while it was loaded") from error
    finally:
        if before is not None:
            sys.modules[path.stem] = before
    _send_by_value(module)
    return module


def _send_by_value(module: ModuleType) -> None:
    """Functions of the file that tasks call are pickled with their code: workers cannot import the file by its name."""
    from pyspark import cloudpickle

    with contextlib.suppress(ValueError):  # another module has the name
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _let_workers_import_from(folder: str) -> None:
    """Modules beside the file are imported by name, also in Spark's worker processes on this host."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, paths)])


def _raised(path: Path, doing: str, error: BaseException) -> JobError:
    """The error for an exception of the user's code, with its frames there."""
    folder = path.resolve().parent
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_in(folder, frame.filename)]
    details = tuple(f"{frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}" for frame in own)
    text = str(error)
    cause = cause_of(text).message if text.strip() else ""
    if TRACEBACK in text:  # PySpark's error for one in a process of a Python source, such as a wrong option
        return JobError(f"{path}: {doing} raised {cause}", details=details)
    hint = NEEDS_SESSION if "SESSION_OR_CONTEXT_NOT_EXISTS" in cause else None
    return JobError(f"{path}: {doing} raised {type(error).__name__}{f': {cause}' if cause else ''}", hint=hint, details=details)


def _is_in(folder: Path, filename: str) -> bool:
    """Whether a file is the user's. The name of a frozen module looks like that of a file in the current directory."""
    return not filename.startswith("<") and folder in Path(filename).resolve().parents and "site-packages" not in filename


def _quoted(error: SyntaxError) -> tuple[str, ...]:
    return (f"  {error.text.strip()}",) if error.text and error.text.strip() else ()
