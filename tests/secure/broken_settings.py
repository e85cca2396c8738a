"""Settings with which clients cannot reach or use a broker."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import Any

from tests.closed_ports import closed_port
from tests.secure.kafka import PASSWORD, USER
from tests.secure.scripted_broker import elsewhere, pretending

PATIENCE = 30.0
"""Seconds until a poll must have raised, on a busy machine."""
Settings = dict[str, Any]


def unheard(stack: ExitStack) -> tuple[str, int]:
    """An address on which nothing listens."""
    return "127.0.0.1", stack.enter_context(closed_port())


def only_the_cluster(stack: ExitStack) -> Settings:
    """A broker whose metadata names an address on which nothing listens."""
    answers = elsewhere(*unheard(stack))
    return {"bootstrap_servers": stack.enter_context(pretending(answers=answers)), "default_api_timeout": 1, "request_timeout": 1}


def sasl(mechanism: str = "PLAIN", user: str = USER, password: str = PASSWORD) -> Settings:
    return {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, "sasl_username": user, "sasl_password": password}


NO_TOPIC = f"none-{uuid.uuid4().hex[:8]}"
