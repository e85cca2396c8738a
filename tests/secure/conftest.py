"""The fixture of this folder; see ``tests/secure/kafka.py``."""

from tests.secure.kafka import secured

__all__ = ["secured"]
