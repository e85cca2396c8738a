"""The one table of the APIs that the broker itself serves, filled by the files beside this one.

Owns ``HANDLERS`` and the shape of a handler. Must not know what a handler does. Invariant: an API has one handler at most.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ottla.coordinator.effects import ApiError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.effects import BrokerEffect, RequestContext
    from ottla.broker.state import BrokerState

    Handler = Callable[[BrokerState, RequestContext, Any, Now], list[BrokerEffect]]

HANDLERS: dict[Api, Handler] = {}


def serves(api: Api) -> Callable[[Handler], Handler]:
    """Register a handler: a function of the core, the context, the neutral request and the time that returns effects."""

    def register(handler: Handler) -> Handler:
        assert api not in HANDLERS, f"{api.name} has a handler already"
        HANDLERS[api] = handler
        return handler

    return register


def check_time_left(timeout: timedelta) -> None:
    """Raise ``ApiError`` for a timeout of 0 or less: Kafka's controller treats such a request as expired."""
    if timeout <= timedelta(0):
        raise ApiError(ErrorCode.request_timed_out, "The timeout of the request leaves no time to carry it out.")
