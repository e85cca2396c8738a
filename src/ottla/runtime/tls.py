"""TLS for the connections of a client: the context from the settings, a socket that speaks it, and what its errors mean.

Owns the reading of certificates and keys, and the one table from OpenSSL's reasons to error messages. Must not know requests
or brokers. Invariant: whatever OpenSSL raises leaves this module as bytes that have to wait (``BlockingIOError``), as the end of
the connection (``OSError``), or as a ``TlsError`` that says what to do.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ottla.config import SecurityConfig
from ottla.config.security import CONVERT
from ottla.errors import ConfigError, TlsError

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

_TRUST = "set ssl.truststore.location to the certificate of its CA, as PEM"
_OURS = "set ssl.keystore.location to a certificate that the broker trusts, as PEM"
_NO_TLS = "the port does not speak TLS: set security.protocol to PLAINTEXT or SASL_PLAINTEXT"

_CERTIFICATE: Mapping[int, tuple[str, str]] = {
    9: ("the broker's certificate is not valid yet", "is the clock of this machine right?"),
    10: ("the broker's certificate has expired", "renew the broker's certificate; is the clock of this machine right?"),
    18: ("the broker's certificate is self-signed and not trusted here", _TRUST),
    19: ("the broker's certificate is signed by a CA that is not trusted here", _TRUST),
    20: ("the broker's certificate is signed by a CA that is not trusted here", _TRUST),
    21: ("the broker's certificate is signed by a CA that is not trusted here", _TRUST),
}
"""What OpenSSL finds wrong with a certificate (its X509_V_ERR numbers) -> what it means, and what to do."""

_OF_ANOTHER_HOST = (62, 63, 64)

_REASONS: Mapping[str, tuple[str, str]] = {
    "WRONG_VERSION_NUMBER": ("the broker does not answer in TLS", _NO_TLS),
    "HTTP_REQUEST": ("the broker does not answer in TLS", _NO_TLS),
    "CERTIFICATE_REQUIRED": ("the broker requires a client certificate, and this client has none", _OURS),
    "UNKNOWN_CA": ("the broker does not trust the certificate of this client", _OURS),
    "BAD_CERTIFICATE": ("the broker requires a client certificate, and this client has none or a different one", _OURS),
    "CERTIFICATE_UNKNOWN": ("the broker does not accept the certificate of this client", _OURS),
    "CERTIFICATE_EXPIRED": ("the certificate of this client has expired", _OURS),
    "HANDSHAKE_FAILURE": ("the broker accepts none of this client's ciphers", "see ssl.cipher.suites and ssl.enabled.protocols"),
    "PROTOCOL_VERSION": ("there is no TLS version that both sides support", "see ssl.enabled.protocols"),
    "UNSUPPORTED_PROTOCOL": ("there is no TLS version that both sides support", "see ssl.enabled.protocols"),
}
"""The end of OpenSSL's reason -> what it means, and what to do."""


