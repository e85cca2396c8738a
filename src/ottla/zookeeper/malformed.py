"""Nodes whose data cannot be understood.

Owns what was reported about them. Must not know what the nodes are for. Invariant: a malformed node is logged once with its path,
and again only with another error or after it was readable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ottla.errors import ProtocolError
from ottla.zookeeper.ask_queue import Outcome, is_missing

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class MalformedNodes:
    """See the module. ``what_follows``: what the reader does without the node, for the log."""

    def __init__(self, what_follows: str = "it is skipped") -> None:
        self._what_follows = what_follows
        self.errors: dict[str, ProtocolError] = {}
        """Path -> the error of the node when it was last read."""

    def decoded(self, path: str, outcome: Outcome, decode: Callable[[bytes, str], _T]) -> _T | None:
        """The data of a node that was read; ``None`` if it does not exist, or cannot be understood: then it is logged."""
        if is_missing(outcome):
            self.errors.pop(path, None)
            return None
        try:
            value = decode(outcome.data, path)
        except ProtocolError as error:
            if str(self.errors.get(path)) != str(error):
                _log.warning("%s; %s", error, self._what_follows)
            self.errors[path] = error
            return None
        self.errors.pop(path, None)
        return value
