"""Joins stdin and stdout to one TCP connection. argv: address, port."""

import os
import socket
import sys
import threading


def main() -> None:
    """Say + on stdout once connected, then move bytes both ways until either side ends."""
    try:
        peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)
    except OSError as error:
        sys.exit(error.strerror or str(error))
    peer.settimeout(None)
    os.write(1, b"+")

    def upward() -> None:
        while True:
            data = os.read(0, 1 << 16)
            if not data:
                break
            peer.sendall(data)
        # The other end of stdin is the console: without it nobody reads an answer either.
        os._exit(0)

    threading.Thread(target=upward, daemon=True).start()
    while True:
        data = peer.recv(1 << 16)
        if not data:
            break
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]
    os._exit(0)


if __name__ == "__main__":
    main()
