"""What the uncompiled source sees as ``cython`` where Cython is not installed, as on every user's machine.

Owns the names of Cython's pure-Python mode that this room uses, each doing nothing: decorators return what they decorate,
``nogil`` is an empty context. Types need no stand-in, since annotations are never evaluated here. Must not know what it is
used for. Invariant: a name used by a compiled module and missing here fails at import, so the tests see it.
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
cclass = cfunc = final = inline = with_gil = _bare
boundscheck = exceptval = freelist = nonecheck = _with_arguments
