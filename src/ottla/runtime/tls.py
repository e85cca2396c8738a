"""TLS for the connections of a client: an ``SSLContext`` from the settings, a non-blocking socket, and readable errors.

Owns the loading of certificates and keys, and the one table from OpenSSL's reasons to error messages. Must not know requests
or brokers. Invariant: an exception of OpenSSL leaves this module as a ``BlockingIOError`` (call again later), as an ``OSError``
(the connection has ended) or as a ``TlsError`` that says what to do.
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

_SET_TRUSTSTORE = "set ssl.truststore.location to the certificate of its CA, as PEM"
_SET_KEYSTORE = "set ssl.keystore.location to a certificate that the broker trusts, as PEM"
_NO_TLS = "the port does not speak TLS: set security.protocol to PLAINTEXT or SASL_PLAINTEXT"

_VERIFICATION: Mapping[int, tuple[str, str]] = {
    9: ("the broker's certificate is not valid yet", "is the clock of this machine right?"),
    10: ("the broker's certificate has expired", "renew the broker's certificate; is the clock of this machine right?"),
    18: ("the broker's certificate is self-signed and not trusted here", _SET_TRUSTSTORE),
    19: ("the broker's certificate is signed by a CA that is not trusted here", _SET_TRUSTSTORE),
    20: ("the broker's certificate is signed by a CA that is not trusted here", _SET_TRUSTSTORE),
    21: ("the broker's certificate is signed by a CA that is not trusted here", _SET_TRUSTSTORE),
}
"""OpenSSL's result of verifying a certificate (``X509_V_ERR_...``) -> the message and the hint for it."""

_HOST_MISMATCH = (62, 63, 64)
"""``X509_V_ERR_HOSTNAME_MISMATCH``, ``..._EMAIL_MISMATCH``, ``..._IP_ADDRESS_MISMATCH``."""

_REASONS: Mapping[str, tuple[str, str]] = {
    "WRONG_VERSION_NUMBER": ("the broker does not answer in TLS", _NO_TLS),
    "HTTP_REQUEST": ("the broker does not answer in TLS", _NO_TLS),
    "CERTIFICATE_REQUIRED": ("the broker requires a client certificate, and this client has none", _SET_KEYSTORE),
    "UNKNOWN_CA": ("the broker does not trust the certificate of this client", _SET_KEYSTORE),
    "BAD_CERTIFICATE": ("the broker requires a client certificate, and this client has none or a different one", _SET_KEYSTORE),
    "CERTIFICATE_UNKNOWN": ("the broker does not accept the certificate of this client", _SET_KEYSTORE),
    "CERTIFICATE_EXPIRED": ("the certificate of this client has expired", _SET_KEYSTORE),
    "HANDSHAKE_FAILURE": ("the broker accepts none of this client's ciphers", "see ssl.cipher.suites and ssl.enabled.protocols"),
    "PROTOCOL_VERSION": ("there is no TLS version that both sides support", "see ssl.enabled.protocols"),
    "UNSUPPORTED_PROTOCOL": ("there is no TLS version that both sides support", "see ssl.enabled.protocols"),
}
"""The last words of OpenSSL's reason -> the message and the hint for it."""


def explain(error: ssl.SSLError, host: str) -> TlsError:
    """Return a ``TlsError`` that says what an error of OpenSSL means, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _HOST_MISMATCH:
            hint = "connect by a name that the certificate has, or set ssl.endpoint.identification.algorithm to '' to take any"
            return TlsError(f"the broker's certificate is not for {host}: {error.verify_message}", hint=hint, cause=error)
        meaning, hint = _VERIFICATION.get(
            error.verify_code, (f"the broker's certificate is not accepted: {error.verify_message}", _SET_TRUSTSTORE)
        )
        return TlsError(meaning, hint=hint, cause=error)
    reason = error.reason or ""
    for end, (meaning, hint) in _REASONS.items():
        if reason.endswith(end):
            return TlsError(meaning, hint=hint, cause=error)
    return TlsError(f"TLS failed: {reason or error}", cause=error)


def client_context(config: SecurityConfig) -> ssl.SSLContext:
    """Create the context that the settings describe. Raises ``ConfigError`` if a file or a key cannot be used."""
    if config.ssl_context is not None:
        return config.ssl_context
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    versions = [_VERSIONS[name] for name in config.ssl_enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.check_hostname = config.ssl_endpoint_identification_algorithm == "https"
    with _raised_as_config_error("ssl.cipher.suites", None):
        if config.ssl_cipher_suites:
            context.set_ciphers(":".join(config.ssl_cipher_suites))
    trust(context, config)
    _load_identity(context, config)
    return context


def trust(context: ssl.SSLContext, config: SecurityConfig) -> None:
    """Make a context trust the CAs of the settings; if they have none, those of the operating system."""
    file, text = config.ssl_truststore_location, config.ssl_truststore_certificates
    with _raised_as_config_error("ssl.truststore.location" if file else "ssl.truststore.certificates", file):
        if file or text:
            context.load_verify_locations(cafile=file, cadata=text)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)


def _load_identity(context: ssl.SSLContext, config: SecurityConfig) -> None:
    """Load the client's certificate and key, if there are any."""
    chain, key = config.ssl_keystore_location, config.ssl_key_location
    # Without a password callback OpenSSL would prompt on the terminal.
    password: Callable[[], str] = lambda: config.ssl_key_password or ""  # noqa: E731
    with (
        _temporary_pem(config.ssl_keystore_certificate_chain) as own_chain,
        _temporary_pem(config.ssl_keystore_key) as own_key,
        _raised_as_config_error("ssl.keystore.location" if chain else "ssl.keystore.certificate.chain", chain),
    ):
        if chain or own_chain:
            context.load_cert_chain(chain or own_chain or "", key or own_key, password)


@contextmanager
def _temporary_pem(text: str | None) -> Iterator[str | None]:
    """Write PEM text to a private file for the duration of the ``with``: ``load_cert_chain`` accepts only files."""
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
def _raised_as_config_error(name: str, path: str | None) -> Iterator[None]:
    """Raise an error of a file or of OpenSSL as a ``ConfigError`` that names the setting."""
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
    """Return how to convert the file to PEM, if it is a Java key store."""
    if path is None:
        return None
    with open(path, "rb") as file:
        start = file.read(4)
    if start != b"\xfe\xed\xfe\xed" and start[:2] != b"\x30\x82":
        return None
    return f"it is not PEM. {CONVERT}"


class TlsSocket:
    """A TLS socket with the calls of a plain non-blocking one. The constructor raises ``TlsError`` or ``OSError``."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._host = host
        name = host.rstrip(".") or None
        try:
            self.sock = context.wrap_socket(sock, do_handshake_on_connect=False, server_hostname=name)
        except ValueError as error:
            raise TlsError(f"{host} is not a host name that a certificate can have: {error}", cause=error) from error
        self.wants_write = False
        """Whether the handshake has to wait until the socket is writable, not readable."""

    def handshake(self) -> bool:
        """Continue the handshake; return whether it is complete. Raises ``TlsError`` or ``OSError``."""
        try:
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            self.wants_write = False
            return False
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return False
        except ssl.SSLError as error:
            raise self._explained(error) from error
        return True

    def recv_into(self, buffer: memoryview) -> int:
        """As ``socket.recv_into``. Raises ``BlockingIOError`` if there is nothing to read, ``TlsError`` or ``OSError``."""
        try:
            return self.sock.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise self._explained(error) from error

    def send(self, data: memoryview) -> int:
        """As ``socket.send``. Raises ``BlockingIOError``, ``TlsError`` or ``OSError``."""
        try:
            return self.sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise self._explained(error) from error

    def _explained(self, error: ssl.SSLError) -> TlsError | OSError:
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):  # the connection has ended: no problem of TLS
            return ConnectionResetError("the peer closed the connection")
        return explain(error, self._host)
