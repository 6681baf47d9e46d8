"""Certificate for a server on loopback, and the temporary certificate authority that signs it."""

from __future__ import annotations

import ipaddress
import os
import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_HOST = "127.0.0.1"
_LIFE = timedelta(days=7)


class Authority:
    """A temporary certificate authority, and the server certificate that it has signed."""

    def __init__(self) -> None:
        key, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        authority = _name("kubernetes")
        root = (
            _certificate(authority, authority, key, now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA256())
        )
        names = x509.SubjectAlternativeName(
            [x509.IPAddress(ipaddress.ip_address(_HOST)), x509.DNSName("localhost")]
        )
        leaf = (
            _certificate(_name("kube-apiserver"), authority, own, now)
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False
            )
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        #: the root certificate that clients trust, as PEM
        self.root = root.public_bytes(pem).decode()
        secret = own.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        # The ssl library reads keys only from files, so the key is written to an anonymous file.
        with os.fdopen(os.memfd_create("certificate"), "w+b") as file:
            file.write(leaf.public_bytes(pem) + secret)
            file.flush()
            self.context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFE)
    )


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )
