"""The settings of encryption and authentication, TLS and SASL, with the names of Kafka and of librdkafka.

Owns these rows, the parsing of ``sasl.jaas.config`` and the rules between them. Must not open files or connections: certificates
are read when a client first connects. Invariant: every config names a supported mechanism, with all the credentials that it needs;
no secret appears in the ``repr`` of a config or in the text of an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.config.rows import items, not_empty, one_of, row, text, texts
from ottla.errors import ConfigError

if TYPE_CHECKING:
    import ssl

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

TokenProvider = Callable[[], Any]
"""Returns a token for OAUTHBEARER: a string, or an ``OAuthToken``. Called on a separate thread, so it may block."""

_TRUST = ("ssl_truststore_location", "ssl_truststore_certificates")


def _mechanism(value: Any) -> str:
    if isinstance(value, str) and value.strip().upper() == "GSSAPI":
        raise ValueError(f"one of {', '.join(MECHANISMS)}; Kerberos (GSSAPI) is not supported")
    if isinstance(value, str) and value.strip().upper() == "AWS_MSK_IAM":
        raise ValueError("OAUTHBEARER, with a token provider, for Amazon MSK: see docs/security.md")
    return one_of(*MECHANISMS)(value)


def _store_type(value: Any) -> str:
    if isinstance(value, str) and value.strip().upper() in ("JKS", "PKCS12"):
        raise ValueError(f"PEM. {CONVERT}")
    return one_of("PEM")(value)


CONVERT = (
    "To convert a Java key store to PEM: keytool -importkeystore -srckeystore store.jks -destkeystore store.p12"
    " -deststoretype PKCS12; openssl pkcs12 -in store.p12 -out store.pem"
)


def _pem_file(value: Any) -> str:
    path = str(value) if hasattr(value, "__fspath__") else value
    if not isinstance(path, str) or not path.strip():
        raise ValueError("the path of a file in PEM format")
    if path.lower().endswith((".jks", ".p12", ".pfx", ".keystore", ".truststore")):
        raise ValueError(f"a file in PEM format. {CONVERT}")
    return path


def _pem_text(value: Any) -> str:
    if not isinstance(value, str) or "-----BEGIN " not in value:
        raise ValueError("PEM text, from -----BEGIN to -----END; for a file see ssl.truststore.location and ssl.keystore.location")
    return value


def _check_of_host(value: Any) -> str:
    name = value.strip().lower() if isinstance(value, str) else None
    if name not in ("https", "", "none"):
        raise ValueError("https, or empty for no check")
    return "https" if name == "https" else ""


def _provider(value: Any) -> Any:
    if not callable(value):
        raise ValueError("a callable without arguments")
    return value


def _url(value: Any) -> str:
    if not isinstance(value, str) or not re.match(r"https?://[^/]+", value):
        raise ValueError("a URL that begins with https:// (or http://)")
    return value


def _versions(value: Any) -> tuple[str, ...]:
    names = {one_of("TLSv1.2", "TLSv1.3")(item) for item in items(value)}
    if not names:
        raise ValueError("a list of TLSv1.2 and TLSv1.3")
    return tuple(sorted(names))


def _context(value: Any) -> Any:
    if isinstance(value, type) or not hasattr(value, "wrap_bio"):
        raise ValueError("an ssl.SSLContext")
    return value


def _extensions(value: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(value, Mapping):
        pairs = [(name, "=", content) for name, content in value.items()]
    else:
        pairs = [item.partition("=") for item in texts(value)]
    if not all(
        isinstance(content, str) and isinstance(name, str) and name.strip().isalpha() and content.strip()
        for name, _, content in pairs
    ):
        raise ValueError("name=value, separated by commas; a name has letters only")
    return tuple((name.strip(), content.strip()) for name, _, content in pairs)


def _secret() -> Any:
    return row(None, not_empty, secret=True)


def jaas(value: Any) -> Mapping[str, str]:
    """The options of a line ``LoginModule required name="value" ...;``, and the module's name, without its package, as
    ``module``."""
    match = re.fullmatch(r"\s*([\w.]+)\s+(?:required|requisite|sufficient|optional)\s+(.*?)\s*;?\s*", text(value), re.DOTALL)
    options = r"([\w.]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|([^\s;\"']+))"
    if match is None or not re.fullmatch(rf"(?:{options}\s*)*", match[2], re.DOTALL):
        raise ValueError(
            'a line such as org.apache.kafka.common.security.plain.PlainLoginModule required username="..." password="...";'
        )
    quoted = {name: re.sub(r"\\(.)", r"\1", a or b or c) for name, a, b, c in re.findall(options, match[2], re.DOTALL)}
    return {**quoted, "module": match[1].rsplit(".", 1)[-1]}


def _literal(*choices: str) -> str:
    return f"Literal[{', '.join(map(repr, choices))}]".replace("'", '"')


_PATH = "str | PathLike[str]"
_LIST = "str | Iterable[str]"

_OF_MODULE: Mapping[str, Mapping[str, str]] = {
    "PlainLoginModule": {"username": "sasl_username", "password": "sasl_password"},
    "ScramLoginModule": {"username": "sasl_username", "password": "sasl_password"},
    "OAuthBearerLoginModule": {
        "clientId": "sasl_oauthbearer_client_credentials_client_id",
        "clientSecret": "sasl_oauthbearer_client_credentials_client_secret",
        "scope": "sasl_oauthbearer_scope",
    },
}
"""Java's login module -> its options and the equivalent settings."""

