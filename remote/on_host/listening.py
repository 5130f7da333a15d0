"""Says which processes of this account listen on a TCP port, each with its port and where its output goes."""

from __future__ import annotations

from remote.on_host.proc import LISTEN, alive, info, link, listener, read_bytes, stat_of
from remote.on_host.protocol import Answer, Fields, serve


def ports() -> list[int]:
    """Every TCP port that somebody listens on, low to high."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_bytes(table).decode("ascii", "replace").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == LISTEN:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(found)


def listening(request: Fields, _: bytes) -> Answer:
    """The listening processes; of another user's, only the port is told."""
    found, closed = [], []
    for port in ports():
        pid = listener(port)
        stat = stat_of(pid) if pid else None
        if pid == 0:
            closed.append(port)
        elif stat is not None and alive(stat):
            # Where stdout is a pipe to a pager or a terminal, stderr may still be a file: logs go there.
            errors = link(f"/proc/{stat.pid}/fd/2")
            said = errors if errors.startswith("/") and not errors.startswith("/dev/") else ""
            found.append({"port": port, "stderr": said, "process": info(stat)})
    return {"listening": found, "closed": closed}, b""


if __name__ == "__main__":
    serve({"listening": listening})
