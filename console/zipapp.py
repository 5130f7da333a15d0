"""The zipapp of `checks` that is carried to a host: the same bytes for the same source, wherever it is built."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

_MAIN = "import sys\n\nfrom checks.__main__ import main\n\nsys.exit(main())\n"
# The oldest moment a zip can hold: a fixed one, so that the bytes depend on the source alone.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def checks_zipapp() -> bytes:
    """`checks` and its entry point as a zip that a python of 3.9 or newer runs."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in [*sorted(_sources(files("checks"), "checks")), ("__main__.py", _MAIN.encode())]:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        path = f"{name}/{item.name}"
        if item.is_dir() and item.name != "__pycache__":
            yield from _sources(item, path)
        elif item.name.endswith((".py", ".toml", ".json")):
            yield path, item.read_bytes()
