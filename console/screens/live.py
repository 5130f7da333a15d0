"""Live: is it up, is it accepting, is it wired right, and what does the log say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from textual import work
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from console import feeds, keys
from console.glyphs import glyphs
from console.masking import mask_text
from console.plain import one_line
from console.screens.base import ConsoleScreen
from console.screens.dialogs import Line, Question, Reading
from console.screens.logline import log_lines
from console.serving import Serving
from console.topics import Topic
from console.widgets.logview import LogView
from console.widgets.trend import Trend, TrendValue
from console.widgets.wiring import WiringStrip
from console.wiring import BAD, OK, UNKNOWN, Wiring
from remote.gpu import Gpu

_WIRED = {OK: "$success", BAD: "$error", UNKNOWN: "$accent"}  # how the accept length is drawn


_DOWN = "no server runs: R starts it"
_AWAY, _CONNECTING = "not connected: C tries again", "connecting"
_LOOKING, _READING, _CHECKING = "looking at the server", "reading config and source…", "the checks run"


class LiveScreen(ConsoleScreen):
    """The screen to leave open: headline values above, wiring in the middle, log below.

    Scrolling up in the log detaches it from the tail; F follows again. Enter opens the fields of a line. The wiring is
    learnt unasked once the server answers; where it gives hidden states, it is sent two cached texts for that.
    """

    CSS_PATH = "live.tcss"
    BINDINGS = keys.LIVE
    AUTO_FOCUS = "LogView"

    def __init__(self) -> None:
        super().__init__()
        self._gpus: list[Gpu] | None = None
        self._measuring = ""

    def body(self) -> Iterable[Widget]:
        """Panels, wiring, log."""
        with Horizontal(id="panels"):
            for name, title in (("accept", "accept length"), ("speed", "throughput tok/s"), ("gpus", "GPUs")):
                with VerticalScroll(id=name, classes="panel", can_focus=False) as panel:
                    panel.border_title = title
                    yield Static(id="gpu-lines") if name == "gpus" else Trend(id=f"{name}-trend")
        with VerticalScroll(id="wiring", classes="panel", can_focus=False) as panel:
            panel.border_title = "wiring"
            yield WiringStrip()
        log = LogView(id="log")
        log.add_class("panel")
        log.border_title = "log"
        yield log

    # -- what changed -------------------------------------------------------------------------------------------

    def add_events(self, events: Iterable[Any]) -> None:
        """Append a batch of the engine's events to the log."""
        for log in self.query(LogView):
            log.add(log_lines(events))

    def redraw(self, topic: Topic) -> None:
        """Values on SERVING, wiring on CHECKS and DRAFT."""
        if self.session is None:
            self.query_one(LogView).border_subtitle = _AWAY if self.cockpit.error else _CONNECTING
            self.query_one(WiringStrip).note = _AWAY if self.cockpit.error else _CONNECTING
            return
        if topic is Topic.SERVING or topic is Topic.STATUS:
            self._draw_values()
        if topic in (Topic.CHECKS, Topic.DRAFT, Topic.STATUS):
            strip = self.query_one(WiringStrip)
            strip.wiring = wiring = self.session.wiring()
            strip.note = self._going_on()
            panel = self.query_one("#wiring")
            panel.set_class(wiring.state == BAD, "bad")
            panel.set_class(wiring.state == OK, "good")
            panel.border_title = Content(wiring_title(wiring))
            panel.border_subtitle = Content(one_line(mask_text(self.cockpit.error))[:100])
            status = self.session.last_status
            self.query_one(LogView).border_subtitle = "" if status.up else _DOWN if status.known else _LOOKING

    def _going_on(self) -> str:
        """What is under way that may tell the wiring; "" when nothing is."""
        assert self.session is not None
        if self.cockpit.board.busy:
            return _CHECKING
        if self.cockpit.looking:
            return _READING
        return "" if self.session.last_status.known or self.cockpit.error else _LOOKING

    def _draw_values(self) -> None:
        assert self.session is not None
        serving, status = self.session.serving, self.session.last_status
        gone = status.known and not status.up and serving.accept_len is not None
        age = status.phase if gone else serving.age_words
        self.query_one("#accept").border_subtitle = Content(one_line(self._measuring or serving.by_position_from))
        self.query_one("#accept-trend", Trend).value = TrendValue(
            headline="–" if serving.accept_len is None else f"{serving.accept_len:.2f}",
            suffix=f" /{serving.ceiling}" if serving.ceiling else "",
            history=tuple(serving.accept_history),
            low=1.0,
            high=float(serving.ceiling) if serving.ceiling else None,
            below=serving.accept_words,
            last=position_words(serving),
            style=_WIRED[self.session.wiring().state],
            age=age,
        )
        running = "–" if serving.running is None else str(serving.running)
        queue = "–" if serving.queue is None else str(serving.queue)
        self.query_one("#speed-trend", Trend).value = TrendValue(
            headline="–" if serving.tokens_per_s is None else f"{serving.tokens_per_s:.1f}",
            history=tuple(serving.throughput_history),
            below=f"running {running}  queue {queue}",
            last=_usual(serving.usual_tokens_per_s, serving.baseline),
            style="$accent",
            age=age,
        )
        gpus = self.cockpit.gpus
        if gpus is not None and gpus != self._gpus:
            # A text that changes lays the whole screen out anew; GPUs change more slowly than the log.
            self._gpus = list(gpus)
            self.query_one("#gpu-lines", Static).update(gpu_content(self._gpus))
            self.set_class(len(self._gpus) > 2 * GPU_ROWS, "-many")
            self.set_class(not self._gpus, "-none")

    def on_log_view_changed(self) -> None:
        """The title above the log says whether it follows, what it shows and how much there is."""
        log = self.query_one(LogView)
        words = ["follow" if log.following else "detached (F follows)", log.filter_words, f"{log.total:,} lines"]
        if log.search_words:
            words.append(f"/{log.search_words}/")
        log.border_title = Content("log – " + " – ".join(words))

    def on_log_view_inspected(self, event: LogView.Inspected) -> None:
        """Enter on a line: what the parser read from it."""
        rows = [Content.assemble((f"{key:<24}", "$foreground-muted"), value) for key, value in event.line.fields()]
        body = Content("\n").join([Content(event.line.shown), Content(""), *rows])
        self.app.push_screen(Reading(f"line {event.line.number}: {event.line.kind}", body))

    def copyable(self) -> str:
        """The wiring, as text."""
        return self.query_one(WiringStrip).render().plain

    # -- keys ---------------------------------------------------------------------------------------------------

    def action_follow(self) -> None:
        """Follow the tail."""
        self.query_one(LogView).action_follow()

    def action_kind(self, kind: str) -> None:
        """Show only a kind of line, add it, or take it away."""
        self.query_one(LogView).toggle_kind(kind)

    def action_all_kinds(self) -> None:
        """Show every line."""
        self.query_one(LogView).show_kinds(())

    @work(exclusive=True, group="search")
    async def action_search(self) -> None:
        """Search the log for a regular expression."""
        log = self.query_one(LogView)
        pattern = await self.app.push_screen_wait(Line("search the log (regular expression)", log.search_words))
        if pattern is None:
            return
        if not log.search(pattern):
            self.notify(f"not a regular expression: {pattern}", severity="error", markup=False)
        elif pattern and not log.jump(-1):
            self.notify("not found above", severity="warning")

    def action_next(self, direction: int) -> None:
        """The next or previous line the search finds."""
        if not self.query_one(LogView).jump(direction):
            self.notify("no further match", severity="warning")

    @work(exclusive=True, group="measure")
    async def action_measure(self) -> None:
        """Ask, then send a few prompts and show what each position of their drafts accepted."""
        count, tokens = feeds.MEASURED_PROMPTS, feeds.MEASURED_TOKENS
        body = Content(f"sends {count} prompts of {tokens} tokens, one after the other, to the server that serves now")
        if not await self.app.push_screen_wait(Question("Measure acceptance by position?", body, "send them")):
            return
        app = self.console_app

        def told(done: int, total: int) -> None:
            self._measuring = f"prompt {min(done + 1, total)} of {total}"
            app.publish(Topic.SERVING)

        try:
            await feeds.measure(app.open_session, app.fail, told)
        finally:
            self._measuring = ""
            app.publish(Topic.SERVING)

    def action_connect(self) -> None:
        """Try again to reach a host that could not be opened."""
        self.cockpit.error = ""
        self.console_app.connect()
        self.console_app.publish(Topic.STATUS)

    def why_not(self, action: str) -> str:
        """Only a server that answers can be measured, and only SGLang says it of a request; a lost host found again."""
        session = self.session
        if action == "connect":
            if session is None and self.cockpit.error:
                return ""
            return "connected already" if session else "connecting already"
        if action == "measure":
            if session is None or not session.last_status.healthy:
                return "no server answers, so nothing can be measured"
            engine = session.deployment.server.engine_name
            return "" if engine == "sglang" else f"{engine} does not say by request what each position accepted"
        return ""

    def action_next_error(self) -> None:
        """The last error above."""
        if not self.query_one(LogView).jump(-1, kind="error"):
            self.notify("no error above")


