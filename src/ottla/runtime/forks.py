"""What happens to objects of this process in a forked child.

Owns the hook. Must not know the objects. Invariant: the hook keeps no object alive, and takes no lock, since another thread of the
parent may have held it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

_methods: list[weakref.WeakMethod[Callable[[], Any]]] = []


def call_in_child(method: Callable[[], Any]) -> None:
    """Call a method in a forked child, before anything else, if its object still exists."""
    _methods[:] = [one for one in _methods if one() is not None]
    _methods.append(weakref.WeakMethod(method))


def _forked() -> None:
    for reference in _methods:
        method = reference()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
