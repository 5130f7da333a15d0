"""What the terminal says when the app crashes: the error and where it came from, never what variables held."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from console import __version__
from console.masking import MASK, is_secret, mask_text
from console.plain import plain

if TYPE_CHECKING:
    from console.deployment import Deployment

_SHORTEST = 3
"""Letters: to mask a shorter value would mask half of every text, and hide nothing."""


def crash_text(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """What happened, the traceback without the values of variables, and what to do next.

    Nothing of `secrets` is in it, nor a terminal escape: the message of an error may quote what a host sent.
    """
    text = "".join(traceback.format_exception(error))
    for secret in sorted({form for item in secrets for form in (item, repr(item)[1:-1])}, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, MASK)
    return (
        f"The console {__version__} crashed: {type(error).__name__}. The server on the host was left as it is.\n\n"
        f"{plain(mask_text(text))}\n"
        "This is a bug of the console; please report the lines above to its maintainers, with the keys that led here.\n"
        "Known secrets are masked in them, but read them before you pass them on."
    )


def secrets_of(deployment: Deployment, argv: Sequence[str] = ()) -> tuple[str, ...]:
    """The values of secret flags and variables of a deployment, and of the command line that runs."""
    given: dict[str, Any] = {**deployment.server.args, **deployment.server.env}
    found = [value for key, value in given.items() if is_secret(key)]
    for word, after in zip(argv, [*argv[1:], ""]):
        key, equals, inline = word.partition("=")
        if word.startswith("-") and is_secret(key):
            found.append(inline if equals else after)
    values = [part for value in found for part in (value if isinstance(value, (list, tuple)) else [value])]
    return tuple(value for value in values if isinstance(value, str) and value)
