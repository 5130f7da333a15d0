"""SGLang's launch flags: the ones an installed release declares, and what becomes of the speculative ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from checks.engines.launch_facts import LaunchFacts
from checks.engines.versions import release, span

if TYPE_CHECKING:
    from checks.engines.schema import Flag

_DEEP, _WIDE = (3, 1, 4), (5, 4, 8)

# (steps, topk, draft tokens) chosen when none is given: by architecture and version; the last row is for the others.
_AUTO: tuple[tuple[tuple[str, ...], str, tuple[int, int, int]], ...] = (
    (("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1ModelForCausalLM"), "", _WIDE),
    (("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"), "0.4.9", _DEEP),
    (("GptOssForCausalLM",), "0.5.1", _DEEP),
    (("DeepseekV32ForCausalLM", "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"), "0.5.3", _DEEP),
    (("Glm4MoeForCausalLM", "MistralLarge3ForCausalLM", "PixtralForConditionalGeneration"), "0.5.7", _DEEP),
    ((), "0.5.8", _DEEP),
)


@dataclass(frozen=True)
class Effective:
    """Speculation as it runs. `ceiling` = the accept length nothing can exceed: min(steps + 1, draft tokens)."""

    steps: int
    topk: int
    draft_tokens: int
    adjusted: bool = False
    """The server changes the number of draft tokens that was asked for: with topk 1 it is steps + 1."""

    @property
    def ceiling(self) -> int:
        """Tokens emitted per verify step at best, bonus token included."""
        return min(self.steps + 1, self.draft_tokens)


def effective(facts: LaunchFacts, version: str = "", architecture: str = "") -> Effective | None:
    """The numbers in effect for a command line, None without speculation or where the server would refuse it.

    All three absent: chosen by architecture and version. topk 1: draft tokens become steps + 1, whatever was asked.
    """
    if not facts.algorithm:
        return None
    given = (facts.steps, facts.topk, facts.draft_tokens)
    if given == (None, None, None):
        return Effective(*_auto(version, architecture))
    if facts.steps is None or facts.topk is None:
        return None
    if facts.topk == 1:
        asked = facts.draft_tokens
        return Effective(facts.steps, 1, facts.steps + 1, asked is not None and asked != facts.steps + 1)
    return Effective(facts.steps, facts.topk, facts.draft_tokens) if facts.draft_tokens is not None else None


def _auto(version: str, architecture: str) -> tuple[int, int, int]:
    asked = release(version)
    for names, since, numbers in _AUTO:
        if (not names or architecture in names) and (not asked or asked in span(since)):
            return numbers
    return _WIDE


# Up to 0.5.13 a flag is an add_argument call; from 0.5.14 on an annotated field, from 0.5.20 on in files of groups.
_FILES = ("server_args.py", "arg_groups/fields/*.py")
_FOLDERS = ("srt", "sglang/srt", "python/sglang/srt", "")


def schema(source_root: Path) -> list[Flag]:
    """The launch flags of the release whose source lies at a root: the package, an unpacked wheel or a checkout.

    Raises SourceUnknown when its server arguments are not there or cannot be parsed.
    """
    # Here, because most of what is asked of flags needs no source.
    from checks.engines.schema import read_flags

    folders = (source_root / name for name in _FOLDERS)
    return read_flags(next((folder for folder in folders if (folder / _FILES[0]).is_file()), source_root), _FILES)
