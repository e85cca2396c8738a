"""Amazon MSK with IAM: Amazon's own signer creates the token, without network access.

    pip install ottla aws-msk-iam-sasl-signer-python
    python examples/amazon_msk.py                                             prints the identity of this machine's credentials
    python examples/amazon_msk.py b-1.bar.kafka.eu-central-1.amazonaws.com:9098 orders

The region is that of ``AWS_REGION``; the signer finds credentials in the same places as Amazon's other tools.
"""

from __future__ import annotations

import base64
import os
import sys
import time
from urllib.parse import parse_qs, urlsplit

from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

from ottla import Consumer, OAuthToken
from ottla.signals import stop_on_signals


def iam_token() -> OAuthToken:
    """Return a token. Ottla calls this function again before the token expires."""
    token, expires_at_ms = MSKAuthTokenProvider.generate_auth_token(os.environ.get("AWS_REGION", "eu-central-1"))
    return OAuthToken(token, expires_at_ms / 1000)


def read(bootstrap_servers: str, topic: str) -> None:
    """Print records until Ctrl-C."""
    with (
        Consumer(
            bootstrap_servers=bootstrap_servers,
            group_id="bar",
            security_protocol="SASL_SSL",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_token_provider=iam_token,
        ) as consumer,
        stop_on_signals(consumer),
    ):
        consumer.subscribe([topic])
        for record in consumer:
            print(record.value)


def show(token: OAuthToken) -> None:
    """Print the content of the token, which is a signed URL in base64."""
    signed = urlsplit(base64.urlsafe_b64decode(token.value + "=" * (-len(token.value) % 4)).decode())
    signer = parse_qs(signed.query)["X-Amz-Credential"][0].split("/")[0]
    left = (token.expires_at or 0) - time.time()
    print(f"a token for {signed.hostname}, signed by {signer}, good for {left / 60:.0f} minutes")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        read(sys.argv[1], sys.argv[2])
    else:
        show(iam_token())
