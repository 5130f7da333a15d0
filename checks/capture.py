"""Hidden states taken from a running engine: the only module of checks that opens a connection.

Where an engine gives only what it feeds and the target is small, the other states come from the target itself.

The engine is asked on this machine only, one request at a time, with bounded answers and a deadline.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import http.client
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from checks.capture_folder import (
    ALL_STATES,
    ENGINE,
    KINDS,
    REFERENCE,
    Capture,
    CaptureSample,
    Ids,
    Taken,
    integers,
    open_capture,
    write_capture,
)
from checks.capture_ranks import LONG, at_once, compares_long, long_text, longest_prompt, ranks_of
from checks.errors import CaptureFailed, CheckError, NeedsLibrary, NotRunnable
from checks.reference import SMALL, reference_states, transformers_version, weight_bytes
from checks.started import started_at

if TYPE_CHECKING:
    from checks.evidence import Evidence
    from checks.request import ServerRequest

__all__ = ["Capture", "CaptureSample", "Taken", "live_captures", "open_capture", "write_capture"]

MAX_SAMPLES = 6
"""Texts asked of a live engine; naming a slot takes a few hundred tokens."""
MAX_TOKENS = 384
"""Of each text, where nobody asks for more."""
MIN_TOKENS = 16
BUDGET = 96 << 20
"""Bytes of answers in all: states travel as JSON text, about 20 bytes a number."""
NUMBER_BYTES = 20
MAX_ANSWER = 128 << 20
REFERENCE_BUDGET = 1 << 30
"""Bytes of a reference capture: they go to a file, not over a line."""
TOTAL_S = 180.0
"""No further text is asked for after this long."""
STARTING_S = 1.0
"""A server reads the draft's config after it started, no sooner than this."""
CONNECT_S, ANSWER_S = 5.0, 120.0
KEPT = 6
"""Captures kept in the user's cache folder."""

STATES_ROUTE = "/demo/states"
STATES_ENGINE = "demo, sglang-compatible"
"""The engine that offers every R_k of a text; others know no such route and are not asked."""


# -- from a running engine -----------------------------------------------------------------------------------------


def live_captures(evidence: Evidence, most: int = MAX_SAMPLES, tokens: int = MAX_TOKENS) -> tuple[Capture, ...]:
    """Ask the running server for the states of `most` cached texts, of each at most `tokens` tokens.

    What it feeds, and every R_k where it offers that.

    Of a small target every R_k is taken through transformers otherwise, when this python has it.
    () when there is no server or no cache to take texts from. Raises CaptureFailed with the reason and the way out.
    """
    if not evidence.request.server.url or not evidence.caches:
        return ()
    server = EngineServer(evidence.request.server)
    info = server.info()
    hidden = hidden_of(evidence)
    captures, reasons = [], []
    every = ALL_STATES if info.get("engine") == STATES_ENGINE else REFERENCE
    for kind, take in ((ENGINE, _engine_states), (ALL_STATES, _all_states), (REFERENCE, _reference_states)):
        if kind not in (ENGINE, every) or (kind == REFERENCE and not _small(evidence)):
            continue
        try:
            longest = min(tokens, longest_prompt(info)) if kind == ENGINE else tokens
            texts = cached_texts(evidence, _row_bytes(evidence, kind, hidden), most, longest)
            taken = take(evidence, server, info, texts, hidden)
            captures.append(
                write_capture(fresh_folder(evidence, kind), manifest_of(evidence, kind, info, taken), taken)
            )
        except (CaptureFailed, NeedsLibrary) as error:
            reasons.append(str(error))
    if not captures:
        raise CaptureFailed("; ".join(dict.fromkeys(reasons)))
    return tuple(captures)


