"""align.slot_count: states in the cache, ids in the config and slots of fc are one number, or it says all three."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checks.asking import ask, draft_with
from tests.checks.files import bf16, write_cache, write_target

KEY = "eagle_aux_hidden_state_layer_ids"
ID = "align.slot_count"


def counted(tmp_path: Path, blocks: int, ids: object = (1, 5, 8), slots: int = 3, **change: Any) -> dict[str, Any]:
    """The finding for a cache of `blocks` blocks (the last one final), `ids` in the config and an fc of `slots`."""
    eagle: dict[str, Any] = {} if ids is None else {KEY: list(ids)}  # type: ignore[call-overload]
    draft = draft_with(
        tmp_path / "d", {"eagle_config": {**eagle, **change}}, {"fc.weight": bf16(np.ones((16, 16 * slots)))}
    )
    cache = write_cache(tmp_path / "c", 3, blocks=blocks)
    return ask(ID, draft, write_target(tmp_path / "t"), caches=[{"path": str(cache)}])


@pytest.mark.parametrize(("slots", "ids"), [(3, (1, 5, 8)), (4, (1, 3, 5, 8)), (2, (1, 8)), (3, None)])
def test_equal_counts_pass_whatever_they_are(tmp_path: Path, slots: int, ids: object) -> None:
    assert counted(tmp_path, slots + 1, ids, slots)["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("blocks", "ids", "slots"), [(3, (1, 5, 8), 3), (5, (1, 5, 8), 3), (4, (1, 5), 3), (4, (1, 5, 8), 4), (6, None, 3)]
)
def test_two_counts_that_differ_fail_with_all_of_them(tmp_path: Path, blocks: int, ids: object, slots: int) -> None:
    found = counted(tmp_path, blocks, ids, slots)
    assert found["verdict"] == "FAIL"
    assert f"states in the cache {blocks - 1}" in found["summary"]
    assert f"slots of fc {slots}" in found["summary"]


def test_a_draft_of_the_last_state_alone_has_nothing_to_count(tmp_path: Path) -> None:
    assert counted(tmp_path, 4, use_aux_hidden_state=False)["verdict"] == "INFO"
