"""What Spark sends to an executor can be loaded there, or fails with an error that names the host.

Owns the pickled form of the source, its readers and its writers. Must not know what is in them. Invariant: the outermost part of
that form needs nothing but Python and PySpark, so it runs where Ottla is missing or has another version.

Without it the user sees ``ModuleNotFoundError: No module named 'ottla'`` below twenty frames of PySpark, with no word about the
machine or its Python, or, with another version of Ottla, any error at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsIndex

from pyspark import cloudpickle

from ottla.version import __version__

_dumps: Callable[[object, SupportsIndex], bytes] = cloudpickle.dumps


class Shipped:
    """A class whose instances Spark pickles with cloudpickle and loads on its executors."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[..., Any], tuple[str, bytes]]:
        """Called by cloudpickle."""
        self._before_shipping()
        return _loader(), (__version__, _dumps((type(self), vars(self)), protocol))

    def _before_shipping(self) -> None:
        """Called before an instance is pickled, which may be several times."""


def _loader() -> Callable[[str, bytes], Any]:
    """Return the function that loads an instance. cloudpickle sends its code, since no module has it as an attribute."""

    def load(version: str, pickled: bytes) -> Any:
        import socket
        import sys

        from pyspark import cloudpickle

        where = f"{sys.executable} on host {socket.gethostname()}"
        remedy = f"run there: {sys.executable} -m pip install 'ottla[spark]=={version}'"
        try:
            from ottla.version import __version__ as found
        except ImportError:
            raise ImportError(f"Ottla is not installed for {where}; {remedy}") from None
        if found != version:
            raise ImportError(f"{where} has Ottla {found}, the driver has {version}; {remedy}")
        try:
            kind, state = cloudpickle.loads(pickled)
        except ImportError as error:
            raise ImportError(f"Ottla cannot be loaded by {where}: {error}; {remedy}") from error
        instance = kind.__new__(kind)
        instance.__dict__.update(state)
        return instance

    return load
