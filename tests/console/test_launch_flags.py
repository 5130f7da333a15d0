"""The launch table: every flag of the engine, what is set, what the engine would refuse, and how one is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.checking import Found
from console.deployment import Deployment, ModelSpec, ServerSpec
from console.embedded import Embedded
from console.flags import FlagSchema, KnownFlag, problems_of, read_value, rows_of, schema_of, shown_value
from console.launch import plan_launch
from console.screens.dialogs import Line
from console.screens.flagwords import about_content, flag_findings
from console.topics import Topic
from console.widgets.flagtable import FlagTable, clip
from tests.console.driving import Driver, driven, serving_host

SCHEMA = FlagSchema(
    "sglang",
    "0.5.12",
    "/opt/sglang",
    flags=(
        KnownFlag("attention-backend", "None", "Kernels of attention.", ("fa3", "triton"), type="str"),
        KnownFlag("cuda-graph-bs", "None", "Batch sizes.", type="int", many=True),
        KnownFlag("enable-metrics", "False", "Prometheus.", type="switch"),
        KnownFlag("mem-fraction-static", "None", "Memory.", type="float"),
        KnownFlag("preferred-sampling-params", "None", "JSON."),
        KnownFlag("speculative-num-steps", "None", "Drafted.", type="int"),
        KnownFlag("tensor-parallel-size", "1", "Ranks.", aliases=("tp-size",), type="int"),
    ),
)


NAMES = {field.name for kind in (KnownFlag, FlagSchema) for field in fields(kind)}


def deployment(**args: Any) -> Deployment:
    server = ServerSpec(args={key.replace("_", "-"): value for key, value in args.items()}, env={"A_TOKEN": "x"})
    return Deployment("d", model=ModelSpec("/t", "/d"), server=server)


# -- what a host says --------------------------------------------------------------------------------------------


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(NAMES)), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(sorted(NAMES)), JSON))
def test_whatever_a_host_says_of_its_flags_is_a_list_of_flags(raw: dict[str, Any]) -> None:
    schema = schema_of(raw)
    assert all(flag.name and flag.problem("x") is not None for flag in schema.flags)
    assert schema.flags or schema.why
    assert schema.problem("x", 1) is not None and rows_of(deployment(), plan_launch(deployment()), {}, schema)


def test_a_flag_of_which_the_host_says_only_the_name_is_still_a_flag() -> None:
    schema = schema_of({"flags": [{"name": "port"}, {"default": "1"}, "x", None, {"name": "tp", "type": ["int"]}]})
    assert schema.flags == (KnownFlag("port"), KnownFlag("tp"))


# -- what is known of a flag -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("attention-backend", "fa3", ""),
        ("attention-backend", "fa2", "'fa2' is not one of fa3, triton"),
        ("attention-backend", True, "--attention-backend takes a value"),
        ("attention-backend", ("fa3", "triton"), "--attention-backend takes one value, not 2"),
        ("cuda-graph-bs", (1, 2, 4), ""),
        ("cuda-graph-bs", (1, "x"), "'x' is not a whole number"),
        ("enable-metrics", True, ""),
        ("enable-metrics", 3, "--enable-metrics takes no value: type true, or nothing to leave it out"),
        ("mem-fraction-static", 0.8, ""),
        ("mem-fraction-static", "most", "'most' is not a number"),
        ("preferred-sampling-params", '{"top_p": 1}', ""),
        ("speculative_num_steps", 5, ""),
        ("speculative-num-steps", 5.5, "'5.5' is not a whole number"),
        ("speculative-num-steps", None, ""),
        ("tp-size", 8, ""),
        ("tp", 8, ""),
        ("spec", 3, ""),
        ("speculative-num-step", 3, ""),
        ("speculative-nun-steps", 3, "sglang 0.5.12 has no such flag; the nearest is --speculative-num-steps"),
        ("zzz", True, "sglang 0.5.12 has no such flag"),
        ("zzz", None, ""),
    ],
)
def test_what_the_engine_would_refuse(name: str, value: Any, said: str) -> None:
    assert SCHEMA.problem(name, value) == said


def test_an_engine_whose_source_was_not_read_refuses_nothing() -> None:
    assert FlagSchema(why="no interpreter").problem("zzz", True) == ""


def test_vllm_negates_and_reaches_into_a_flag() -> None:
    schema = FlagSchema("vllm", "0.32.0", flags=(KnownFlag("enable-x"), KnownFlag("compilation-config")))
    assert schema.problem("no-enable-x", True) == schema.problem("compilation-config.mode", 3) == ""
    assert SCHEMA.problem("no-enable-metrics", True)


def test_what_is_set_comes_first_and_every_other_flag_after() -> None:
    made = deployment(tp_size=8, speculative_num_steps=3, nonsense=1)
    plan = plan_launch(
        made, {"speculative-num-steps": 5}, running=["python", "-m", "sglang.launch_server", "--dtype", "x"]
    )
    rows = rows_of(made, plan, {"speculative-num-steps": 5}, SCHEMA)
    assert [(row.key, row.planned, row.source) for row in rows[:3]] == [
        ("tp-size", 8, "[server.args]"),
        ("speculative-num-steps", 5, "staged here"),
        ("nonsense", 1, "[server.args]"),
    ]
    by_key = {row.key: row for row in rows}
    assert by_key["dtype"].difference is not None and by_key["dtype"].planned is None
    assert [key for key, row in by_key.items() if not row.editable] == [
        "model-path",
        "speculative-draft-model-path",
        "port",
        "env A_TOKEN",
    ]
    assert [row.key for row in rows if not row.given] == [
        "attention-backend",
        "cuda-graph-bs",
        "enable-metrics",
        "mem-fraction-static",
        "preferred-sampling-params",
    ]
    assert list(problems_of(rows)) == ["--nonsense: sglang 0.5.12 has no such flag"]
    assert [row.key for row in rows if row.found_by(["batch", "SIZES"])] == ["cuda-graph-bs"]
    assert [row.key for row in rows if row.found_by(["mem_fraction"])] == ["mem-fraction-static"]


def test_a_secret_is_not_shown() -> None:
    assert "hunter2" not in shown_value("api-key", "hunter2")
    made = deployment(api_key="hunter2")
    row = rows_of(made, plan_launch(made), {}, SCHEMA)[0]
    assert row.key == "api-key" and "hunter2" not in about_content(row, ()).plain


@pytest.mark.parametrize(
    ("text", "many", "value"),
    [
        ("", False, None),
        ("false", False, None),
        ("true", False, True),
        ("8", False, 8),
        ("0.5", False, 0.5),
        ("0.90", False, "0.90"),
        ("1_000", False, "1_000"),
        ("a b", False, "a b"),
        ("1 2 4", True, (1, 2, 4)),
        ("1", True, 1),
        ("[1, 2]", False, "[1, 2]"),
    ],
)
def test_a_typed_value_keeps_its_text(text: str, many: bool, value: Any) -> None:
    assert read_value(text, many) == value


@given(st.text(max_size=40), st.integers(1, 30))
def test_a_clipped_text_is_one_line_that_fits(text: str, width: int) -> None:
    found = clip(text, width)
    assert len(found) <= width and "\n" not in found


def test_a_finding_belongs_to_the_flags_that_it_names() -> None:
    item = {"check": "flags.triple", "verdict": "WARN", "summary": "with --a-b 1 and --c", "fix": {"set": {"d": 1}}}
    worse = {"check": "flags.parse", "verdict": "FAIL", "summary": "--c is wrong", "fix": None}
    others = [{**item, "verdict": "PASS"}, {**item, "check": "log.accept"}]
    found = flag_findings([item, worse, *others])
    assert found == {"a-b": [item], "c": [worse, item], "d": [item]}


# -- on the screen -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with serving_host("right") as running:
        yield running


@pytest.fixture
async def driver(embedded: Embedded) -> AsyncIterator[Driver]:
    async with driven(embedded.folder.deployment, (200, 60)) as opened:
        await opened.go("4", "LaunchScreen")
        await opened.until(lambda: opened.app.cockpit.flags is not None, "the flags of the engine")
        await opened.until_shown("mem-fraction-static")
        yield opened


def at(driver: Driver, key: str) -> None:
    table = driver.app.screen.query_one(FlagTable)
    table.move_cursor(row=table.get_row_index(key))


async def staged(driver: Driver, key: str, *typed: str) -> None:
    """Put the cursor on a flag, and type a value for it over the one that stands there."""
    at(driver, key)
    await driver.press("enter")
    await driver.until(lambda: isinstance(driver.app.screen, Line), "the line to type")
    await driver.press("ctrl+u", *typed)


async def test_the_flags_are_those_of_the_engine_on_the_host_with_help_and_choices(driver: Driver) -> None:
    flags = driver.app.cockpit.flags
    assert flags is not None and flags.where.endswith("console/demo/engine") and len(flags.flags) == 24
    at(driver, "dtype")
    await driver.until_shown("one of", "float32", "accepted; it computes in")
    assert any(command.argv[-1].endswith(".pyz") for command in driver.session.host.commands)


async def test_a_value_that_the_engine_would_refuse_takes_a_second_enter_and_is_marked(driver: Driver) -> None:
    await staged(driver, "dtype", *"half")
    await driver.until_shown("'half' is not one of auto, float32, bfloat16")
    await driver.press("enter")
    await driver.until_shown("Enter again takes it all the same")
    assert isinstance(driver.app.screen, Line)
    await driver.press("enter")
    await driver.until_shown("1 staged – 1 would be refused")
    assert driver.app.cockpit.overrides == {"dtype": "half"}
    await driver.press("R")
    await driver.asked("Restart the server?")
    assert "--dtype: 'half' is not one of auto, float32, bfloat16" in driver.flow
    await driver.press("n")
    await driver.until_shown("flags and environment")
    await driver.press("u")
    await driver.until(lambda: not driver.app.cockpit.overrides)
    await driver.until(lambda: "refused" not in driver.text)


async def test_a_flag_that_is_not_set_is_staged_and_dropped_again(driver: Driver) -> None:
    await staged(driver, "log-level", *"debug", "enter")
    await driver.until_shown("1 staged", "--log-level debug")
    assert driver.app.screen.query_one(FlagTable).current_key == "log-level"
    await staged(driver, "log-level", "enter")
    await driver.until(lambda: not driver.app.cockpit.overrides)


async def test_a_flag_of_the_deployment_is_dropped_and_one_that_it_gives_elsewhere_is_not_changed(
    driver: Driver,
) -> None:
    await staged(driver, "decode-log-interval", "enter")
    await driver.until_shown("(dropped)")
    assert "--decode-log-interval" not in driver.session.plan(driver.app.cockpit.overrides).argv
    driver.app.cockpit.overrides.clear()
    at(driver, "model-path")
    await driver.press("enter")
    await driver.until_shown("change it in the deployment")

    assert not isinstance(driver.app.screen, Line)


async def test_flags_are_found_by_words_and_only_what_is_set_can_be_shown(driver: Driver) -> None:
    await driver.press("slash")
    await driver.until(lambda: isinstance(driver.app.screen, Line), "the line to type")
    await driver.press(*"graphs", "enter")
    await driver.until_shown("/graphs/ finds 1", "disable-cuda-graph")
    await driver.press("slash")
    await driver.until(lambda: isinstance(driver.app.screen, Line), "the line to type")
    await driver.press("ctrl+u", "enter")
    await driver.until_shown("mem-fraction-static")
    await driver.press("o")
    await driver.until(lambda: "mem-fraction-static" not in driver.text)
    assert "enable-metrics" in driver.text


async def test_escape_shows_every_flag_again(driver: Driver) -> None:
    assert not driver.app.screen.check_action("show_all", ())
    await driver.press("slash")
    await driver.until(lambda: isinstance(driver.app.screen, Line), "the line to type")
    await driver.press(*"nowhere", "enter")
    await driver.until_shown("/nowhere/ finds 0", "Esc shows all")
    await driver.press("escape")
    await driver.until_shown("mem-fraction-static")
    await driver.press("o")
    await driver.until(lambda: "mem-fraction-static" not in driver.text)
    await driver.press("escape")
    await driver.until_shown("mem-fraction-static")


async def test_a_finding_marks_its_flag(driver: Driver) -> None:
    board = driver.app.cockpit.board
    board.begin()
    board.step(
        Found({"check": "flags.triple", "verdict": "FAIL", "summary": "--tp-size 1 [bold]is wrong", "fix": None})
    )
    driver.app.publish(Topic.CHECKS)
    at(driver, "tp-size")
    await driver.until_shown("FAIL flags.triple: --tp-size 1")
    assert "[bold]is" in driver.text


async def test_where_the_flags_cannot_be_read_what_is_set_is_shown_with_the_reason(embedded: Embedded) -> None:
    made = embedded.folder.deployment
    async with driven(replace(made, host=replace(made.host, python="/no/[bold]python"))) as driver:
        await driver.go("4", "LaunchScreen")
        await driver.until_shown("only what is set is known", "/no/[bold]python", "enable-metrics")
