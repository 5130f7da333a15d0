"""The probe, the tables and the drift report over released sources of SGLang, as the package registry has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drift.__main__ import fetch
from tests.drift.report import drift

pytestmark = pytest.mark.engines

VERSIONS = ("0.5.5", "0.5.10", "0.5.12", "0.5.13", "0.5.14", "0.5.16", "0.5.17", "0.5.20", "0.5.23")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


@pytest.mark.parametrize("version", VERSIONS)
def test_source_and_table_agree_for_every_architecture(sources: Path, version: str) -> None:
    assert list(drift(fetch("sglang", version, sources), version)) == []


@pytest.mark.parametrize(
    ("version", "before", "architecture", "words"),
    [
        ("0.5.13", "0.5.12", "DeepseekV3ForCausalLM", "give 2,30,58, the table says 3,31,59"),
        ("0.5.17", "0.5.16", "GptOssForCausalLM", "ids [49, 55, 61] of 61 layers give 49,55,61, the table says 50,56"),
    ],
)
def test_tables_of_the_release_before_show_the_change(
    sources: Path, version: str, before: str, architecture: str, words: str
) -> None:
    lines = list(drift(fetch("sglang", version, sources), version, before))
    assert any(architecture in line and words in line for line in lines), lines
