"""Cases of alignment on disk, made from a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.finding import ConfigFix, Finding
from checks.patch import apply_patch
from tests.checks import pair

if TYPE_CHECKING:
    from pathlib import Path


class Made:
    """Cases on disk: a cache of some states, a draft with some ids, captures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def case(
        self,
        cache: tuple[int, ...] = (3, 7, 10),
        ids: object = (2, 6, 9),
        fed: tuple[int, ...] = (),
        everything: bool = False,
        **more: object,
    ) -> pair.Case:
        ids = list(ids) if isinstance(ids, tuple) else ids
        captures = []
        if fed:
            captures.append(pair.capture(self.folder / "fed", ks=fed, ids=ids if isinstance(ids, list) else None))
        if everything:
            captures.append(pair.capture(self.folder / "all"))
        return pair.Case(
            draft=pair.draft_folder(self.folder / "draft", ids),
            cache=pair.write_cache(self.folder / "cache", cache),
            **{"engines": (pair.engine(),), "captures": tuple(captures), **more},
        )


def patched(case: pair.Case, finding: Finding) -> object:
    assert isinstance(finding.fix, ConfigFix)
    evidence = case.evidence()
    assert evidence.draft is not None
    return apply_patch(evidence.draft.config, finding.fix.patch)["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
