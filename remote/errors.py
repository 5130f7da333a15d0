"""What can go wrong on a host: one error a cause, each saying what, why and what to do next.

RemoteError
├── HostUnreachable        no connection, or the connection was lost while something ran
├── HostKeyUnknown         the host shows a key that known_hosts does not list: a question for a person
├── HostKeyChanged         the host shows another key than the one known_hosts lists: never a question
├── AuthenticationFailed   the host accepts none of our keys
├── ShellInTheWay          the account's login shell does not get to our command, or reads its input
├── ConfigUnreadable       ssh configuration or known_hosts cannot be parsed
├── CommandFailed          a command ended with a code it should not have, or said what it should not have
├── TimedOut               a command or a request took longer than it was given
├── FileMissing            a path does not exist there
├── PermissionDenied       the path or process is there and not for us
├── StoreLink              a write would go into a content-addressed model store
├── ChangedMeanwhile       the file is not the one that was read before the edit
├── Busy                   somebody else holds the lock
├── NotOurs                the process could not be proven to be the recorded server
├── PortTaken              something listens on the port already
├── NotListening           nothing listens on the port
├── BadResponse            an HTTP answer that cannot be read
└── PythonMissing          no Python to run on the host, or one too old
"""

from __future__ import annotations

from collections.abc import Sequence


def printable(text: bytes | str, limit: int = 2000) -> str:
    """`text` as one that is safe to print: UTF-8 where it is, control characters (escape sequences too) as `?`.

    Newlines and tabs stay. Only the last `limit` characters are kept, because the end of an output says why it ended.
    """
    if isinstance(text, bytes):
        text = text[-4 * limit :].decode("utf-8", "replace")
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text[-limit:])


class RemoteError(Exception):
    """Root of this package's errors; see the tree above. `what` happened, `why`, and what to do `next`."""

    def __init__(self, what: str, why: str = "", next: str = "") -> None:
        self.what, self.why, self.next = what, why, next
        super().__init__(what, why, next)

    def __str__(self) -> str:
        head = f"{self.what}: {self.why}" if self.why else self.what
        return f"{head}. {self.next}" if self.next else head


class HostUnreachable(RemoteError):
    """No connection to the host, or it was lost."""


class ConfigUnreadable(RemoteError):
    """The ssh configuration or a known_hosts file cannot be parsed."""


class AuthenticationFailed(RemoteError):
    """The host accepted none of the keys it was offered."""


class ShellInTheWay(RemoteError):
    """The login shell of the account never becomes our command, or takes its input or output.

    `account` is `USER on HOST`; `doing` says what the shell does; `printed` is the first line it printed, if any.
    """

    def __init__(self, account: str, doing: str, printed: bytes) -> None:
        self.account, self.doing, self.printed = printable(account), doing, printable(printed).strip()
        super().__init__(
            f"the login shell of {self.account} {doing}",
            f'it printed first "{self.printed}"' if self.printed else "it printed nothing",
            "Its start-up files (~/.bashrc, say) should do nothing where `$-` has no `i`",
        )


class HostKeyUnknown(RemoteError):
    """The host's key is not in known_hosts.

    `fingerprint` is `SHA256:…` as ssh-keygen prints it; `key_line` is the line that would go into known_hosts.
    """

    def __init__(self, host: str, port: int, fingerprint: str, key_line: str, known_hosts: str) -> None:
        self.host, self.port, self.fingerprint, self.key_line = host, port, fingerprint, key_line
        self.known_hosts = known_hosts
        super().__init__(
            f"{host} port {port} is not a known host",
            f"its key {fingerprint} is not in {known_hosts}",
            "Compare the fingerprint with the one the host's administrator gives before you trust it",
        )


class HostKeyChanged(RemoteError):
    """The host's key differs from the one in known_hosts. No callback can wave this through."""

    def __init__(self, host: str, port: int, fingerprint: str, known: Sequence[str], known_hosts: str) -> None:
        self.host, self.port, self.fingerprint, self.known = host, port, fingerprint, tuple(known)
        super().__init__(
            f"the key of {host} port {port} has changed",
            f"it now shows {fingerprint}; {known_hosts} lists {', '.join(known) or 'another one'}",
            "Someone may be in between. If the host was reinstalled, remove the old key (ssh-keygen -R) and connect",
        )