_EXTENSION = "extension_"
_OF_NO_EFFECT = frozenset({"module", "serviceName", "debug"})


@dataclass(frozen=True, kw_only=True)
class SecurityConfig:
    """TLS and SASL. A file or a PEM text may be given, not both; ``ssl_context`` replaces all other ``ssl`` settings."""

    security_protocol: str = row("PLAINTEXT", one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"))
    """Whether connections are encrypted (``...SSL``) and whether there is a login (``SASL_...``): see [security](security.md)."""
    sasl_mechanism: str | None = row(None, _mechanism, accepts=_literal(*MECHANISMS), aliases=("sasl.mechanisms",))
    """How the client logs in, where the protocol is one of SASL: with a password (``PLAIN``, ``SCRAM-...``) or a token."""
    sasl_username: str | None = row(None, not_empty)
    """The user name, for ``PLAIN`` and ``SCRAM-...``."""
    sasl_password: str | None = _secret()
    """The password. ``PLAIN`` sends it unencrypted, ``SCRAM-...`` never sends it."""
    sasl_jaas_config: Mapping[str, str] | None = row(None, jaas, secret=True, accepts="str")
    """The line of a Java client, ``...LoginModule required name="value" ...;``: replaces the other settings of a login."""
    sasl_oauthbearer_token_provider: TokenProvider | None = row(  # noqa: RUF009 - a field
        None, _provider, secret=True, accepts="Callable[[], str | OAuthToken]"
    )
    """Called without arguments, on a separate thread, for the token of a login: returns a string or an ``OAuthToken``."""
    sasl_oauthbearer_token_endpoint_url: str | None = row(None, _url)
    """The URL where an identity provider issues tokens for client credentials (OAuth 2.0, RFC 6749 section 4.4)."""
    sasl_oauthbearer_client_credentials_client_id: str | None = row(None, not_empty, aliases=("sasl.oauthbearer.client.id",))
    """The client id for that URL."""
    sasl_oauthbearer_client_credentials_client_secret: str | None = row(
        None, not_empty, secret=True, aliases=("sasl.oauthbearer.client.secret",)
    )
    """The client secret for that URL."""
    sasl_oauthbearer_scope: str | None = row(None, text)
    """The scope of the token, if the identity provider needs one."""
    sasl_oauthbearer_extensions: tuple[tuple[str, str], ...] = row(
        (), _extensions, accepts="str | Iterable[str] | Mapping[str, str]"
    )
    """``name=value`` with commas: sent to the broker with a token from an identity provider (KIP-342)."""
    ssl_context: ssl.SSLContext | None = row(None, _context)  # noqa: RUF009 - a field
    """Your own ``ssl.SSLContext``, as the keyword ``ssl_context``; replaces all other TLS settings."""
    ssl_truststore_location: str | None = row(None, _pem_file, accepts=_PATH, aliases=("ssl.ca.location",))
    """A PEM file of the certificate authorities to trust. None: those of the operating system."""
    ssl_truststore_certificates: str | None = row(None, _pem_text, aliases=("ssl.ca.pem",))
    """The certificate authorities to trust, as text."""
    ssl_truststore_type: str = row("PEM", _store_type, accepts=_literal("PEM"))
    """Java's stores (JKS, PKCS #12) are not read; the error has the commands that convert one to PEM."""
    ssl_keystore_location: str | None = row(None, _pem_file, accepts=_PATH, aliases=("ssl.certificate.location",))
    """A PEM file of the client's certificate chain, for brokers that ask for one, and, unless ``ssl.key.location`` has it, of its
    private key."""
    ssl_key_location: str | None = row(None, _pem_file, accepts=_PATH)
    """A PEM file of the private key, if it is in a separate file."""
    ssl_keystore_certificate_chain: str | None = row(None, _pem_text, aliases=("ssl.certificate.pem",))
    """The client's certificate chain, as text."""
    ssl_keystore_key: str | None = row(None, _pem_text, secret=True, aliases=("ssl.key.pem",))
    """The client's private key, as text."""
    ssl_keystore_type: str = row("PEM", _store_type, accepts=_literal("PEM"))
    """As ``ssl.truststore.type``."""
    ssl_key_password: str | None = row(None, text, secret=True)
    """The password of the private key, if it is encrypted."""
    ssl_endpoint_identification_algorithm: str = row("https", _check_of_host, accepts=_literal("https", "", "none"))
    """Whether a broker's certificate must match the host name; empty: the name is not checked."""
    ssl_enabled_protocols: tuple[str, ...] = row(("TLSv1.2", "TLSv1.3"), _versions, accepts=_LIST)
    """The TLS versions that may be used; the newest that both sides support is chosen."""
    ssl_cipher_suites: tuple[str, ...] = row((), texts, accepts=_LIST)
    """OpenSSL's names, for TLS 1.2; empty: OpenSSL's default."""

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether there is a login."""
        return self.security_protocol.startswith("SASL")

    @staticmethod
    def of_jaas(given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings that ``sasl.jaas.config`` replaces. Raises ``ConfigError`` for options that are unknown or given twice."""
        line = given.get("sasl_jaas_config")
        if line is None:
            return {}
        names = _OF_MODULE.get(line["module"])
        if names is None:
            raise ConfigError(f"sasl.jaas.config names {line['module']}", hint=f"supported are {', '.join(_OF_MODULE)}")
        implied: dict[str, Any] = {names[option]: value for option, value in line.items() if option in names}
        extensions = {option.removeprefix(_EXTENSION): line[option] for option in line if option.startswith(_EXTENSION)}
        if extensions:
            implied["sasl_oauthbearer_extensions"] = tuple(extensions.items())
        for option in line:
            if option not in names and option not in _OF_NO_EFFECT and not option.startswith(_EXTENSION):
                raise ConfigError(f"sasl.jaas.config has an option that Ottla does not support: {option}")
        for name in implied.keys() & given.keys():
            raise ConfigError(f"{name.replace('_', '.')} is given twice, by itself and in sasl.jaas.config: give one of them")
        return implied

    def check_security(self, given: frozenset[str]) -> list[str]:
        """Check the rules between these settings; return those that were set and have no effect. Raises ``ConfigError``."""
        if self.uses_sasl:
            self._check_sasl()
        self._check_tls(given)
        return sorted(
            name
            for name in given
            if (name.startswith("sasl_") and not self.uses_sasl)
            or (name.startswith("ssl_") and not self.uses_tls and not (name in _TRUST and self._fetches_tokens_by_tls))
        )

    @property
    def _fetches_tokens_by_tls(self) -> bool:
        return self.uses_sasl and (self.sasl_oauthbearer_token_endpoint_url or "").startswith("https")

    def _check_sasl(self) -> None:
        if self.sasl_mechanism is None:
            raise ConfigError(
                f"security.protocol={self.security_protocol} needs sasl.mechanism", hint=f"one of {', '.join(MECHANISMS)}"
            )
        if self.sasl_jaas_config is not None and self.sasl_mechanism not in _SPOKEN_BY[self.sasl_jaas_config["module"]]:
            raise ConfigError(
                f"sasl.jaas.config has {self.sasl_jaas_config['module']}, but sasl.mechanism is {self.sasl_mechanism}"
            )
        if self.sasl_mechanism != "OAUTHBEARER":
            if self.sasl_username is None or self.sasl_password is None:
                raise ConfigError(f"sasl.mechanism={self.sasl_mechanism} needs sasl.username and sasl.password")
            return
        client = (self.sasl_oauthbearer_client_credentials_client_id, self.sasl_oauthbearer_client_credentials_client_secret)
        if self.sasl_oauthbearer_token_provider is not None and self.sasl_oauthbearer_token_endpoint_url is not None:
            raise ConfigError("both a token provider and a token endpoint are given", hint="give one of them")
        if self.sasl_oauthbearer_token_provider is None and (self.sasl_oauthbearer_token_endpoint_url is None or None in client):
            raise ConfigError(
                "sasl.mechanism=OAUTHBEARER needs a source of tokens",
                hint="sasl_oauthbearer_token_provider, or sasl.oauthbearer.token.endpoint.url with"
                " sasl.oauthbearer.client.credentials.client.id and sasl.oauthbearer.client.credentials.client.secret",
            )

    def _check_tls(self, given: frozenset[str]) -> None:
        tls = {name for name in given if name.startswith("ssl_")} - {"ssl_context"}
        if self.ssl_context is not None and tls:
            raise ConfigError(f"ssl_context is given, and so is {min(tls).replace('_', '.')}", hint="leave one of them out")
        for file, pem in (
            ("ssl_truststore_location", "ssl_truststore_certificates"),
            ("ssl_keystore_location", "ssl_keystore_certificate_chain"),
            ("ssl_key_location", "ssl_keystore_key"),
        ):
            if {file, pem} <= given:
                raise ConfigError(f"{file.replace('_', '.')} and {pem.replace('_', '.')} are given", hint="leave one of them out")
        has_key = self.ssl_keystore_key is not None or self.ssl_key_location is not None
        if has_key and self.ssl_keystore_location is None and self.ssl_keystore_certificate_chain is None:
            raise ConfigError("a private key is given without its certificate", hint="set ssl.keystore.certificate.chain")


_SPOKEN_BY: Mapping[str, tuple[str, ...]] = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}
