"""A certificate authority of the tests' own, and certificates that it signed."""

from dataclasses import dataclass
from pathlib import Path

from support.reports import run


@dataclass(frozen=True)
class Authority:
    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "authority.pem"

    def sign(self, name: str) -> tuple[Path, Path]:
        """A certificate for this computer, and its key."""
        key, request, signed = (self.folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
        (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        new = ("-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}")
        run("openssl", "req", *new, "-keyout", str(key), "-out", str(request))
        own = ("-CA", str(self.certificate), "-CAkey", str(self.folder / "authority.key"), "-CAcreateserial")
        about = ("-days", "2", "-extfile", str(self.folder / "names"))
        run("openssl", "x509", "-req", "-in", str(request), *own, *about, "-out", str(signed))
        return signed, key


def make_authority(folder: Path) -> Authority:
    folder.mkdir(parents=True, exist_ok=True)
    files = ("-keyout", str(folder / "authority.key"), "-out", str(folder / "authority.pem"))
    new = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tests")
    run("openssl", "req", *new, "-addext", "keyUsage=critical,keyCertSign,cRLSign", *files)
    return Authority(folder)
