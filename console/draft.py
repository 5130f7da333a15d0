"""The draft's config.json between the host and the person: staged edits, diff, three-way, atomic write, history."""

from __future__ import annotations

import difflib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checks.jsonfile import MAX_BYTES
from console.errors import ChangedMeanwhile, DraftError, PatchError
from console.jsontext import Change, apply_patch, changes, locate, same, steps_of
from console.runs import RunHistory, Version, sha_of

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from remote.host import Host

LONGEST_CONFIG = MAX_BYTES
"""What is larger is no config: the limit of the checks, so that they and the console speak of one file."""

Diagnose = Callable[[str], Awaitable[list[dict[str, Any]]]]
"""Asks the `cfg` checks about a config's text: findings as JSON objects."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One remark on the staged text. `line` counts from 1; `check` is empty for a syntax error."""

    line: int
    verdict: str
    text: str
    check: str = ""


@dataclass(frozen=True, slots=True)
class ThreeWay:
    """Both sides changed: `ours` began from `base`, and the host now holds `theirs`.

    `merged` is theirs with our changes on top, or None where that cannot be said; `conflicts` are the pointers both
    sides changed differently.
    """

    base: str
    ours: str
    theirs: str
    merged: str | None
    conflicts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """A write that happened: the new sha256, the backup's path on the host, and the version kept here."""

    sha256: str
    backup_path: str
    version: Version


