"""Secrets out of what is shown, stored or reported: API keys, tokens and passwords in argv, environment and text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "••••"

# A word of the key that says its value is nobody's business. `token` alone would hit --num-draft-tokens and
# tokenizer paths, so it must be the last word, in the singular.
_SECRET = re.compile(
    r"(?i)(?:^|[-_.])(?:api[-_]?key|admin[-_]?key|key|secret|password|passwd|pass|token|credentials?|auth)$"
)
# Keys that end like a secret and are none.
_PUBLIC = re.compile(r"(?i)(?:public|sort|cache|primary|speculative[-_].*)[-_]?(?:key|token)$|^ssh[-_]auth")
# Values that are secrets wherever they stand: well-known prefixes, and the bearer of a header.
_VALUE = re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|ghp_[A-Za-z0-9]{20,})|(?<=Bearer )[^\s'\"]+")
# The same where a text names them: a log's `api_key='…'`, a dict's `'api_key': '…'`, a command's `--api-key …` or its
# words as a list. Only names that no tokenizer has, and after a bare name only `=`: prose says `password: …`.
_NAME = (
    r"(?:(?:api|admin|access|secret|private)[-_]?key|secret|password|passwd|(?:hf|hub|api|auth|access|bearer)[-_]token)"
)
_QUOTED = r"""'(?:[^'\\\n]|\\.)+'|"(?:[^"\\\n]|\\.)+"|\[[^\]\n]*\]"""
_NAMED = re.compile(
    rf"""(?i)(?P<head>{_NAME}(?:['"]?=|['"](?:\s?:|,)\s?(?=['"\[])))"""
    rf"""(?P<value>{_QUOTED}|(?!(?:none|null|true|false)\b)[^\s'"\[,;)}}]+)"""
)
_PROSE = "is|was|as|in|of|to|and|or|with|takes|wants|needs|has"
_FLAG = re.compile(rf"""(?i)(?P<head>--[\w-]{{0,40}}?{_NAME}\s+)(?P<value>{_QUOTED}|(?!-|(?:{_PROSE})\b)[^\s'"`\[]+)""")
_URL_LOGIN = re.compile(r"(?<=://)([^/\s:@]+):[^/\s@]+(?=@)")
_HINTS = ("key", "secret", "passw", "hf", "hub", "api", "auth", "access", "bearer", "sk-", "ghp_", "://")
"""One of them stands in each text that has a secret: every line of a log passes here, and most have none."""


def is_secret(key: str) -> bool:
    """Whether the value of this flag or variable is to be masked."""
    bare = key.lstrip("-")
    return bool(_SECRET.search(bare)) and not _PUBLIC.search(bare)


def mask_text(text: str) -> str:
    """Free text with recognisable tokens, url passwords and the values of what is named as a secret masked."""
    small = text.lower()
    if not any(hint in small for hint in _HINTS):
        return text
    text = _FLAG.sub(_hidden, _NAMED.sub(_hidden, text))
    return _URL_LOGIN.sub(rf"\1:{MASK}", _VALUE.sub(MASK, text))


def _hidden(found: re.Match[str]) -> str:
    """The mask in the quotes or brackets of the value."""
    value = found["value"]
    around = (value[0], value[-1]) if value[0] in "'\"[" else ("", "")
    return f"{found['head']}{around[0]}{MASK}{around[1]}"


def mask_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """The command with the values of secret flags masked, in both `--key value` and `--key=value` form."""
    out: list[str] = []
    hide = False
    for word in argv:
        if hide and not word.startswith("--"):
            out.append(MASK)
            hide = False
            continue
        key, equals, _ = word.partition("=")
        if equals and is_secret(key):
            out.append(f"{key}={MASK}")
            hide = False
            continue
        hide = word.startswith("-") and not equals and is_secret(word)
        out.append(mask_text(word))
    return tuple(out)


def mask_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with secret values masked."""
    return {key: MASK if is_secret(key) and value else mask_text(value) for key, value in env.items()}


def mask_json(value: Any) -> Any:
    """A JSON value with the secrets in its keys and texts masked."""
    if isinstance(value, Mapping):
        return {
            key: MASK if isinstance(item, str) and item and is_secret(str(key)) else mask_json(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        words = all(isinstance(item, str) for item in value)
        return list(mask_argv(value)) if words else [mask_json(item) for item in value]
    return mask_text(value) if isinstance(value, str) else value