def _engine_states(
    evidence: Evidence, server: EngineServer, info: Mapping[str, Any], texts: Sequence[Ids], hidden: int
) -> list[Taken]:
    """What the draft is fed: `return_hidden_states` of a one-token request gives the aux states side by side."""
    plain = "speculative_algorithm" in info and not info["speculative_algorithm"]
    if plain and not info.get("enable_return_aux_hidden_states"):
        raise CaptureFailed(
            f"{server.url} serves without speculation, so it returns final states and not what a draft is fed; "
            "start it with the draft"
        )
    edited = _edited_since_start(evidence, info)
    if edited:
        raise CaptureFailed(edited)

    def ask(ids: Ids, own_key: bool = False) -> Taken:
        body: dict[str, Any] = {
            "input_ids": ids.tolist(),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_hidden_states": True,
            **({"extra_key": uuid.uuid4().hex} if own_key else {}),
        }
        limit = min(MAX_ANSWER, len(ids) * 8 * hidden * NUMBER_BYTES * 2 + (1 << 20))
        taken = _prompt_rows(server.post("/generate", body, limit), ids, hidden)
        if not own_key and 2 * len(taken.positions) < len(ids):
            # The prefix cache held most of the text; under a key of its own nothing is found there.
            try:
                again = ask(ids, own_key=True)
            except CaptureFailed:
                return taken
            return again if len(again.positions) > len(taken.positions) else taken
        return taken

    taken = each_text(evidence, texts, ask, "what the engine feeds")
    if compares_long(info) and LONG * _row_bytes(evidence, ENGINE, hidden) < MAX_ANSWER:
        evidence.progress(len(texts), len(texts), f"capturing {at_once(LONG)}")
        # Without it the capture is still whole; that nothing was compared is said.
        with contextlib.suppress(CaptureFailed):
            taken.append(replace(ask(long_text(texts), own_key=True), again=at_once(LONG)))
    return taken


def _prompt_rows(answer: Mapping[str, Any], ids: Ids, hidden: int) -> Taken:
    meta = answer.get("meta_info")
    blocks = meta.get("hidden_states") if isinstance(meta, dict) else None
    if not isinstance(meta, dict) or not isinstance(blocks, list) or not blocks:
        raise CaptureFailed("the server answered without hidden states; start it with --enable-return-hidden-states")
    try:
        rows = np.asarray(blocks[0], dtype=np.float32)
    except (TypeError, ValueError):
        rows = np.zeros(0, dtype=np.float32)
    if rows.ndim != 2 or not rows.size:
        raise CaptureFailed("the server's hidden states are not rows of numbers")
    if rows.shape[1] % hidden:
        raise CaptureFailed(f"the server's states are {rows.shape[1]} wide, no multiple of the target's {hidden}")
    cached = meta.get("cached_tokens")
    count = rows.shape[0]
    if count > len(ids) or (isinstance(cached, int) and cached > 0 and count not in (len(ids), len(ids) - cached)):
        raise CaptureFailed(f"{count} rows came for {len(ids)} tokens, {cached} of them cached: is the server busy?")
    positions = np.arange(len(ids) - count, len(ids), dtype=np.int64)
    return Taken(ids, positions, rows.reshape(count, -1, hidden))


def _all_states(
    evidence: Evidence, server: EngineServer, info: Mapping[str, Any], texts: Sequence[Ids], hidden: int
) -> list[Taken]:
    """Every R_k, from an engine that offers it."""

    def ask(ids: Ids) -> Taken:
        answer = server.post(STATES_ROUTE, {"input_ids": ids.tolist()}, MAX_ANSWER)
        shape, data = answer.get("shape"), answer.get("data")
        if answer.get("dtype") != "float32" or not isinstance(data, str) or integers(shape) is None:
            raise CaptureFailed(f"{STATES_ROUTE} answered without shape, float32 and data")
        sizes = integers(shape) or ()
        try:
            raw = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise CaptureFailed(f"{STATES_ROUTE}: its data is not base64") from None
        if (
            len(sizes) != 3
            or sizes[0] != len(ids)
            or sizes[2] != hidden
            or len(raw) != 4 * sizes[0] * sizes[1] * sizes[2]
        ):
            raise CaptureFailed(f"{STATES_ROUTE}: {len(raw)} bytes of shape {list(sizes)} for {len(ids)} tokens")
        states = np.frombuffer(raw, dtype="<f4").reshape(sizes).astype(np.float32)
        return Taken(ids, np.arange(len(ids), dtype=np.int64), states)

    return each_text(evidence, texts, ask, "every state")


def _reference_states(
    evidence: Evidence, server: EngineServer, info: Mapping[str, Any], texts: Sequence[Ids], hidden: int
) -> list[Taken]:
    """Every R_k, from the target itself."""

    def progress(done: int, total: int) -> None:
        evidence.progress(done, total, "running the target for every state")

    assert evidence.target is not None
    return reference_states(evidence.target.path, texts, progress=progress)


