"""A real Apache Kafka with a listener for each security protocol, shared by all tests of a session.

Owns the fixture ``secured``. Must not know anything of Ottla. Invariant: every listener
leads to the same broker and the same topics; what differs is how one gets in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.interop.real_kafka import KafkaTool, OwnKafka, free_port_pair
from tests.secure.certificates import Authority

USER, PASSWORD = "alice", "alice's secret"
"""A user with all permissions."""
STRANGER = "bob"
"""A user with the same password and no permissions."""
LATECOMER = "dave"
"""A user with all permissions, once the credentials exist."""
READER = "carol"
"""A user with the same password that may read topics, but not in a group."""

LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
    "LOGINTLS": "SASL_SSL",
    "TOKEN": "SASL_PLAINTEXT",
    "SHORT": "SASL_PLAINTEXT",
}
"""Name of a listener -> its security protocol."""

LIFETIME = 1_500
"""Milliseconds for which a login at the listener SHORT is valid."""

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_UNSECURED = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'


def wait_for(there: Callable[[], bool]) -> None:
    """Wait until the broker knows of a change."""
    give_up_at = time.monotonic() + 60
    while not _quietly(there):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def _quietly(there: Callable[[], bool]) -> bool:
    try:
        return there()
    except KafkaException:
        return False


@dataclass(frozen=True)
class Secured:
    """The running Kafka, with the ``addresses`` of its listeners by name."""

    addresses: dict[str, str]
    authority: Authority
    admin: AdminClient = field(repr=False)

    def let_in(self, user: str) -> None:
        """Create the credentials of a user, for both SCRAM mechanisms."""
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):  # Kafka refuses both in one request
            credential = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for done in self.admin.alter_user_scram_credentials([credential]).values():
                done.result(60)
        # The controller has the credentials; the broker gets them a moment later.
        wait_for(lambda: len(self.admin.describe_user_scram_credentials([user])[user].result(60).scram_credential_infos) == 2)  # type: ignore[index]


def _settings(addresses: dict[str, str], controller: int, authority: Authority) -> list[str]:
    here = ("localhost", "127.0.0.1")
    stores = {
        "TLS": authority.issue("broker", *here),
        "EXPIRED": authority.issue("expired", *here, days=-1),
        "ELSEWHERE": authority.issue("elsewhere", "kafka.example"),
    }
    stores["MUTUAL"] = stores["LOGINTLS"] = stores["TLS"]
    kinds = {**LISTENERS, "CONTROLLER": "PLAINTEXT"}
    accounts = f'{_PLAIN} user_{USER}="{PASSWORD}" user_{STRANGER}="{PASSWORD}" user_{READER}="{PASSWORD}";'
    listed = ",".join(f"{name}://{address}" for name, address in addresses.items())
    settings = [
        f"listeners={listed},CONTROLLER://127.0.0.1:{controller}",
        f"advertised.listeners={listed}",
        "listener.security.protocol.map=" + ",".join(f"{name}:{kind}" for name, kind in kinds.items()),
        "inter.broker.listener.name=PLAINTEXT",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        f"super.users=User:ANONYMOUS;User:{USER};User:{LATECOMER};User:CN=client;User:CN=locked",
        "connection.failed.authentication.delay.ms=50",
        "listener.name.mutual.ssl.client.auth=required",
        f"listener.name.short.connections.max.reauth.ms={LIFETIME}",
    ]
    for name, store in stores.items():
        prefix = f"listener.name.{name.lower()}.ssl"
        settings += [f"{prefix}.keystore.type=PEM", f"{prefix}.keystore.location={store}"]
        settings += [f"{prefix}.truststore.type=PEM", f"{prefix}.truststore.location={authority.file}"]
    for name, mechanisms in {
        "LOGIN": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "LOGINTLS": "PLAIN,SCRAM-SHA-512",
        "TOKEN": "OAUTHBEARER",
        "SHORT": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    }.items():
        prefix = f"listener.name.{name.lower()}"
        settings.append(f"{prefix}.sasl.enabled.mechanisms={mechanisms}")
        for mechanism in mechanisms.split(","):
            jaas = {"PLAIN": accounts, "OAUTHBEARER": _UNSECURED}.get(mechanism, _SCRAM)
            settings.append(f"{prefix}.{mechanism.lower()}.sasl.jaas.config={jaas}")
    return settings


@pytest.fixture(scope="session")
def secured(kafka_tool: KafkaTool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """See the module."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    pairs = (len(LISTENERS) + 2) // 2
    port = free_port_pair(pairs)
    ports = [port, *range(port + 2, port + 1 + len(LISTENERS))]
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(LISTENERS, ports, strict=True)}
    node = OwnKafka(port, *_settings(addresses, port + 1, authority))
    try:
        admin = AdminClient({"bootstrap.servers": addresses["PLAINTEXT"], "log_level": 0})
        allowed = AclBinding(
            ResourceType.TOPIC,
            "t-",
            ResourcePatternType.PREFIXED,
            f"User:{READER}",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        for done in admin.create_acls([allowed]).values():
            done.result(60)
        asked = AclBindingFilter(
            ResourceType.TOPIC, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        wait_for(lambda: bool(admin.describe_acls(asked).result(60)))
        everything = Secured(addresses, authority, admin)
        for user in (USER, STRANGER):
            everything.let_in(user)
        yield everything
    finally:
        node.stop()
