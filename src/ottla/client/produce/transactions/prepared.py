"""A transaction that is ready to be committed: what any process needs to end it.

Owns ``Prepared`` and its text. Must not know requests. Invariant: the text of a ``Prepared`` makes an equal one, in any later
version of Ottla; no other text makes one, and no ``Prepared`` has values that a request cannot have.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from ottla.types import short_repr

_FIELDS: Mapping[str, tuple[type, range | None]] = {
    "transactional_id": (str, None),
    "producer_id": (int, range(2**63)),
    "producer_epoch": (int, range(2**15)),
    "transaction_version": (int, range(1, 3)),
    "is_empty": (bool, None),
}
"""Field -> its type and its values."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared transaction: all its records and offsets are acknowledged, and ``ottla.finish`` commits or aborts it.

    ``transaction_version`` is 2 where the cluster ends transactions as KIP-890 says, else 1. ``is_empty``: nothing was sent in it.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int
    is_empty: bool = False

    def __post_init__(self) -> None:
        for name, (kind, allowed) in _FIELDS.items():
            value = getattr(self, name)
            if type(value) is not kind:
                raise TypeError(f"{name} of a Prepared must be of type {kind.__name__}, not {short_repr(value)}")
            if allowed is not None and value not in allowed:
                raise ValueError(f"{name} of a Prepared is {value}, not from {allowed.start} to {allowed.stop - 1}")
        if not self.transactional_id:
            raise ValueError("transactional_id of a Prepared is empty")

    def dumps(self) -> str:
        """The transaction as text, for another process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def loads(cls, text: str | bytes) -> Self:
        """The transaction in a text of ``dumps``. Raises ``ValueError`` for any other text."""
        try:
            content = json.loads(text)
            return cls(**{name: content[name] for name in _FIELDS})
        except KeyError as missing:
            raise ValueError(f"not a prepared transaction, it has no {missing}: {short_repr(text)}") from missing
        except (ValueError, TypeError) as error:
            raise ValueError(f"not a prepared transaction, {error}: {short_repr(text)}") from error
