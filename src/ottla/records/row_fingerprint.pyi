from typing import Any

COMPILED: bool

class RowFingerprint:
    rows: int
    value: int
    def __init__(self, topic: str | None = None) -> None: ...
    def update(self, data: Any) -> None: ...
