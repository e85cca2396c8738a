"""How a handler refuses a request, or a part of one: the protocol's error code and a sentence for the client.

Owns the exception that handlers raise inside the broker and its coordinators. Must not know which API it ends up in. Invariant: it
never leaves the broker; every handler turns it into the error fields of its own response.
"""

from __future__ import annotations

from ottla.protocol import ErrorCode


class ApiError(Exception):
    """A part of a request cannot be served, and nothing of it has happened; ``code`` is the wire's, ``message`` says why."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [{self.code.name}]"
