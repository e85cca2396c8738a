"""What was logged last about each group, so that a cause is logged once and not with each attempt.

Owns the last text of each group. Must not know what the texts are about, nor time. Invariants: a text is logged again only after
another one, or after the cause was gone; there are at most ``MOST`` texts, and the oldest is dropped.
"""

from __future__ import annotations

import logging

_log = logging.getLogger("ottla.broker")

MOST = 1000
"""Groups of which the last text is known."""


class Reports:
    """See the module."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Reports {len(self._last)} groups>"

    def report(self, group_id: str, text: str) -> None:
        """Log something about a group, unless it was the last that was logged; ``""``: the cause is gone."""
        if text == self._last.get(group_id, ""):
            return
        self._last.pop(group_id, None)
        if text:
            _log.warning("%s", text)
            if len(self._last) >= MOST:
                del self._last[next(iter(self._last))]
            self._last[group_id] = text

    def clear(self) -> None:
        """Forget all texts."""
        self._last.clear()
