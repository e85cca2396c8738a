"""Tokens that Kafka's validator for development accepts."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from ottla import OAuthToken


def unsecured_token(subject: str, life: float = 60.0) -> OAuthToken:
    """An unsigned token, as Kafka's validator for development accepts it."""
    now = time.time()
    claims: dict[str, Any] = {"sub": subject, "iat": now, "exp": now + life}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({"alg": "none"}, claims)]
    return OAuthToken(f"{parts[0]}.{parts[1]}.", claims["exp"])
