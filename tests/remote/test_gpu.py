"""Reading nvidia-smi: what it prints, what it leaves out, and where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remote import gpu
from remote.errors import CommandFailed
from remote.host import LocalHost

GPUS = b"""0, GPU-aaaa, NVIDIA H200, 1024, 143771, 37, 41, 121.50, 700.00
1, GPU-bbbb, NVIDIA B200, [N/A], [N/A], [Not Supported], ERR!, [N/A], [N/A]
"""
APPS = b"GPU-aaaa, 4242\nGPU-aaaa, 17\nGPU-cccc, 5\n"


def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = tmp_path / "bin" / "nvidia-smi"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


async def test_what_is_reported_and_what_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpus").write_bytes(GPUS)
    (tmp_path / "apps").write_bytes(APPS)
    nvidia_smi(
        tmp_path,
        monkeypatch,
        f"case $1 in --query-gpu=*) cat '{tmp_path}/gpus';; --query-compute-apps=*) cat '{tmp_path}/apps';; esac\n",
    )
    first, second = await gpu.snapshot(LocalHost())
    assert first == gpu.Gpu(0, "GPU-aaaa", "NVIDIA H200", 1 << 30, 143771 << 20, 37.0, 41.0, 121.5, 700.0, (17, 4242))
    assert second == gpu.Gpu(1, "GPU-bbbb", "NVIDIA B200", None, None, None, None, None, None, ())


async def test_no_nvidia_smi_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert await gpu.snapshot(LocalHost()) == []


async def test_an_nvidia_smi_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, 'echo "couldn\'t communicate with the NVIDIA driver"; exit 9\n')
    with pytest.raises(CommandFailed, match="couldn't communicate with the NVIDIA driver"):
        await gpu.snapshot(LocalHost())


@pytest.mark.parametrize("text", [b"", b"\n", b"No devices were found\n", b"x, y\n", b"\xff\xfe", GPUS[:-30]])
def test_rows_that_are_none_are_passed_over(text: bytes) -> None:
    assert len(gpu.parse(text, text)) <= 1
