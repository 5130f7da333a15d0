"""Every check has its page in docs/checks, and the page is what the check says of itself."""

from __future__ import annotations

import pytest

from checks.catalog import all_checks
from tests.checks import pages


def test_the_pages_are_those_of_the_catalog() -> None:
    written = {path.name: path.read_text("utf-8") for path in pages.FOLDER.glob("*.md")}
    wanted = pages.pages()
    assert sorted(written) == sorted(wanted)
    stale = [name for name, text in wanted.items() if written[name] != text]
    assert not stale, "run: python -m tests.checks.pages"


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.id)
def test_a_page_says_what_it_means_and_how_it_decides(check: object) -> None:
    page = check.page  # type: ignore[attr-defined]
    assert len(page.split()) > 40
    assert any(verdict in page for verdict in ("FAIL", "WARN", "INFO", "UNKNOWN"))