def explain(error: ssl.SSLError, host: str) -> TlsError:
    """What an error of OpenSSL means to a user."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OF_ANOTHER_HOST:
            hint = "connect by a name that the certificate has, or set ssl.endpoint.identification.algorithm to '' to take any"
            return TlsError(f"the broker's certificate is not for {host}: {error.verify_message}", hint=hint, cause=error)
        meaning, hint = _CERTIFICATE.get(
            error.verify_code, (f"the broker's certificate is not accepted: {error.verify_message}", _TRUST)
        )
        return TlsError(meaning, hint=hint, cause=error)
    reason = error.reason or ""
    for end, (meaning, hint) in _REASONS.items():
        if reason.endswith(end):
            return TlsError(meaning, hint=hint, cause=error)
    return TlsError(f"TLS failed: {reason or error}", cause=error)


def client_context(config: SecurityConfig) -> ssl.SSLContext:
    """The context that the settings describe. Raises ``ConfigError`` where a file or a key cannot be used."""
    if config.ssl_context is not None:
        return config.ssl_context
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    versions = [_VERSIONS[name] for name in config.ssl_enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.check_hostname = config.ssl_endpoint_identification_algorithm == "https"
    with _told_as_setting("ssl.cipher.suites", None):
        if config.ssl_cipher_suites:
            context.set_ciphers(":".join(config.ssl_cipher_suites))
    trust(context, config)
    _identify(context, config)
    return context


def trust(context: ssl.SSLContext, config: SecurityConfig) -> None:
    """Have a context trust the CAs of the settings; without any, those of the operating system."""
    file, text = config.ssl_truststore_location, config.ssl_truststore_certificates
    with _told_as_setting("ssl.truststore.location" if file else "ssl.truststore.certificates", file):
        if file or text:
            context.load_verify_locations(cafile=file, cadata=text)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)


def _identify(context: ssl.SSLContext, config: SecurityConfig) -> None:
    """Load the certificate and the key of this client, if it has any."""
    chain, key = config.ssl_keystore_location, config.ssl_key_location
    password: Callable[[], str] = lambda: config.ssl_key_password or ""  # noqa: E731 - without one OpenSSL would ask the terminal
    with (
        _as_file(config.ssl_keystore_certificate_chain) as own_chain,
        _as_file(config.ssl_keystore_key) as own_key,
        _told_as_setting("ssl.keystore.location" if chain else "ssl.keystore.certificate.chain", chain),
    ):
        if chain or own_chain:
            context.load_cert_chain(chain or own_chain or "", key or own_key, password)


@contextmanager
def _as_file(text: str | None) -> Iterator[str | None]:
    """PEM text as a private file that is removed afterwards: OpenSSL's interface does not accept text."""
    if text is None:
        yield None
        return
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with open(descriptor, "w", encoding="ascii", errors="replace") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)


@contextmanager
def _told_as_setting(name: str, path: str | None) -> Iterator[None]:
    """An error of a file or of OpenSSL as one of the setting that it comes from."""
    shown = f"{name}={path}" if path else name
    try:
        yield
    except ssl.SSLError as error:
        hint = (
            _store_hint(path) or f"is it PEM, does the key belong to the certificate, is ssl.key.password right? [{error.reason}]"
        )
        raise ConfigError(f"{shown} cannot be used", hint=hint, cause=error) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{shown} cannot be used: {reason}", hint="check the path and the value", cause=error) from error


def _store_hint(path: str | None) -> str | None:
    """How to make PEM of a Java key store, if the file is one."""
    if path is None:
        return None
    with open(path, "rb") as file:
        start = file.read(4)
    if start != b"\xfe\xed\xfe\xed" and start[:2] != b"\x30\x82":
        return None
    return f"it is not PEM. {CONVERT}"


class TlsSocket:
    """A socket that speaks TLS, with the calls that a plain one has; nothing blocks.

    Making one raises ``TlsError``, ``OSError``.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._host = host
        name = host.rstrip(".") or None
        try:
            self.sock = context.wrap_socket(sock, do_handshake_on_connect=False, server_hostname=name)
        except ValueError as error:
            raise TlsError(f"{host} is not a host name that a certificate can have: {error}", cause=error) from error
        self.wants_write = False
        """Whether the handshake waits to send, not to receive."""

    def handshake(self) -> bool:
        """Go on with the handshake; whether it is done. Raises ``TlsError``, ``OSError``."""
        try:
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            self.wants_write = False
            return False
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return False
        except ssl.SSLError as error:
            raise self._meant(error) from error
        return True

    def recv_into(self, buffer: memoryview) -> int:
        """As of a socket: ``BlockingIOError`` where there is nothing, 0 at the end. Raises ``TlsError``, ``OSError``."""
        try:
            return self.sock.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise self._meant(error) from error

    def send(self, data: memoryview) -> int:
        """As of a socket. Raises ``BlockingIOError``, ``TlsError``, ``OSError``."""
        try:
            return self.sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise self._meant(error) from error

    def _meant(self, error: ssl.SSLError) -> TlsError | OSError:
        """A connection that simply ended is no trouble of TLS."""
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return ConnectionResetError("the peer closed the connection")
        return explain(error, self._host)
