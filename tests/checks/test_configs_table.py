"""docs/cases.md says what is true: its checks exist, and so do the tests it names."""

from __future__ import annotations

import re
from pathlib import Path

from checks.catalog import all_checks

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "cases.md").read_text("utf-8")


def test_every_check_of_the_table_exists_and_has_a_page() -> None:
    named = set(re.findall(r"`((?:cfg|ckpt|flags|ops)\.[a-z0-9_]+)`", TABLE))
    pages = {item.id: item.page for item in all_checks()}
    assert named <= set(pages)
    assert all(len(pages[id].split()) > 40 for id in named)


def test_every_check_of_these_families_is_in_the_table() -> None:
    own = {item.id for item in all_checks() if item.id.split(".")[0] in ("cfg", "ckpt", "flags", "ops")}
    assert {id for id in own if f"`{id}`" not in TABLE} == set()


def test_every_test_of_the_table_exists() -> None:
    files = set(re.findall(r"`(test_[a-z0-9_]+\.py)`", TABLE))
    assert files
    assert files - {path.name for path in (ROOT / "tests").rglob("test_*.py")} == set()
