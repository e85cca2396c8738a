"""What a ``DataStreamWriter`` that is not started has been set to.

Owns the way around PySpark, which offers no getters: the fields of the JVM's object, or over Connect those of the request. Must not
know what the settings are for. Invariant: reading a writer does not change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

CHECKPOINT = "checkpointlocation"


class WriterSettings(NamedTuple):
    """``options``: names in lower case -> values. ``sink``: the argument of ``format()``; ``foreachBatch`` and ``foreach`` for
    functions. ``output_mode``: in lower case."""

    sink: str
    options: Mapping[str, str]
    output_mode: str

    @property
    def checkpoint(self) -> str | None:
        """The ``checkpointLocation`` that the job has set."""
        return self.options.get(CHECKPOINT)


def settings_of(writer: Any) -> WriterSettings:
    """Return the settings of a writer."""
    return _in_jvm(writer._jwrite) if hasattr(writer, "_jwrite") else _in_request(writer._write_proto)


def frame_of(writer: Any) -> Any:
    """Return the ``DataFrame`` that is written."""
    return writer._df


def _in_jvm(writer: Any) -> WriterSettings:
    options, entries = {}, _field(writer, "extraOptions").iterator()
    while entries.hasNext():
        entry = entries.next()
        options[str(entry._1()).lower()] = str(entry._2())
    return WriterSettings(str(_field(writer, "source")), options, str(_field(writer, "outputMode")).lower())


def _field(writer: Any, name: str) -> Any:
    field = writer.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(writer)


def _in_request(request: Any) -> WriterSettings:
    sink = request.format
    for function in ("foreach_batch", "foreach_writer"):
        if request.HasField(function):
            sink = "foreachBatch" if function == "foreach_batch" else "foreach"
    options = {name.lower(): value for name, value in request.options.items()}
    return WriterSettings(sink, options, request.output_mode.lower() or "append")