class DraftStage:
    """One config.json: what the host held when it was read (`base`), and what is staged to replace it."""

    def __init__(
        self,
        host: Host,
        folder: str,
        history: RunHistory,
        lock: Callable[[str], AbstractAsyncContextManager[object]],
        diagnose: Diagnose | None = None,
    ) -> None:
        """`lock(action)` is entered around every write; it raises where a write is not allowed."""
        self._host, self._history, self._lock, self._diagnose = host, history, lock, diagnose
        self.path = folder if folder.endswith(".json") else f"{folder.rstrip('/')}/config.json"
        self.base = ""
        self.staged = ""
        self.loaded = False
        self.three_way: ThreeWay | None = None
        """Set when a write met a file that had changed; cleared by `take_merged`, `take_theirs` and `load`."""
        self.finding: Mapping[str, Any] | None = None
        """The finding whose fix was staged last, and that the next run is linked to."""
        self.odd_sha: str | None = None
        """Where the host holds no readable config: the SHA-256 of what lies there, "" for nothing. None elsewhere."""
        self._undo: list[tuple[str, Mapping[str, Any] | None]] = []

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def base_sha(self) -> str:
        """The SHA-256 of what the host held when it was read."""
        return sha_of(self.base) if self.odd_sha is None else self.odd_sha

    @property
    def dirty(self) -> bool:
        """Whether something is staged."""
        return self.staged != self.base

    async def load(self) -> str:
        """Read the file anew; what was staged is dropped. A version that was not written here is kept as `outside`.

        Raises remote's errors: FileMissing, PermissionDenied.
        """
        self._begin(await self._read(), None)
        await self._history.keep_version(self._host.name, self.path, self.base, "outside", "found on the host")
        return self.base

    async def load_for_restore(self) -> str:
        """Like `load`; where that finds no config to read, begin from nothing and return why; else "".

        A write then replaces what lies there now, and the host keeps it as the backup. Raises remote's errors where
        not even its hash can be had.
        """
        from remote import files
        from remote.errors import FileMissing

        try:
            await self.load()
            return ""
        except FileMissing as error:
            why, sha = str(error), ""
        except DraftError as error:
            why, sha = str(error), await files.sha256(self._host, self.path)
        self._begin("", sha)
        return why

    def _begin(self, text: str, odd_sha: str | None) -> None:
        self.base = self.staged = text
        self.loaded, self.three_way, self.finding, self.odd_sha = True, None, None, odd_sha
        self._undo.clear()

    async def refresh(self) -> bool:
        """Look at the host again. Nothing staged: take what is there. Returns whether the file had changed."""
        theirs = await self._read()
        if theirs == self.base and self.odd_sha is None:
            return False
        await self._history.keep_version(self._host.name, self.path, theirs, "outside", "changed on the host")
        if self.dirty:
            self.three_way = _three_way(self.base, self.staged, theirs)
        else:
            self.base = self.staged = theirs
            self.odd_sha = None
        return True

    async def _read(self) -> str:
        from remote import files

        data = await files.read(self._host, self.path, LONGEST_CONFIG + 1)
        if len(data) > LONGEST_CONFIG:
            raise DraftError(
                f"{self.path} is larger than {LONGEST_CONFIG // 1_000_000} MB: not a model's config.json; "
                "check the path, or put back a version kept here: console draft history"
            )
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise DraftError(
                f"{self.path} is not UTF-8 text ({error.reason} at byte {error.start}); "
                "console draft history lists the versions kept here, console draft restore stages one"
            ) from None

    # -- staging ---------------------------------------------------------------------------------------------------

    def edit(self, text: str) -> list[Diagnosis]:
        """Stage a text as typed; says at once where it is not JSON. Undo takes back one such step."""
        self._stage(text, self.finding)
        return syntax(text)

    def stage_fix(self, fix: Mapping[str, Any], finding: Mapping[str, Any] | None = None) -> list[Change]:
        """Stage a finding's `config` fix on top of what is staged, and say what it changes.

        Raises PatchError when it was made for another config, DraftError when the staged text is not JSON.
        """
        if fix.get("kind") != "config":
            raise DraftError("this fix changes launch flags, not the draft's config; stage it in the launch plan")
        if fix.get("file", "config.json") != self.path.rpartition("/")[2]:
            raise DraftError(f"this fix is for {fix.get('file')}, and {self.path} is open")
        before = self.staged
        try:
            after = apply_patch(before, fix["patch"])
        except json.JSONDecodeError as error:
            raise DraftError(
                f"the staged text is not JSON (line {error.lineno}: {error.msg}); repair or undo it"
            ) from None
        self._stage(after, finding)
        return changes(json.loads(before), json.loads(after))

    def set(self, pointer: str, value: Any) -> list[Change]:
        """Stage one key: `pointer` as `/eagle_config/use_aux_hidden_state`, or a bare top-level key.

        Missing parents are added. Raises PatchError, DraftError.
        """
        pointer = pointer if pointer.startswith("/") else f"/{pointer}"
        try:
            held: Any = json.loads(self.staged)
        except ValueError as error:
            raise DraftError(f"the staged text is not JSON ({error}); repair or undo it") from None
        before, patch, names = held, [], steps_of(pointer)
        if "" in names:
            raise DraftError(f"{pointer!r} names an empty key, which no config has; write KEY=VALUE or /KEY/KEY=VALUE")
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            raise DraftError(
                f"{pointer}: NaN and Infinity are no JSON, and engines refuse such a config; write a number or null"
            ) from None
        for depth, name in enumerate(names):
            here = "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in names[: depth + 1])
            if not isinstance(held, dict):
                raise PatchError(f"{pointer}: its parent is not an object")
            last = depth == len(names) - 1
            if last or name not in held:
                patch.append({"op": "add", "path": here, "value": value if last else {}})
            held = held.get(name, {})
        self._stage(apply_patch(self.staged, patch), self.finding)
        return changes(before, json.loads(self.staged))

    def undo(self) -> bool:
        """Take back the last staged step; False when there is none."""
        if not self._undo:
            return False
        self.staged, self.finding = self._undo.pop()
        return True

    def adopt(
        self, base: str, staged: str, finding: Mapping[str, Any] | None = None, odd_sha: str | None = None
    ) -> None:
        """Take up, after `load`, an edit that was staged before and began from `base` (or `odd_sha`, see there).

        Where the host holds another text by now, `three_way` says what can be made of the two.
        """
        theirs = self.base
        self.base, self.odd_sha = base, odd_sha
        self._stage(staged, finding)
        if theirs != base:
            self.three_way = _three_way(base, staged, theirs)

    def discard(self) -> None:
        """Drop everything staged."""
        self._stage(self.base, None)

    def _stage(self, text: str, finding: Mapping[str, Any] | None) -> None:
        if text != self.staged:
            self._undo.append((self.staged, self.finding))
            self.staged = text
        self.finding = finding if self.dirty else None

    # -- looking ---------------------------------------------------------------------------------------------------

    def diff(self) -> list[str]:
        """What a write would change, as the lines of a unified diff; [] when nothing is staged."""
        return unified(self.base, self.staged, "on the host", "staged")

    def changes(self) -> list[Change]:
        """What a write would change, key by key; [] when either text is not JSON (the diff still shows it)."""
        try:
            return changes(json.loads(self.base), json.loads(self.staged))
        except ValueError:
            return []

    async def diagnose(self) -> list[Diagnosis]:
        """What the `cfg` checks say of the staged text, each at its line; a syntax error comes alone."""
        text = self.staged
        wrong = syntax(text)
        if wrong or self._diagnose is None:
            return wrong
        findings = await self._diagnose(text)
        return [
            Diagnosis(_line_of(text, item), item["verdict"], str(item["summary"]), item["check"])
            for item in findings
            if item["verdict"] in ("FAIL", "WARN")
        ]

    # -- writing ---------------------------------------------------------------------------------------------------

    async def write(self, why: str = "", force: bool = False) -> Written:
        """Replace the file on the host by what is staged: atomically, the previous version kept there and here.

        Raises DraftError when nothing is staged or it is not a JSON object (`force` writes what is not), Refused,
        ChangedMeanwhile when the file is not the one read (`three_way` then holds the way out), remote's errors.
        """
        from remote import files
        from remote.errors import ChangedMeanwhile as NotThatFile

        if not self.dirty:
            raise DraftError(f"nothing is staged for {self.path}")
        if (wrong := syntax(self.staged)) and not force:
            raise DraftError(f"the staged text was not written: line {wrong[0].line}: {wrong[0].text}")
        async with self._lock(f"write {self.path}"):
            try:
                done = await files.write_atomic(
                    self._host, self.path, self.staged.encode(), expect_sha256=self.base_sha, backup=True
                )
            except NotThatFile as error:
                try:
                    await self.refresh()
                except DraftError as unreadable:
                    raise DraftError(f"it changed since it was read, and nothing was written: {unreadable}") from error
                theirs = self.three_way.theirs if self.three_way else ""
                raise ChangedMeanwhile(
                    f"{self.path} changed on the host since it was read; nothing was written. "
                    f"Take theirs, or write the merged text",
                    theirs,
                ) from error
        version = await self._history.keep_version(self._host.name, self.path, self.staged, "console", why or "written")
        self.base, self.three_way, self.odd_sha = self.staged, None, None
        self._undo.clear()
        return Written(done.sha256, done.backup_path, version)

    def take_merged(self) -> None:
        """After ChangedMeanwhile: stage theirs with our changes on top. Raises DraftError when that cannot be said."""
        if self.three_way is None or self.three_way.merged is None:
            raise DraftError("the two versions cannot be merged key by key; take theirs and edit again")
        merged, self.base = self.three_way.merged, self.three_way.theirs
        self.three_way = self.odd_sha = None
        self._stage(merged, self.finding)

    def take_theirs(self) -> None:
        """After ChangedMeanwhile: drop what is staged, go on from what the host holds."""
        if self.three_way is not None:
            self.base, self.three_way, self.odd_sha = self.three_way.theirs, None, None
            self._stage(self.base, None)

    async def history(self) -> list[Version]:
        """Every version kept of this file, newest first."""
        return await self._history.versions(self._host.name, self.path)

    async def restore(self, version: int | str) -> Version:
        """Stage an earlier version, by its number or the begin of its sha256. Raises DraftError when there is none."""
        for item in await self.history():
            if str(item.id) == str(version) or (len(str(version)) >= 6 and item.sha.startswith(str(version))):
                self._stage(item.text, None)
                return item
        raise DraftError(f"no version {version} of {self.path} is kept here; `console draft history` lists them")