def reference_capture(evidence: Evidence, most: int, layers: int, tokens: int = MAX_TOKENS) -> Capture:
    """R_0 … R_K of `most` cached texts from the target itself; K is `layers`, 0 for all of them.

    It is written to the folder the request names, which must not exist. Raises NotRunnable when target or cache is
    missing, and what `reference_states` and `write_capture` raise.
    """
    target = evidence.target
    if target is None or not evidence.caches:
        missing = "a cache to take texts from (--cache DIR)" if target is not None else "the target (--target DIR)"
        raise NotRunnable(f"a reference capture needs {missing}")
    n = min(layers, target.n) if layers else target.n
    texts = cached_texts(evidence, (n + 1) * target.hidden * 4, most, tokens, REFERENCE_BUDGET)
    taken = reference_states(
        target.path, texts, layers, lambda done, total: evidence.progress(done, total, "running the target")
    )
    given = evidence.request.capture_dir
    folder = Path(given).expanduser() if given else fresh_folder(evidence, REFERENCE)
    if folder.exists():
        raise CaptureFailed(f"{folder} exists already; name a folder that does not, or remove it")
    return write_capture(folder, manifest_of(evidence, REFERENCE, {}, taken), taken)


def _small(evidence: Evidence) -> bool:
    return evidence.target is not None and 0 < weight_bytes(evidence.target.path) <= SMALL


def each_text(evidence: Evidence, texts: Sequence[Ids], ask: Any, what: str) -> list[Taken]:
    """Ask text by text, within the time there is; all of one shape."""
    started = time.monotonic()
    taken: list[Taken] = []
    for index, ids in enumerate(texts):
        if taken and time.monotonic() - started > TOTAL_S:
            break
        evidence.progress(index, len(texts), f"capturing {what}")
        taken.append(ask(ids))
    if len({item.states.shape[1:] for item in taken}) != 1:
        raise CaptureFailed("the server answered with a different number of slots from text to text")
    return taken


# -- what to ask for -----------------------------------------------------------------------------------------------


