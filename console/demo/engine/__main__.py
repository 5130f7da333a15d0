"""`python -m console.demo.engine`: one BLAS thread, then the server."""

from __future__ import annotations

import os
import sys

# Before numpy is imported: threads of matrices this small cost more than they bring, and the demo shares the machine.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ.setdefault(_name, "1")

from console.demo.engine.server import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
