"""A transaction that is ready to be committed: what any process needs to end it.

Owns ``Prepared`` and its text. Must not know requests. Invariant: the text of a ``Prepared`` makes an equal one, in any later
version of Ottla.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Self

from ottla.types import short_repr


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

    def dumps(self) -> str:
        """The transaction as text, for another process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def loads(cls, text: str | bytes) -> Self:
        """The transaction in a text of ``dumps``. Raises ``ValueError`` for any other text."""
        try:
            content = json.loads(text)
            fields = {field.name: content[field.name] for field in dataclasses.fields(cls)}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"not a prepared transaction: {short_repr(text)}") from error
        kinds = {"transactional_id": str, "is_empty": bool}
        for name, value in fields.items():
            if type(value) is not kinds.get(name, int):
                raise ValueError(f"not a prepared transaction: its {name} is {short_repr(value)}")
        return cls(**fields)