def cached_texts(evidence: Evidence, row_bytes: int, most: int, longest: int, budget: int = 0) -> list[Ids]:
    """Beginnings of cached texts, spread over the cache; states of a prefix do not depend on what follows it.

    At most `most` texts, each as long as `budget` (BUDGET) bytes allow at `row_bytes` a token. `longest`: what is asked
    for, and no more than the server computes at once: of a prompt cut in chunks only the last one is shown. Raises
    CaptureFailed.
    """
    request, texts = evidence.request, []
    per_text = min(longest, max(MIN_TOKENS, (budget or BUDGET) // (most * row_bytes)))
    for cache in evidence.caches:
        samples = cache.samples(request.samples, request.seed)
        count = min(len(samples), max(1, most // len(evidence.caches)))
        for index in range(count):
            try:
                ids = np.asarray(samples[index * len(samples) // count].token_ids, dtype=np.int64)
            except CheckError:
                continue  # a damaged file of the cache is told by the checks of the cache
            if len(ids) >= 2:
                texts.append(ids[:per_text])
    if not texts:
        raise CaptureFailed("the cache holds no readable text to ask the server about")
    return texts


def _row_bytes(evidence: Evidence, kind: str, hidden: int) -> int:
    if kind != ENGINE:
        n = evidence.target.n if evidence.target is not None else 64
        return (n + 1) * hidden * 6
    return 3 * hidden * NUMBER_BYTES


def hidden_of(evidence: Evidence) -> int:
    return evidence.target.hidden if evidence.target is not None else evidence.caches[0].hidden


def manifest_of(evidence: Evidence, kind: str, info: Mapping[str, Any], taken: Sequence[Taken]) -> dict[str, Any]:
    """The manifest. `ids` are read from the config as it stands, which is what the server read when it was started."""
    asked = kind != REFERENCE
    about: dict[str, Any] = {
        "kind": kind,
        "engine": str(info.get("engine") or "sglang") if asked else "transformers",
        "version": str(info.get("version") or "") if asked else transformers_version(),
        "command": list(_masked(evidence.request.server.argv)) if asked else [],
        "config_sha256": "",
        "ids": None,
        "states": list(range(taken[0].states.shape[1])) if kind != ENGINE else None,
        "ranks": ranks_of(info),
    }
    draft = evidence.draft
    if draft is not None and draft.config_error is None:
        about["config_sha256"] = draft.config_sha256
        ids = draft.aux_ids.in_eagle_config
        about["ids"] = ids if kind == ENGINE and isinstance(ids, list) else None
    return about


def _masked(argv: Sequence[str]) -> Iterable[str]:
    hide = False
    for word in argv:
        name, equals, _ = word.partition("=")
        secret = (
            name.startswith("--") and ("key" in name or "token" in name.rsplit("-", 1)[-1]) and "tokens" not in name
        )
        yield "***" if hide else f"{name}=***" if secret and equals else word
        hide = secret and not equals


def _edited_since_start(evidence: Evidence, info: Mapping[str, Any]) -> str:
    """Why the capture would not be of this config: it was written after the server had read it. "" when it was not.

    Known only where the server or the request tells its process id, and this machine its start; otherwise nothing is
    claimed.
    """
    draft, started = evidence.draft, started_at(info.get("pid") or evidence.request.server.pid or None)
    if draft is None or draft.config_path is None or started is None:
        return ""
    try:
        written = draft.config_path.stat().st_mtime
    except OSError:
        return ""
    if written <= started + STARTING_S:
        return ""
    return (
        "the draft's config was written after the server started, so the server feeds what the old one said; restart it"
    )


# -- where it is kept ----------------------------------------------------------------------------------------------


def fresh_folder(evidence: Evidence, kind: str) -> Path:
    """A fresh folder: below the one the user named, else in the user's cache, where only the latest are kept."""
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    given = evidence.request.capture_dir
    if given:
        folder = Path(given).expanduser() / kind
        return folder if not folder.exists() else folder.with_name(f"{kind}-{stamp}")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eagle-console" / "captures"
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        _prune(base)
    except OSError:
        base = Path(tempfile.mkdtemp(prefix="eagle-console-capture-"))
    return base / f"{stamp}-{kind}"


def _prune(base: Path) -> None:
    """Remove all but the latest captures of ours; a folder that is none of ours stays."""
    ours = sorted(item.parent for item in base.glob("*/manifest.json") if item.parent.name.endswith(KINDS))
    for old in ours[: max(0, len(ours) - KEPT + 2)]:
        shutil.rmtree(old, ignore_errors=True)


# -- the connection ------------------------------------------------------------------------------------------------


class EngineServer:
    """HTTP to the engine on this machine: no proxy, no redirect, bounded answers, a deadline on every read."""

    def __init__(self, server: ServerRequest) -> None:
        self.url = server.url
        self._key = server.api_key
        try:
            parts = urlsplit(server.url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port, parts = "", None, urlsplit("")
        if parts.scheme not in ("http", "https") or not host:
            raise CaptureFailed(f"{server.url!r} is not the URL of a server; give one like http://127.0.0.1:30000")
        if not _loopback(host):
            raise CaptureFailed(f"{server.url} is not on this machine's loopback: cached texts are sent nowhere else")
        self._make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port, self._prefix = host, port, parts.path.rstrip("/")

    def info(self) -> dict[str, Any]:
        """What the server says of itself: /server_info, under its old name where there is no new one."""
        for path in ("/server_info", "/get_server_info"):
            status, body = self._send("GET", path, None, 4 << 20)
            if status == 200:
                return self._object(path, body)
            if status in (401, 403):
                raise CaptureFailed(f"{self.url} asks for an API key ({status}); give it in the deployment")
        raise CaptureFailed(f"{self.url}{path} answered {status}; is it the engine, and is it up?")

    def post(self, path: str, body: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """The JSON object answered to a request. Raises CaptureFailed with the server's own words."""
        status, answer = self._send("POST", path, json.dumps(body).encode("ascii"), limit)
        if status == 200:
            return self._object(path, answer)
        said = answer.decode("utf-8", "replace")
        said = (said.replace(self._key, "the key") if self._key else said)[:2000]
        if "return-hidden-states" in said or "return_hidden_states" in said:
            raise CaptureFailed(
                "the server does not give hidden states: it needs --enable-return-hidden-states, and a restart for it"
            )
        raise CaptureFailed(f"{path} answered {status}: {_printable(said[:300])}")

    def _send(self, method: str, path: str, body: bytes | None, limit: int) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = self._make(self._host, self._port, timeout=CONNECT_S)
        try:
            connection.connect()
            if connection.sock is not None:
                connection.sock.settimeout(ANSWER_S)
            connection.request(method, self._prefix + path, body, headers)
            response = connection.getresponse()
            answer = response.read(limit + 1)
            if len(answer) > limit:
                raise CaptureFailed(f"{self.url}{path}: the answer is larger than {limit >> 20} MiB, not read further")
            return response.status, answer
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise CaptureFailed(f"{self.url} did not answer {path} ({reason}); is the server up?") from None
        finally:
            connection.close()

    def _object(self, path: str, body: bytes) -> dict[str, Any]:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            raise CaptureFailed(f"{self.url}{path} did not answer with JSON; is it the engine?") from None
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, dict):
            raise CaptureFailed(f"{self.url}{path} did not answer with a JSON object")
        return value


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text).strip()
