"""How long the coordinator has repeatedly refused a member's requests.

Owns the count of refusals in a row. Must not know requests, error codes or what is done about a refusal. Invariant: no refusal
stays silent for ever: the error is reported once per ``patience``, and the next ``poll()`` raises it.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.client.notifications import ErrorNotification
from ottla.errors import OttlaError
from ottla.types import Now


class Refusals:
    """See the module. ``patience`` in milliseconds; ``notify`` reports to the application."""

    def __init__(self, patience: int, notify: Callable[[object], None]) -> None:
        self.count = 0
        """Refusals since the last request that was accepted."""
        self._patience = patience
        self._notify = notify
        self._since = 0

    def refused(self, error: OttlaError, now: Now, patience: int = 0) -> None:
        """A request was refused and is sent again. ``patience``: how long that is normal, if longer than usual."""
        self.count += 1
        if self.count == 1:
            self._since = now.mono
        elif now.mono - self._since >= max(patience, self._patience):
            self._since = now.mono
            self._notify(ErrorNotification(error))

    def accepted(self) -> None:
        """A request was accepted."""
        self.count = 0
