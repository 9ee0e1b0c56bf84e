"""The service over HTTPS, with a certificate that the caller trusts or does not trust."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import lakebed
from lakebed.errors import InvalidInput
from lakebed.http import Listening
from lakebed.service.app import Server, Service
from lakebed.service.catalog import Catalog
from tests.service.conftest import TOKENS, tokens_for_tests


def make_certificate(folder: Path) -> tuple[str, str]:
    """A certificate of 127.0.0.1 for a day, signed by itself, and its key: files in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return str(folder / "certificate.pem"), str(folder / "key.pem")


def served(lake: Path, certificate: str, key: str) -> Server:
    return Server(
        Service(Catalog([str(lake)]), tokens_for_tests()), Listening(port=0, certificate=certificate, key=key)
    )


@pytest.fixture
def secured(lake: Path, tmp_path: Path) -> Iterator[Server]:
    server = served(lake, *make_certificate(tmp_path))
    server.start()
    yield server
    server.close()


def test_a_caller_that_trusts_the_certificate_reads_over_https(secured: Server, tmp_path: Path) -> None:
    assert secured.url.startswith("https://")
    with_trust = lakebed.connect(secured.url, TOKENS["reader"], certificates=str(tmp_path / "certificate.pem"))
    assert with_trust.tables() == ("orders", "public.items")


def test_a_caller_that_does_not_trust_it_sends_no_token_and_learns_what_to_set(secured: Server) -> None:
    with pytest.raises(InvalidInput, match="certificates"):
        lakebed.connect(secured.url, TOKENS["reader"]).tables()


def test_a_file_of_certificates_that_is_none_is_named(tmp_path: Path) -> None:
    for name, text in (("missing.pem", None), ("wrong.pem", "no certificate")):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(InvalidInput, match=name):
            lakebed.connect("https://127.0.0.1:1", certificates=str(tmp_path / name))


def test_a_service_does_not_start_with_a_key_of_another_certificate(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    certificate, _ = make_certificate(tmp_path)
    _, other_key = make_certificate(tmp_path / "other")
    with pytest.raises(InvalidInput, match="certificate or its key"):
        served(lake, certificate, other_key)
