"""Certificates for the tests of TLS, signed by one CA.

Owns keys and certificates, new for each test session. Must not know their users. Invariant: all are PEM, keys as PKCS #8.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Authority:
    """A CA. It writes each certificate with its key to a file in ``folder``."""

    def __init__(self, folder: Path, name: str = "tests") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"CA of the {name}")])
        usage = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._builder(self._name, self._key, days=2).add_extension(usage, critical=True)
        self.pem = self._signed(self._certificate)
        self.file = folder / f"ca-{name}.pem"
        self.file.write_text(self.pem)

    def issue(self, name: str, *hosts: str, days: int = 2, password: str | None = None) -> Path:
        """Write a new key and its certificate for ``hosts``; return the path. With negative ``days`` it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key, days=days)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        protection = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection).decode()
        file = self.folder / f"{name}.pem"
        file.write_text(pem + self._signed(builder))
        return file

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: int) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        begins, ends = now - 5 * DAY, now + days * DAY
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        return builder.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)

    def _signed(self, builder: x509.CertificateBuilder) -> str:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
