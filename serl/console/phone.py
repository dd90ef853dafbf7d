"""Access from a phone in the lab network: certificate, pairing code and QR code.

The certificate is created on this host at the first use. The token reaches the phone by a QR code,
or in exchange for a code that a person types.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import ipaddress
import os
import re
import secrets
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from serl.errors import BadInput
from serl.system.files import make_folder, read_bounded, write_atomic

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_VALID = timedelta(days=397)  # browsers refuse longer ones
_MAX_BYTES = 1 << 16
CODE_DIGITS, CODE_VALID_S, CODE_TRIES = 8, 600.0, 5


def check_host(host: str) -> None:
    """Raise `BadInput` unless a host is one IPv4 address, or one name, that a phone can open."""
    wrong = not _HOST.fullmatch(host) or host == "0.0.0.0"
    if wrong or (inside := _loopback_address(host)):
        here = own_address() or "192.168.1.20"
        only = "" if wrong else f" is {inside} here, which no phone reaches"
        raise BadInput(
            f"--console.host {host}{only}: expected this machine's IPv4 address or name in the "
            f"lab network, such as {here}"
        )


def _loopback_address(name: str) -> str:
    """Return the address of a name that only this machine reaches, as in `/etc/hosts`; else ""."""
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return ""
    try:
        found = [str(each[4][0]) for each in socket.getaddrinfo(name, None)]
    except (OSError, UnicodeError):  # the latter: a label of more than 63 characters
        return ""
    inside = all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found)
    return found[0] if inside else ""


def own_address() -> str:
    """Return this machine's IPv4 address in its network; "" without a network. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: only a route is chosen
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def certificate_folder() -> Path:
    """Return this user's folder of console certificates."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "serl" / "console"


def make_certificate(host: str, folder: Path) -> Path:
    """Return the file with key and certificate of a host; create or renew it if necessary.

    Only its owner can read it. The certificate is self-signed: a browser asks once.
    """
    path = folder / f"{host}.pem"
    if path.exists() and _is_valid(path):
        return path
    make_folder(folder, 0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"serl console {host}"[:64])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([_alternative_name(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_atomic(path, secret + certificate.public_bytes(serialization.Encoding.PEM))
    return path


def fingerprint(path: Path) -> str:
    """Return the SHA-256 fingerprint of a certificate as browsers show it: AB:CD:..."""
    der = ssl.PEM_cert_to_DER_cert(_certificate_of(path))
    return hashlib.sha256(der).digest().hex(":").upper()


def tls_context(path: Path) -> ssl.SSLContext:
    """Return the TLS settings of a server with this key and certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    return context


class PairingCode:
    """A code of eight digits that a phone exchanges for the token, once, within ten minutes.

    Args:
        now_s: clock, monotonic seconds.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._code, self._tries, self._made_s = "", 0, 0.0

    def issue(self) -> str:
        """Return a new code; the previous one becomes invalid."""
        self._code = f"{secrets.randbelow(10**CODE_DIGITS):0{CODE_DIGITS}d}"
        self._tries, self._made_s = CODE_TRIES, self._now_s()
        return self._code

    def redeem(self, word: object) -> bool:
        """Return whether a word is the code, in constant time.

        The right word uses up the code, and so do `CODE_TRIES` wrong ones.
        """
        if not self._tries or self._now_s() - self._made_s > CODE_VALID_S:
            return False
        text = word if isinstance(word, str) else ""
        right = hmac.compare_digest(text.encode(errors="replace"), self._code.encode())
        self._tries = 0 if right else self._tries - 1
        return right


def qr_svg(text: str) -> str:
    """Return a QR code as an SVG picture, dark on white."""
    import segno  # from the extra `console`, needed only for a phone

    out = io.BytesIO()
    segno.make(text, error="l").save(out, kind="svg", scale=4, border=4, light="white")
    return out.getvalue().decode()


def qr_text(text: str) -> str:
    """Return a QR code for a terminal, in half blocks."""
    import segno

    out = io.StringIO()
    segno.make(text, error="l").terminal(out, compact=True)
    return out.getvalue()


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _is_valid(path: Path) -> bool:
    """Return whether a certificate stays valid for a day."""
    try:
        certificate = x509.load_pem_x509_certificate(_certificate_of(path).encode())
    except ValueError:
        return False
    return certificate.not_valid_after_utc > datetime.now(UTC) + timedelta(days=1)


def _certificate_of(path: Path) -> str:
    text = read_bounded(path, _MAX_BYTES).decode("ascii", errors="replace")
    return text[max(text.find("-----BEGIN CERTIFICATE"), 0) :]
