"""Which host keys are trusted: reading known_hosts, telling unknown from changed, adding a key that a person trusts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from remote.errors import ConfigUnreadable, HostKeyChanged, HostKeyUnknown, RemoteError

DEFAULT_PORT = 22


class Introduction(asyncssh.SSHClient):
    """Notes the key a server shows that known_hosts does not list, and refuses it; its caller decides what then."""

    def __init__(self) -> None:
        self.key: asyncssh.SSHKey | None = None
        self.host, self.address, self.port = "", "", DEFAULT_PORT

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Always False: a key is trusted through known_hosts or not at all."""
        self.key = key
        self.host, self.address, self.port = host, addr, port
        return False


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """The known_hosts files in use; new keys go into the first."""

    paths: tuple[str, ...]

    @classmethod
    def of(cls, configured: Sequence[str] | None) -> KnownHosts:
        """The files named by ssh configuration; none named, or `none`, means the usual file, never "trust everyone"."""
        names = [name for name in configured or () if name != "none"]
        return cls(tuple(str(Path(name).expanduser()) for name in names or ["~/.ssh/known_hosts"]))

    def read(self) -> asyncssh.SSHKnownHosts:
        """All entries. A missing file has none. Raises ConfigUnreadable.

        Always an object, because asyncssh takes None for "do not verify" and a missing path for an error.
        """
        entries = asyncssh.import_known_hosts("")
        for path in self.paths:
            try:
                entries.load(Path(path).read_text(encoding="utf-8", errors="surrogateescape"))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                raise ConfigUnreadable(f"cannot read {path}", str(error), "Repair or remove that line") from error
        return entries

    def refusal(self, host: str, address: str, port: int, key: asyncssh.SSHKey) -> HostKeyUnknown | HostKeyChanged:
        """The error for `key`, which verification has refused."""
        fingerprint = key.get_fingerprint("sha256")
        # Asked by its full name: asyncssh falls back to an entry without port, which may be another machine's.
        entries = self.read()
        name = host if port == DEFAULT_PORT else f"[{host}]:{port}"
        listed = entries.match(name, "" if port != DEFAULT_PORT else address, None)
        if listed[0] or key in listed[2]:
            known = [one.get_fingerprint("sha256") for one in listed[0]]
            return HostKeyChanged(host, port, fingerprint, known, self.paths[0])
        line = f"{name} {key.export_public_key('openssh').decode().strip()}"
        return HostKeyUnknown(host, port, fingerprint, " ".join(line.split()[:3]), self.paths[0])

    def add(self, line: str) -> None:
        """Append one line to the first file, making it (0600) and its folder (0700) when missing."""
        path = Path(self.paths[0])
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
                old = file.read()
                file.write((b"" if not old or old.endswith(b"\n") else b"\n") + line.encode() + b"\n")
        except OSError as error:
            raise RemoteError(f"the key could not be added to {path}", str(error), "Add it by hand: " + line) from error
