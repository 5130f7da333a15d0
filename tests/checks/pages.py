"""The documentation page of every check, docs/checks/ID.md, from its docstring: `python -m tests.checks.pages`."""

from __future__ import annotations

import sys
from pathlib import Path

from checks.catalog import FAMILIES, Check, all_checks

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "checks"
INDEX = "README.md"

_OF = {
    "cfg": "The draft's config",
    "ckpt": "The draft's weights",
    "data": "The cached hidden states",
    "align": "Which states a cache holds, and which the engine feeds",
    "replay": "The draft run over cached states",
    "flags": "How the server is launched",
    "log": "What the server says while it runs",
    "ops": "The host",
}


def pages() -> dict[str, str]:
    """File name to text: one page a check, and the list of them."""
    checks = all_checks()
    return {f"{check.id}.md": page(check) for check in checks} | {INDEX: index(checks)}


def page(check: Check) -> str:
    """A check's page: what `console check --explain ID` prints, and what evidence it cannot do without."""
    needs = ", ".join(need.value for need in check.needs) or "nothing beyond what it judges"
    return f"# {check.id}\n\n{check.page}\n\nNeeds: {needs}.\n"


def index(checks: list[Check]) -> str:
    """The list of all pages by family."""
    out = ["# The checks", "", "`console check --explain ID` prints the same pages.", ""]
    for family in FAMILIES:
        found = [check for check in checks if check.id.startswith(f"{family}.")]
        if found:
            out += [f"## {family}: {_OF[family]}", ""]
            out += [f"* [{check.id}]({check.id}.md): {check.help.split('. ')[0].rstrip('.')}." for check in found]
            out.append("")
    return "\n".join(out)


def main() -> None:
    """Write the pages, and remove those of checks that are gone."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
