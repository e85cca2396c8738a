"""Whole messages between kio's form of one version and the neutral form, as the codec converts them on the wire."""

from __future__ import annotations

from typing import Any

from ottla.protocol.apis import Api
from ottla.protocol.conversion import converter, downgrader, upgrader, wire_class


def upgrade(api: Api, side: str, message: Any) -> Any:
    """The neutral form of a message of kio's, which must not be used afterwards."""
    change = upgrader(api, side, type(message))
    return message if change is None else change(message)


def downgrade(api: Api, version: int, side: str, message: Any) -> Any:
    """kio's form of a neutral message in one version."""
    reshape = downgrader(api, version, side)
    return reshape(message) if reshape is not None else converter(type(message), wire_class(api, version, side))(message)
