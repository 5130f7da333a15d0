"""The checks of cached data in every layout: right inputs raise no alarm, each fault is told, with file and row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from checks.finding import Finding, Verdict
from tests.checks import pair
from tests.checks.formats import Format, Text, every, texts

COUNT = 6


def findings(folder: Path, samples: int = 16, target: Path | None = pair.TARGET) -> list[Finding]:
    """Everything the family says of a cache."""
    from checks.catalog import choose, run_checks

    case = pair.Case(cache=folder, target=target, samples=samples)
    found = list(run_checks(case.evidence(), choose(only=["data"])))
    assert not [item for item in found if item.check == "internal"], found
    return found


def alarms(found: list[Finding]) -> list[tuple[str, Verdict]]:
    return [(item.check, item.verdict) for item in found if item.verdict not in (Verdict.PASS, Verdict.INFO)]


def of(found: list[Finding], check: str) -> list[Finding]:
    return [item for item in found if item.check == check]


def known(format: Format) -> list[tuple[str, Verdict]]:
    """What is wrong with a layout as such."""
    return [("data.layout", Verdict.WARN)] if format.layout == "specforge-logits" else []


@pytest.mark.parametrize("samples", [16, 0], ids=["default", "all"])
@pytest.mark.parametrize("format", every())
def test_right_inputs_raise_no_alarm(tmp_path: Path, format: Format, samples: int) -> None:
    found = findings(format.build(tmp_path / "c", texts(COUNT)), samples)
    assert alarms(found) == known(format)
    for check in ("data.files", "data.finite", "data.token_ids", "data.pairing", "data.duplicates", "data.padding"):
        assert [item.verdict for item in of(found, check)] == [Verdict.PASS], check
    (mask,) = of(found, "data.loss_mask")
    assert mask.verdict is (Verdict.PASS if format.mask else Verdict.INFO)


@pytest.mark.parametrize("format", every())
def test_a_truncated_file_is_named_and_hides_nothing(tmp_path: Path, format: Format) -> None:
    folder = format.build(tmp_path / "c", texts(COUNT))
    path = folder / format.first
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = findings(folder, samples=0)
    failed = [item for item in of(found, "data.files") if item.verdict is Verdict.FAIL]
    assert failed
    assert {item.evidence["file"].partition("#")[0] for item in failed} <= {format.first, "samples.idx"}
    # The rest goes on.
    (finite,) = of(found, "data.finite")
    assert finite.verdict is Verdict.PASS, finite.summary
    assert finite.evidence["states_of"] >= 1
    assert {check for check, _ in alarms(found)} <= {"data.files", *(check for check, _ in known(format))}


@pytest.mark.parametrize("format", every())
def test_an_empty_file_is_named(tmp_path: Path, format: Format) -> None:
    folder = format.build(tmp_path / "c", texts(COUNT))
    (folder / format.first).write_bytes(b"")
    failed = [item for item in of(findings(folder), "data.files") if item.verdict is Verdict.FAIL]
    assert any(item.evidence["file"] == format.first and "0 bytes" in item.summary for item in failed)


@pytest.mark.parametrize("format", every())
def test_not_a_number_is_told_with_slot_and_row(tmp_path: Path, format: Format) -> None:
    held = texts(COUNT)
    bad = held[2].slots.copy()
    bad[31, 1, 7] = np.nan
    post, pre = held[2].post.copy(), held[2].pre.copy()
    if not format.slots:
        post[31, 7] = pre[31, 7] = np.nan
    held[2] = held[2].but(slots=bad, post=post, pre=pre)
    found = findings(format.build(tmp_path / "c", held))
    assert alarms(found) == [*known(format), ("data.finite", Verdict.FAIL)]
    (finding,) = of(found, "data.finite")
    (fault,) = finding.evidence["faults"]
    where = "slot 1" if format.slots else "final"
    assert (fault["where"], fault["rows"], fault["first_row"], fault["note"]) == (where, 1, 31, "nan")
    assert finding.evidence["samples_with_it"] == 1
    assert fault["file"] in finding.summary


@pytest.mark.parametrize("format", every(lambda item: item.slots > 0))
def test_a_row_of_zeros_is_told(tmp_path: Path, format: Format) -> None:
    held = texts(COUNT)
    bad = held[0].slots.copy()
    bad[40:44, 2] = 0
    held[0] = held[0].but(slots=bad)
    found = findings(format.build(tmp_path / "c", held))
    assert alarms(found) == [*known(format), ("data.finite", Verdict.FAIL)]
    (fault,) = of(found, "data.finite")[0].evidence["faults"]
    # Without a draft nothing says whether the last block of a bare dump is a slot.
    where = "final" if format.layout == "vllm" else "slot 2"
    assert (fault["where"], fault["rows"], fault["first_row"]) == (where, 4, 40)


@pytest.mark.parametrize("format", every())
def test_ids_of_another_vocabulary_are_told(tmp_path: Path, format: Format) -> None:
    held = texts(COUNT)
    ids = held[4].ids.copy()
    ids[50] = 31_999
    held[4] = held[4].but(ids=ids)
    found = findings(format.build(tmp_path / "c", held))
    assert alarms(found) == [*known(format), ("data.token_ids", Verdict.FAIL)]
    (finding,) = of(found, "data.token_ids")
    assert finding.evidence["samples"][0]["row"] == 50
    assert finding.evidence["samples"][0]["id"] == 31_999
    ids = held[4].ids.copy()
    ids[50] = -100
    held[4] = held[4].but(ids=ids)
    found = findings(format.build(tmp_path / "c2", held))
    assert "is negative" in of(found, "data.token_ids")[0].summary


@pytest.mark.parametrize("format", every(lambda item: item.mask))
def test_masks_that_train_nothing_are_told(tmp_path: Path, format: Format) -> None:
    held = texts(COUNT)
    held[1] = held[1].but(mask=np.zeros_like(held[1].mask))
    (finding,) = of(findings(format.build(tmp_path / "c", held)), "data.loss_mask")
    assert finding.verdict is Verdict.WARN, finding.summary
    assert len(finding.evidence["empty"]) == 1
    held = [text.but(mask=np.zeros_like(text.mask)) for text in held[:2]] + held[2:]
    (finding,) = of(findings(format.build(tmp_path / "c2", held)), "data.loss_mask")
    assert finding.verdict is Verdict.FAIL
    assert finding.evidence["share"] == pytest.approx(2 / COUNT, abs=1e-3)


def padded(text: Text, rows: int, masked_in: bool) -> Text:
    """Ends with ids 0, whose states the target computed as for any other token."""
    ids, mask = text.ids.copy(), text.mask.copy()
    ids[-rows:] = 0
    mask[-rows:] = masked_in
    return text.but(ids=ids, mask=mask)


@pytest.mark.parametrize("format", every())
def test_padding_is_told_and_is_a_fault_only_when_trained_on(tmp_path: Path, format: Format) -> None:
    held = texts(COUNT)
    held[3] = padded(held[3], 9, masked_in=False)
    found = findings(format.build(tmp_path / "c", held))
    assert alarms(found) == known(format)
    (finding,) = of(found, "data.padding")
    assert finding.verdict is Verdict.INFO
    assert (finding.evidence["padded"][0]["from_row"], finding.evidence["padded"][0]["rows"]) == (87, 9)
    held[3] = padded(held[3], 9, masked_in=True)
    (finding,) = of(findings(format.build(tmp_path / "c2", held)), "data.padding")
    assert finding.verdict is (Verdict.WARN if format.mask else Verdict.INFO)


@pytest.mark.parametrize("format", every())
def test_copied_rows_and_texts_are_told(tmp_path: Path, format: Format) -> None:
    held = texts(COUNT)
    text = held[5]
    slots, pre, post = text.slots.copy(), text.pre.copy(), text.post.copy()
    at = next(row for row in range(40, 90) if text.ids[row] != text.ids[row + 1])
    for states in (slots, pre, post):
        states[at + 1] = states[at]
    held[5] = text.but(slots=slots, pre=pre, post=post)
    found = findings(format.build(tmp_path / "c", held))
    assert sorted(alarms(found)) == sorted([*known(format), ("data.duplicates", Verdict.FAIL)]) or (
        # One block alone may be the embedding, where a token met twice has one state.
        format.slots == 0 and alarms(found) == []
    )
    held = texts(COUNT)
    held[5] = held[0]
    found = findings(format.build(tmp_path / "c2", held))
    assert sorted(alarms(found)) == sorted([*known(format), ("data.duplicates", Verdict.WARN)])
    (again,) = of(found, "data.duplicates")
    assert len(again.evidence["same_text"][0]) == 2


@pytest.mark.parametrize("format", every(lambda item: item.layout not in ("deepspec", "nemo", "angelslim")))
def test_ids_and_states_of_two_lengths_are_told(tmp_path: Path, format: Format) -> None:
    held = texts(COUNT)
    held[2] = held[2].but(ids=held[2].ids[:-3], mask=held[2].mask[:-3])
    found = findings(format.build(tmp_path / "c", held))
    assert alarms(found) == [*known(format), ("data.pairing", Verdict.FAIL)]
    (finding,) = of(found, "data.pairing")
    assert "93 token ids and 96 rows" in finding.summary


@pytest.mark.parametrize("format", every(lambda item: item.layout not in ("deepspec", "nemo", "angelslim")))
def test_two_faults_are_two_findings(tmp_path: Path, format: Format) -> None:
    held = texts(COUNT)
    ids = held[4].ids.copy()
    ids[50] = 999
    held[4] = held[4].but(ids=ids)
    bad, post, pre = held[1].slots.copy(), held[1].post.copy(), held[1].pre.copy()
    bad[8:10] = np.inf
    post[8:10] = pre[8:10] = np.inf
    held[1] = held[1].but(slots=bad, post=post, pre=pre)
    found = findings(format.build(tmp_path / "c", held))
    assert sorted(alarms(found)) == sorted(
        [*known(format), ("data.finite", Verdict.FAIL), ("data.token_ids", Verdict.FAIL)]
    )


@pytest.mark.parametrize("format", every(lambda item: item.layout != "deepspec"))
def test_a_cache_of_two_widths_is_told_with_the_files_of_each(tmp_path: Path, format: Format) -> None:
    folder = format.build(tmp_path / "c", texts(COUNT))
    other = texts(COUNT, ks=(3, 7) if format.slots else pair.STATES)
    if not format.slots:
        other = [text.but(post=text.post[:, :96].copy()) for text in other]
    late = format.build(tmp_path / "d", other)
    for path in sorted(late.rglob("*")):
        inside = folder / path.relative_to(late)
        if path.is_file() and any(number in path.name for number in ("_4", "5", "c4", "000002", "-4")):
            inside.write_bytes(path.read_bytes())
    found = findings(folder)
    (finding,) = of(found, "data.mixed_layout")
    assert finding.verdict is Verdict.FAIL, finding.summary
    assert len(finding.evidence["kinds"]) == 2
    assert {check for check, _ in alarms(found)} == {"data.mixed_layout", *(check for check, _ in known(format))}


def test_an_empty_folder_is_no_unknown_layout(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (found,) = of(findings(tmp_path / "c"), "data.layout")
    assert (found.verdict, found.summary) == (Verdict.UNKNOWN, f"{tmp_path / 'c'}: the folder is empty")
