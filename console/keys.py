"""Every key of the console as data: one table a screen, each binding with an id so that it can be remapped."""

from __future__ import annotations

from textual.binding import Binding, BindingType


def _keys(scope: str, *rows: tuple[str, str, str, bool]) -> list[BindingType]:
    """Bindings from rows of (key, action, words, shown in the bottom line)."""
    return [
        Binding(
            key, action, words, show=shown, id=f"{scope}.{action.replace('(', '.').rstrip(')').replace(chr(39), '')}"
        )
        for key, action, words, shown in rows
    ]


NAMES = {
    "question_mark": "?", "slash": "/", "at": "@", "colon": ":", "full_stop": ".", "equals_sign": "=",
    "exclamation_mark": "!", "escape": "Esc", "enter": "Enter", "space": "Space",
}  # fmt: skip
"""Keys as they are written wherever they are shown; all others are shown by their own names."""
HELP, QUIT = "help", "leave"
"""Actions of the bottom line: the one that stays to the last, and the one that goes first."""


def key_words(key: str) -> str:
    """A binding's keys as they are typed."""
    return " ".join(NAMES.get(part, part) for part in key.split(","))


SCREENS = ("live", "draft", "checks", "launch", "runs")
_SCREENS = Binding.Group("Live Draft Checks Launch Runs", compact=True)

APP: list[BindingType] = _keys(
    "app",
    ("R", "restart", "Restart", True),
    ("S", "stop", "Stop", True),
    ("question_mark", HELP, "Help", True),
    ("at", "commands", "Commands", False),
    ("colon", "command_palette", "Palette", False),
    ("t", "next_theme", "Theme", False),
    ("y", "copy", "Copy", False),
    ("q", QUIT, "Quit", True),
)
APP += [
    Binding(str(number), f"go('{name}')", name.capitalize(), id=f"app.go.{name}", group=_SCREENS)
    for number, name in enumerate(SCREENS, 1)
]

LIVE = _keys(
    "live",
    ("F", "follow", "Follow", True),
    ("slash", "search", "Search", True),
    ("d", "kind('decode')", "Decode", True),
    ("p", "kind('prefill')", "Prefill", False),
    ("w", "kind('warning')", "Warnings", True),
    ("e", "kind('error')", "Errors", False),
    ("a", "all_kinds", "All", False),
    ("n", "next(1)", "Next found", False),
    ("N", "next(-1)", "Previous found", False),
    ("exclamation_mark", "next_error", "Next error", False),
    ("m", "measure", "Measure", False),
    ("C", "connect", "Connect", False),
)

DRAFT = _keys(
    "draft",
    ("e", "edit", "Edit", True),
    ("w", "write", "Write", True),
    ("u", "undo", "Undo", True),
    ("z", "restore", "Restore", True),
    ("x", "discard", "Discard", False),
    ("r", "reload", "Reload", False),
)

CHECKS = _keys(
    "checks",
    ("c", "run_all", "All", True),
    ("full_stop", "run_one", "This", True),
    ("f", "fix", "Fix", True),
    ("o", "only_failing", "Failing", True),
    ("x", "cancel", "Cancel", True),
)

LAUNCH = _keys(
    "launch",
    ("enter", "edit", "Edit", True),
    ("slash", "search", "Search", True),
    ("o", "only_set", "Only set", True),
    ("escape", "show_all", "Show all", False),
    ("u", "undo", "Undo", True),
    ("b", "last_good", "Last good", True),
)

RUNS = _keys(
    "runs",
    ("space", "mark", "Mark", True),
    ("equals_sign", "compare", "Compare", True),
)

TABLES = {"live": LIVE, "draft": DRAFT, "checks": CHECKS, "launch": LAUNCH, "runs": RUNS}
ELSEWHERE = frozenset(
    f"{mode}.{action}"
    for mode, actions in (
        ("live", ("search", "measure", "connect")),
        ("draft", ("edit", "write", "undo", "restore", "discard", "reload")),
        ("checks", ("run_all", "cancel")),
        ("launch", ("search", "last_good")),
        ("runs", ("compare",)),
    )
    for action in actions
)
"""What the palette offers from other screens too: it needs nothing under a cursor."""
