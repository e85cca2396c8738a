"""The fixtures of this directory; see ``tests/secure/kafka.py``."""

from __future__ import annotations

import uuid

import pytest

from ottla import Admin
from tests.secure.kafka import Secured, secured

__all__ = ["secured", "topic"]


@pytest.fixture(scope="module")
def topic(secured: Secured) -> str:
    """An empty topic with one partition."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=secured.addresses["PLAINTEXT"]) as admin:
        admin.create_topics({name: 1})
    return name
