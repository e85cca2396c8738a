"""The exception by which code of the broker rejects a request or a part of one: an error code and a message for the client.

Must not know which response it ends up in. Invariant: it never leaves the broker; every handler turns it into the error fields of
its own response.
"""

from __future__ import annotations

from ottla.protocol import ErrorCode


class ApiError(Exception):
    """A request or a part of one was rejected without any effect; ``code`` is the protocol's error code, ``message`` the reason."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [{self.code.name}]"
