"""What is carried to a host is the checks, whole, and the same bytes each time."""

from __future__ import annotations

import io
import zipfile

from console.zipapp import checks_zipapp


def test_it_holds_checks_and_an_entry_and_nothing_else() -> None:
    with zipfile.ZipFile(io.BytesIO(checks_zipapp())) as archive:
        names = archive.namelist()
    assert "__main__.py" in names
    assert "checks/catalog.py" in names
    assert all(name == "__main__.py" or name.startswith("checks/") for name in names)
    assert not any("__pycache__" in name for name in names)


def test_the_same_source_gives_the_same_bytes() -> None:
    first = checks_zipapp()
    checks_zipapp.cache_clear()
    assert checks_zipapp() == first
