"""What a message tells to type: the command with its deployment and its -F, and the word that was meant."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable


def command(args: argparse.Namespace, words: str, name: str | None = None, *more: str) -> str:
    """`console WORDS NAME MORE -F FILE`: the deployment and the ssh configuration are those that `args` was given.

    `name` is the deployment where `args` does not say it; without either it is the only one there is.
    """
    named = name or getattr(args, "name", None)
    given = getattr(args, "ssh_config", None)
    typed = [*([named] if named else []), *(["-F", given] if given else []), *more]
    return shlex.join(["console", *words.split(), *typed])


def meant(word: str, known: Iterable[str]) -> str:
    """The word that `word` is a misspelling of; "" where none is near enough."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), 1, 0.65)), "")


NO_DEPLOYMENT = "`console init [USER@]HOST` writes one, and `console demo` needs none"
"""What to do where there is no deployment, or not the one that was named."""
