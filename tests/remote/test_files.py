"""Reading, hashing, writing and locking files, on every kind of host."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from remote import files, scripts
from remote.errors import Busy, ChangedMeanwhile, FileMissing, PermissionDenied, RemoteError, StoreLink
from remote.host import Host, LocalHost, resolve
from tests.remote.waiting import gone, running, until

OLD, NEW = b'{"ids": [-1, 2, 30]}\n', b'{"ids": [2, 30, 58]}\n'


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "draft of it's own"
    folder.mkdir()
    path = folder / "config.json"
    path.write_bytes(OLD)
    path.chmod(0o640)
    return path


def left_over(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.name.endswith(".tmp"))


async def test_read_gives_at_most_the_limit_from_the_offset(host: Host, config: Path) -> None:
    assert await files.read(host, str(config), 1 << 20) == OLD
    assert await files.read(host, str(config), 3) == OLD[:3]
    assert await files.read(host, str(config), 4, offset=2) == OLD[2:6]


async def test_bytes_that_are_no_text_are_read_as_they_are(host: Host, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "weights.bin").write_bytes(data)
    assert await files.read(host, str(tmp_path / "weights.bin"), 1 << 24) == data


async def test_missing_files_say_so(host: Host, tmp_path: Path) -> None:
    path = str(tmp_path / "nowhere" / "config.json")
    with pytest.raises(FileMissing, match=r"nowhere/config\.json does not exist"):
        await files.read(host, path, 10)
    assert not await files.exists(host, path)
    assert await files.stat(host, path) is None
    with pytest.raises(FileMissing):
        await files.write_atomic(host, path, NEW)
    assert not (tmp_path / "nowhere").exists()


async def test_stat_tells_kind_size_and_mode(host: Host, config: Path) -> None:
    found = await files.stat(host, str(config))
    assert found is not None
    assert (found.kind, found.size, found.mode, found.store) == ("file", len(OLD), 0o640, False)
    folder = await files.stat(host, str(config.parent))
    assert folder is not None and folder.kind == "dir"
    assert await files.sha256(host, str(config)) == sha(OLD)


async def test_write_replaces_keeps_the_mode_and_the_previous_version(host: Host, config: Path) -> None:
    before = config.stat()
    done = await files.write_atomic(host, str(config), NEW, expect_sha256=sha(OLD))
    assert config.read_bytes() == NEW
    after = config.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino
    assert done.sha256 == sha(NEW)
    backup = Path(done.backup_path)
    assert backup.parent == config.parent / ".console"
    assert backup.read_bytes() == OLD
    assert backup.stat().st_mode == before.st_mode
    assert left_over(config.parent) == []


async def test_every_previous_version_is_kept(host: Host, config: Path) -> None:
    for n in range(3):
        await files.write_atomic(host, str(config), b"version %d" % n)
    kept = {one.read_bytes() for one in (config.parent / ".console").iterdir()}
    assert kept == {OLD, b"version 0", b"version 1"}


async def test_write_keeps_the_owner_or_does_not_write(host: Host, config: Path) -> None:
    if os.geteuid() == 0:
        os.chown(config, 12345, 23456)
        await files.write_atomic(host, str(config), NEW)
        assert (config.stat().st_uid, config.stat().st_gid) == (12345, 23456)
        assert config.stat().st_mode & 0o777 == 0o640
    else:
        config.chmod(0o440)
        with pytest.raises(PermissionDenied):
            await files.write_atomic(host, str(config), NEW)
        assert config.read_bytes() == OLD


async def test_a_new_file_gets_what_was_asked(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "made" / "here" / "record.json"
    done = await files.write_atomic(host, str(path), NEW, mode=0o600, make_folder=True, expect_sha256="")
    assert path.read_bytes() == NEW
    assert path.stat().st_mode & 0o777 == 0o600
    assert done.backup_path == ""
    with pytest.raises(ChangedMeanwhile):
        await files.write_atomic(host, str(path), OLD, expect_sha256="")
    assert path.read_bytes() == NEW


async def test_writing_what_is_there_changes_nothing(host: Host, config: Path) -> None:
    before = config.stat()
    done = await files.write_atomic(host, str(config), OLD)
    assert done.backup_path == ""
    assert config.stat().st_ino == before.st_ino
    assert not (config.parent / ".console").exists()


async def test_a_file_that_changed_meanwhile_is_left_alone(host: Host, config: Path) -> None:
    config.write_bytes(b"somebody else was here")
    with pytest.raises(ChangedMeanwhile) as caught:
        await files.write_atomic(host, str(config), NEW, expect_sha256=sha(OLD))
    assert caught.value.actual == sha(b"somebody else was here")
    config.unlink()
    with pytest.raises(ChangedMeanwhile, match="no longer exists"):
        await files.write_atomic(host, str(config), NEW, expect_sha256=sha(OLD))
    assert list(config.parent.iterdir()) == []


async def test_a_link_is_written_through(host: Host, config: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(config)
    done = await files.write_atomic(host, str(link), NEW)
    assert link.is_symlink()
    assert config.read_bytes() == NEW
    assert done.path == str(config)


@pytest.mark.parametrize("linked", ["file", "folder", "copy"])
async def test_a_model_store_is_never_written(host: Host, tmp_path: Path, linked: str) -> None:
    model = tmp_path / "hub" / "models--org--draft"
    blob = model / "blobs" / sha(OLD)[:40]
    snapshot = model / "snapshots" / ("a" * 40)
    blob.parent.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    blob.write_bytes(OLD)
    if linked == "copy":  # what the hub does where links are not supported
        (snapshot / "config.json").write_bytes(OLD)
    else:
        (snapshot / "config.json").symlink_to(blob)
    path = snapshot / "config.json"
    if linked == "folder":
        (tmp_path / "draft").symlink_to(snapshot)
        path = tmp_path / "draft" / "config.json"
    found = await files.stat(host, str(path))
    assert found is not None and found.store
    with pytest.raises(StoreLink, match=r"shared model store.*private copy"):
        await files.write_atomic(host, str(path), NEW, expect_sha256=sha(OLD))
    assert blob.read_bytes() == OLD
    assert path.read_bytes() == OLD
    assert not list(tmp_path.rglob(".console"))


async def test_a_write_cut_short_by_a_lost_link_writes_nothing(host: Host, config: Path) -> None:
    argv, _ = await scripts.command(host, "files")
    request = b'{"op": "write", "path": "%s", "size": 1000, "expect_sha256": null}\n' % str(config).encode()
    done = await host.run(argv, input=request + b"half of it")
    assert b"cut short" in done.stdout
    assert config.read_bytes() == OLD
    assert list(config.parent.iterdir()) == [config]


async def test_a_folder_is_not_overwritten(host: Host, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="not a regular file"):
        await files.write_atomic(host, str(tmp_path), NEW)


async def test_concurrent_writers_of_one_version_cannot_both_win(host: Host, config: Path) -> None:
    tries = [files.write_atomic(host, str(config), b"writer %d" % n, expect_sha256=sha(OLD)) for n in range(4)]
    done = await asyncio.gather(*tries, return_exceptions=True)
    won = [one for one in done if isinstance(one, files.WriteResult)]
    assert len(won) == 1
    assert all(isinstance(one, files.WriteResult | ChangedMeanwhile) for one in done)
    assert config.read_bytes().startswith(b"writer ")
    assert left_over(config.parent) == []


async def test_tilde_paths_are_those_of_the_host(host: Host) -> None:
    done = await files.write_atomic(host, "~/notes/a.txt", b"x", make_folder=True)
    assert done.path == await resolve(host, "~/notes/a.txt")
    assert await files.read(host, "~/notes/a.txt", 10) == b"x"


async def test_a_lock_is_held_by_one_and_says_by_whom(host: Host, tmp_path: Path) -> None:
    path = str(tmp_path / "locks" / "draft.lock")
    async with files.lock(host, path, "ann on laptop-1") as held:
        with pytest.raises(Busy, match="ann on laptop-1 holds the lock") as caught:
            async with files.lock(host, path, "bob"):
                raise AssertionError("two hold it")
        assert running(caught.value.pid)
        assert caught.value.since > 0
        assert not held.lost
    async with files.lock(host, path, "bob"):
        pass


async def test_the_lock_of_a_dead_holder_is_free(host: Host, tmp_path: Path) -> None:
    path = str(tmp_path / "draft.lock")
    async with files.lock(host, path, "ann") as held:
        with pytest.raises(Busy) as caught:
            async with files.lock(host, path, "bob"):
                pass
        os.kill(caught.value.pid, 9)
        await gone(caught.value.pid)
        await until(lambda: held.lost)
        assert b"ann" in Path(path).read_bytes()
        async with files.lock(host, path, "bob"):
            pass


async def test_a_lock_is_released_when_its_user_fails_or_is_cancelled(host: Host, tmp_path: Path) -> None:
    path = str(tmp_path / "draft.lock")
    holding = asyncio.Event()

    async def hold() -> None:
        async with files.lock(host, path, "ann"):
            holding.set()
            await asyncio.sleep(1000)

    task = asyncio.create_task(hold())
    await holding.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with files.lock(host, path, "bob"):
        pass


async def test_a_lock_that_cannot_be_made_says_why(host: Host, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RemoteError, match="file"):
        async with files.lock(host, str(tmp_path / "file" / "lock"), "ann"):
            pass


@pytest.mark.parametrize("name", ["pipe", "/dev/zero"])
async def test_a_pipe_or_a_device_is_refused_not_waited_for(host: Host, tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for look in (files.read(host, str(tmp_path / name), 10), files.sha256(host, str(tmp_path / name))):
        with pytest.raises(RemoteError, match="not a regular file"):
            await look


@pytest.mark.parametrize(
    ("said", "advice"),
    [("No space left on device", "df -h /draft"), ("Disk quota exceeded", "quota -s"), ("File too large", "See to")],
)
async def test_what_the_system_refuses_says_where_why_and_what_next(
    said: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call(host: Host, *_: object) -> None:
        raise scripts.refusal({"refused": "failed", "path": "", "detail": said}, host.name)

    monkeypatch.setattr(scripts, "call", call)
    with pytest.raises(RemoteError) as refused:
        await files.write_atomic(LocalHost(), "/draft/config.json", b"x")
    assert str(refused.value).startswith(f"/draft/config.json was not written on local: {said}. ")
    assert advice in str(refused.value)
    assert "  " not in str(refused.value)