def syntax(text: str) -> list[Diagnosis]:
    """Why a text is not a JSON object, and on which line; [] when it is one."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return [Diagnosis(error.lineno, "FAIL", f"not JSON: {error.msg} (column {error.colno})")]
    except RecursionError:
        return [Diagnosis(1, "FAIL", "not a config: nested too deeply")]
    return [] if isinstance(value, dict) else [Diagnosis(1, "FAIL", "not an object: a config begins with {")]


def unified(before: str, after: str, before_name: str, after_name: str) -> list[str]:
    """A unified diff as lines without their ends."""
    return [
        line.rstrip("\n")
        for line in difflib.unified_diff(before.splitlines(), after.splitlines(), before_name, after_name, lineterm="")
    ]


def _three_way(base: str, ours: str, theirs: str) -> ThreeWay:
    try:
        before, mine, now = json.loads(base), json.loads(ours), json.loads(theirs)
    except ValueError:
        return ThreeWay(base, ours, theirs, None, ())
    their_changes = {item.pointer: item for item in changes(before, now)}
    conflicts, patch = [], []
    for item in changes(before, mine):
        clash = [other for pointer, other in their_changes.items() if _overlap(pointer, item.pointer)]
        if any(not (other.pointer == item.pointer and same(other.after, item.after)) for other in clash):
            conflicts.append(item.pointer)
        if item.absent == "after":
            patch.append({"op": "remove", "path": item.pointer})
        else:
            patch.append({"op": "add", "path": item.pointer, "value": item.after})
    try:
        merged = None if conflicts else apply_patch(theirs, patch)
    except PatchError:
        merged = None
    return ThreeWay(base, ours, theirs, merged, tuple(conflicts))


def _overlap(left: str, right: str) -> bool:
    return left == right or left.startswith(f"{right}/") or right.startswith(f"{left}/")


def _line_of(text: str, finding: Mapping[str, Any]) -> int:
    """The line of the key a finding speaks of: the `path` in its evidence, else the first path its fix changes."""
    pointers: Sequence[Any] = [
        (finding.get("evidence") or {}).get("path"),
        *(step["path"] for step in ((finding.get("fix") or {}).get("patch") or ())),
    ]
    for pointer in pointers:
        if not isinstance(pointer, str) or not pointer:
            continue
        node, found = locate(text), 0
        for step in steps_of(pointer) if pointer.startswith("/") else []:
            if step not in node.members:
                break
            node = node.members[step]
            found = node.key_start
        if found:
            return text.count("\n", 0, found) + 1
    return 1
