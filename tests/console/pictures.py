"""Pictures of the screen: Textual's SVG made small and self-contained, and turned into PNG."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

from rich.cells import cell_len

# Wide terminals need more pixels to stay legible. A palette of COLOURS is not told from the original.
PNG_WIDTHS = {80: 1040, 120: 1200, 200: 1600}
COLOURS = 48
CELL = 12.2  # width of a cell in Textual's SVG
ADVANCE = 0.602  # em of a glyph of DejaVu Sans Mono

_TEXT = re.compile(r'<text ([^>]*?)x="([\d.]+)"([^>]*?)textLength="([\d.]+)"([^>]*)>((?:[^<])*)</text>')
_BLANK = re.compile(r"<text [^>]*>(?:\s|&#160;)*</text>\s*")
_LINE_CLIP = re.compile(r'<clipPath id="[^"]*-line-\d+">.*?</clipPath>\s*', re.DOTALL)
_USE_OF_CLIP = re.compile(r' clip-path="url\(#[^)]*-line-\d+\)"')
_FETCHED = re.compile(r',\s*url\("https?://[^)]*\) format\("[^"]*"\)')
_NAMES = re.compile(r"terminal-\d+-")


class NoConverter(Exception):
    """rsvg-convert is not installed."""


def self_contained(svg: str) -> str:
    """The same picture, fetching no font from elsewhere, at about half the size.

    A row's clip path is a rectangle that its text cannot leave, so that none is needed.
    """
    svg = _USE_OF_CLIP.sub("", _LINE_CLIP.sub("", _BLANK.sub("", _FETCHED.sub("", svg))))
    svg = svg.replace("<!-- Generated with Rich https://www.textualize.io -->", "")
    return re.sub(r"\n\s*\n+", "\n", _NAMES.sub("t-", svg))


def for_rsvg(svg: str) -> str:
    """The same picture for librsvg, which ignores textLength and drops spaces at the ends of a text.

    Texts are shifted by the spaces they begin with; the font has no ligatures, and is scaled to the cell.
    """
    svg = svg.replace("font-family: Fira Code, monospace;", "font-family: DejaVu Sans Mono, monospace;")
    return _TEXT.sub(_shifted, svg).replace("font-size: 20px;", f"font-size: {CELL / ADVANCE:.3f}px;")


def _shifted(match: re.Match[str]) -> str:
    before, x, between, length, after, text = match.groups()
    shown = html.unescape(text)
    body = shown.strip()
    if not body:
        return ""
    cell = float(length) / cell_len(shown)
    leading = len(shown) - len(shown.lstrip())
    x, length = f"{float(x) + leading * cell:g}", f"{cell_len(body) * cell:g}"
    inner = html.escape(body).replace("\u00a0", "&#160;")
    return f'<text {before}x="{x}"{between}textLength="{length}"{after}>{inner}</text>'


def write_png(svg: str, path: Path, width: int) -> None:
    """Render to `path`, `width` pixels wide; fewer colours where pngquant is installed. Raises NoConverter."""
    converter = shutil.which("rsvg-convert")
    if converter is None:
        raise NoConverter("rsvg-convert is not installed, so no PNG was written; Debian: apt-get install librsvg2-bin")
    subprocess.run([converter, "--width", str(width), "--output", str(path)], input=for_rsvg(svg).encode(), check=True)
    quantiser = shutil.which("pngquant")
    if quantiser is not None:
        subprocess.run(
            [quantiser, "--force", "--strip", "--nofs", "--speed", "1", "--output", str(path), str(COLOURS), str(path)],
            check=True,
        )
