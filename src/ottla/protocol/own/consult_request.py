"""Consult request: a consumer asks a broker for the brokers of the cluster and the central coordinator."""

from dataclasses import dataclass

from ottla.protocol.own import of_draft


@of_draft(20_003, "request", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsultRequest:
    """Nothing: the draft sends no data."""
