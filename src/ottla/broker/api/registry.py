"""The one table of the APIs that the broker itself serves, filled by the files beside this one.

Owns ``HANDLERS`` and the shape of a handler. Must not know what a handler does. Invariant: an API has one handler at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.protocol.apis import Api
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.effects import Effect, RequestContext
    from ottla.broker.state import BrokerState

    Handler = Callable[[BrokerState, RequestContext, Any, Now], list[Effect]]

HANDLERS: dict[Api, Handler] = {}


def serves(api: Api) -> Callable[[Handler], Handler]:
    """Register a handler: a function of the core, the context, the neutral request and the time that returns effects."""

    def register(handler: Handler) -> Handler:
        assert api not in HANDLERS, f"{api.name} has a handler already"
        HANDLERS[api] = handler
        return handler

    return register
