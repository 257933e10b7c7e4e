"""Certificates for the tests: an authority, a broker's, and a client's."""

import subprocess
from pathlib import Path
from typing import NamedTuple

_DAYS = "2"
_CURVE = ("-pkeyopt", "ec_paramgen_curve:prime256v1")


class Pair(NamedTuple):
    """A certificate and its key, as files."""

    certificate: Path
    key: Path

    @property
    def together(self) -> str:
        """Both in one text, as Kafka reads them."""
        return self.key.read_text() + self.certificate.read_text()


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def authority(folder: Path, name: str) -> Pair:
    """Return a new authority."""
    made = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    _openssl(
        *("req", "-x509", "-newkey", "ec", *_CURVE, "-nodes", "-days", _DAYS),
        *("-subj", f"/CN={name}", "-out", str(made.certificate), "-keyout", str(made.key)),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    return made


def signed(by: Pair, folder: Path, name: str, host: str) -> Pair:
    """Return a certificate for a host, signed by an authority."""
    made = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    request, extension = folder / f"{name}.csr", folder / f"{name}.ext"
    _openssl(
        *("req", "-newkey", "ec", *_CURVE, "-nodes", "-subj", f"/CN={name}"),
        *("-out", str(request), "-keyout", str(made.key)),
    )
    extension.write_text(f"subjectAltName=IP:{host}\n")
    _openssl(
        *("x509", "-req", "-days", _DAYS, "-in", str(request), "-out", str(made.certificate)),
        *("-CA", str(by.certificate), "-CAkey", str(by.key), "-CAcreateserial"),
        *("-extfile", str(extension)),
    )
    return made
