"""The conversion of whole messages between kio's classes of one version and neutral messages, as the codec does it."""

from __future__ import annotations

from typing import Any

from ottla.protocol.apis import Api
from ottla.protocol.conversion import converter, downgrader, upgrader, wire_class


def upgrade(api: Api, side: str, message: Any) -> Any:
    """Return the neutral form of a kio message, which must not be used afterwards."""
    change = upgrader(api, side, type(message))
    return message if change is None else change(message)


def downgrade(api: Api, version: int, side: str, message: Any) -> Any:
    """Return kio's form of a neutral message in one version."""
    reshape = downgrader(api, version, side)
    return reshape(message) if reshape is not None else converter(type(message), wire_class(api, version, side))(message)