def position_words(serving: Serving) -> str:
    """Acceptance by position; where nothing says it, which key measures it; nothing before the first decode line."""
    if serving.by_position:
        return "by position " + " ".join(f"{rate:.2f}".removeprefix("0") for rate in serving.by_position)
    return "by position not printed: m measures" if serving.accept_len is not None else ""


def wiring_title(wiring: Wiring) -> str:
    """The panel's title: what is known, and from where."""
    state = {OK: "right", BAD: "WRONG", UNKNOWN: "not proven"}[wiring.state]
    sources = [
        f"trained: {wiring.trained_by}" if wiring.trained_by else "",
        f"served: {wiring.source}" if wiring.source else "",
    ]
    return " – ".join(["wiring", state, *filter(None, sources)])


def _usual(value: float | None, baseline: float | None) -> str:
    """What the top line says of the speed: the median of this run, against the run before."""
    if value is None:
        return ""
    return f"median {value:.1f}" + (f", {100 * (value / baseline - 1):+.1f}% vs last run" if baseline else "")


GPU_ROWS = 3
"""GPUs shown one below the other; more than these stand in two columns, without bars."""


def gpu_content(gpus: Sequence[Gpu]) -> Content:
    """One line a GPU: memory as a bar and in GiB, utilisation, temperature; what is not reported is left out."""
    if not gpus:
        return Content.styled("no GPU on this host", "$foreground-muted")
    if len(gpus) <= GPU_ROWS:
        return Content("\n").join(Content(_gpu_words(gpu, bar=True)) for gpu in gpus)
    half = (len(gpus) + 1) // 2
    words = [_gpu_words(gpu, bar=False) for gpu in gpus]
    width = max(map(len, words[:half])) + 2
    pairs = zip(words[:half], [*words[half:], ""])
    return Content("\n").join(Content(f"{left:<{width}}{right}".rstrip()) for left, right in pairs)


def _gpu_words(gpu: Gpu, bar: bool) -> str:
    g, parts = glyphs(), [f"{gpu.index}"]
    if gpu.memory_used is not None and gpu.memory_total:
        full = round(8 * gpu.memory_used / gpu.memory_total)
        parts += [g.full * full + g.empty * (8 - full)] if bar else []
        parts.append(f"{gpu.memory_used / 2**30:.{1 if bar else 0}f}G")
    parts += [f"{gpu.utilization:.0f}%"] if gpu.utilization is not None else []
    parts += [f"{gpu.temperature:.0f}°"] if gpu.temperature is not None else []
    return " ".join(parts)
