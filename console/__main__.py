"""`python -m console` is the command `console`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from console.cli import main

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # Exit.INTERRUPTED, which may not be loaded yet
