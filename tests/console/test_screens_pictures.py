"""Pictures for the documentation: small, fetching nothing, and drawn right by librsvg."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.widgets import Static

from tests.console.pictures import NoConverter, for_rsvg, self_contained, write_png


class Sample(App[None]):
    def compose(self) -> ComposeResult:
        yield Static("   three [b]bold[/b]  <&>\n\nlast ▲3", markup=True)


@pytest.fixture
async def svg() -> str:
    app = Sample()
    async with app.run_test(size=(40, 6)):
        return app.export_screenshot(title="sample")


def text(svg: str) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


async def test_a_picture_fetches_nothing_and_keeps_its_text(svg: str) -> None:
    small = self_contained(svg)
    assert "url(http" not in small.replace('"', "")
    assert 'local("FiraCode-Regular")' in small
    assert len(small) < len(svg)
    assert [line for line in text(svg) if line.replace("&#160;", "").strip()] == text(small)
    # Every clip path that is used is there.
    assert set(re.findall(r"url\(#([^)]+)\)", small)) <= set(re.findall(r'id="([^"]+)"', small))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('x="0" y="20" textLength="61">&#160;demo', 'x="12.2" y="20" textLength="48.8">demo'),
        ('x="61" y="20" textLength="36.6">&#160;·&#160;', 'x="73.2" y="20" textLength="12.2">·'),
        ('x="10" y="20" textLength="61">a&#160;&#160;&lt;b', 'x="10" y="20" textLength="61">a&#160;&#160;&lt;b'),
        ('x="0" y="1" textLength="48.8">&#160;模&#160;', 'x="12.2" y="1" textLength="24.4">模'),
    ],
)
def test_a_text_is_shifted_by_the_spaces_it_begins_with(before: str, after: str) -> None:
    assert for_rsvg(f'<text class="r1" {before}</text>') == f'<text class="r1" {after}</text>'


def test_a_text_of_spaces_is_left_out() -> None:
    assert for_rsvg('<g><text class="r1" x="0" y="20" textLength="12.2">&#160;</text></g>') == "<g></g>"
    assert for_rsvg('<g><text class="r1" x="0" y="20" textLength="12.2">\n</text></g>') == "<g></g>"


def test_without_a_converter_its_package_is_named(svg: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoConverter, match="librsvg2-bin"):
        write_png(svg, tmp_path / "out.png", 100)
    assert not (tmp_path / "out.png").exists()


def test_the_converter_gets_the_shifted_picture(svg: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "rsvg-convert"
    tool.write_text('#!/bin/sh\n[ "$1 $2 $3" = "--width 100 --output" ] && /bin/cat > "$4"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    write_png(svg, tmp_path / "out.png", 100)
    assert (tmp_path / "out.png").read_text("utf-8") == for_rsvg(svg)
