"""The app's way to crash: our own short text in place of Textual's, which shows the values of variables."""

from __future__ import annotations

from textual.app import App
from textual.worker import WorkerFailed

from console.crash import crash_text
from console.exits import Exit


class CrashingApp(App[None]):
    """An app whose unhandled exceptions end in `crash_text`, once, on stderr. A test sees the exception itself."""

    _crash = ""
    _crash_said = False

    def secrets(self) -> tuple[str, ...]:
        """What must not be in the text."""
        return ()

    def _handle_exception(self, error: Exception) -> None:
        cause = error.error if isinstance(error, WorkerFailed) else error
        self._crash = self._crash or crash_text(cause, self.secrets())
        super()._handle_exception(error)
        self._return_code = int(Exit.NOT_RUN)

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()

    def _print_error_renderables(self) -> None:
        if not self._crash:
            super()._print_error_renderables()
        elif not self._crash_said:
            self._crash_said = True
            self.error_console.print(self._crash, markup=False, highlight=False, soft_wrap=True)
        self._exit_renderables.clear()
