"""How a handler refuses: the protocol's error code and a sentence for the client.

Owns the exception that handlers raise inside the broker. Must not know which API it ends up in. Invariant: it never leaves the
broker; every handler turns it into the error fields of its own response.
"""

from __future__ import annotations

from ottla.protocol import ErrorCode

NO_TRANSACTIONS = ErrorCode.transactional_id_authorization_failed
"""The answer to transactional ids, which are not served: the one code that every client takes for final when it looks for a
transaction coordinator. librdkafka asks again and again after any other."""


class Refusal(Exception):
    """A part of a request can not be done; ``code`` is the wire's, ``message`` says why."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [{self.code.name}]"
