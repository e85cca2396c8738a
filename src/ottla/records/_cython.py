"""Stands in for the module ``cython`` if the source runs uncompiled and Cython is not installed.

Owns the names of Cython's pure-Python mode that this package uses, without their effects: a decorator returns its function,
``nogil`` is an empty context. Types have no counterpart here, since annotations are not evaluated. Must not know its users.
Invariant: a name that a compiled module uses and that is missing here fails at import, so that tests notice it.
"""

from __future__ import annotations

from typing import Any

compiled = False


class _NoGil:
    """Both ``with cython.nogil:`` and ``@cython.nogil``."""

    def __enter__(self) -> None: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def __call__(self, decorated: Any) -> Any:
        return decorated


def _bare(decorated: Any) -> Any:
    return decorated


def _with_arguments(*_args: Any, **_kwargs: Any) -> Any:
    return _bare


nogil = _NoGil()
ccall = cclass = cfunc = final = inline = no_gc = with_gil = _bare
boundscheck = exceptval = freelist = nonecheck = _with_arguments