class CommandFailed(RemoteError):
    """A command on the host failed. `stderr_tail` is bounded and made printable."""

    def __init__(self, argv: Sequence[str], returncode: int | None, stderr: bytes | str, why: str = "") -> None:
        self.argv, self.returncode, self.stderr_tail = tuple(argv), returncode, printable(stderr)
        command = printable(" ".join(self.argv)[:200])
        reason = why or self.stderr_tail.strip() or "it printed nothing on stderr"
        if why and self.stderr_tail.strip():
            reason = f"{why}; stderr: {self.stderr_tail.strip()}"
        super().__init__(f"`{command}` ended with code {returncode}", reason, "Run it on the host by hand to see more")


class TimedOut(RemoteError):
    """A command or request was given up on after its time limit; a command was killed."""


class FileMissing(RemoteError):
    """A path does not exist on the host."""

    def __init__(self, path: str, host: str, next: str = "Check the path in the deployment file") -> None:
        self.path = path
        super().__init__(f"{printable(path)} does not exist", f"looked on {host}", next)


class PermissionDenied(RemoteError):
    """The account used on the host may not do this."""


class StoreLink(RemoteError):
    """Writing would change a file of a content-addressed model store, which others share and tools verify by hash."""

    def __init__(self, path: str, target: str) -> None:
        self.path, self.target = path, target
        super().__init__(
            f"{printable(path)} was not written",
            f"it leads into a shared model store ({printable(target)})",
            "Make a private copy of the checkpoint folder (cp -rL) and point the deployment at the copy",
        )


class ChangedMeanwhile(RemoteError):
    """The file's hash is not the expected one; `actual` is "" when the file is gone."""

    def __init__(self, path: str, expected: str, actual: str) -> None:
        self.path, self.expected, self.actual = path, expected, actual
        found = f"it now has sha256 {actual[:12]}…" if actual else "it no longer exists"
        wanted = f"{expected[:12]}…" if expected else "no file"
        super().__init__(
            f"{printable(path)} changed meanwhile",
            f"{found}, expected {wanted}",
            "Nothing was written. Read it again and redo the edit",
        )


class Busy(RemoteError):
    """The lock is held; `holder` says by whom (as they described themselves), `pid` and `since` on the host."""

    def __init__(self, path: str, holder: str, pid: int, since: float, machine: str) -> None:
        self.path, self.holder, self.pid, self.since, self.machine = path, printable(holder), pid, since, machine
        super().__init__(
            f"{self.holder or 'someone'} holds the lock {printable(path)}",
            f"through process {pid} on {printable(machine)}",
            "Wait until they are done; the lock goes when they close their console or lose their connection",
        )


class NotOurs(RemoteError):
    """The proof that a process is the recorded server failed, so nothing was signalled.

    `gone` is true when no process has the recorded pid any more.
    """

    def __init__(self, pid: int, mismatches: Sequence[str], gone: bool) -> None:
        self.pid, self.mismatches, self.gone = pid, tuple(mismatches), gone
        super().__init__(
            f"process {pid} was left alone",
            "; ".join(printable(m) for m in mismatches),
            "The server has ended already"
            if gone
            else "Look at it on the host, and adopt the running server if it is the one you mean",
        )


class PortTaken(RemoteError):
    """Something listens on the port. `pid` is 0 and `argv` empty when the account may not see whose it is."""

    def __init__(self, port: int, pid: int, argv: Sequence[str]) -> None:
        self.port, self.pid, self.argv = port, pid, tuple(argv)
        who = f"process {pid} ({printable(' '.join(argv)[:200])})" if pid else "a process of another user"
        super().__init__(
            f"port {port} is taken", f"{who} listens on it", "Stop that process, adopt it, or choose another port"
        )


class NotListening(RemoteError):
    """Nothing accepts connections on a port of the host."""

    def __init__(self, host: str, port: int, why: str) -> None:
        self.port = port
        super().__init__(
            f"nothing answers on port {port} of {host}",
            why,
            "Is the server up? See its log, and the url in the deployment",
        )


class BadResponse(RemoteError):
    """An HTTP answer that is too long, cut short or not HTTP."""


class PythonMissing(RemoteError):
    """A Python interpreter is missing on the host, or too old."""

    def __init__(self, python: str, host: str, why: str) -> None:
        self.python = python
        super().__init__(
            f"cannot run {printable(python)} on {host}", why, 'Name another one in the deployment: [host] python = "…"'
        )
