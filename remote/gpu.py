"""The GPUs of a host, as nvidia-smi shows them."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

from remote.errors import CommandFailed
from remote.host import Host

# Names of `nvidia-smi --help-query-gpu`; memory in MiB, power in watts, temperature in degrees Celsius, use in percent.
FIELDS = (
    "index",
    "uuid",
    "name",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "temperature.gpu",
    "power.draw",
    "power.limit",
)
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU now. Memory in bytes, `utilization` in percent, `temperature` in °C, power in watts; None = not reported.

    `pids` are the compute processes on it that the account may see (inside a container usually none).
    """

    index: int
    uuid: str
    name: str
    memory_used: int | None
    memory_total: int | None
    utilization: float | None
    temperature: float | None
    power: float | None
    power_limit: float | None
    pids: tuple[int, ...]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A], [Not Supported], ERR!
        return None


def _rows(text: bytes) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text.decode("utf-8", "replace")))]


def parse(gpus: bytes, apps: bytes) -> list[Gpu]:
    """GPUs from the two CSV answers (without header and units). A row that is not one is passed over."""
    pids: dict[str, list[int]] = {}
    for row in _rows(apps):
        if len(row) == 2 and row[1].isdigit():
            pids.setdefault(row[0], []).append(int(row[1]))
    found = []
    for row in _rows(gpus):
        if len(row) != len(FIELDS) or not row[0].isdigit():
            continue
        used, total, use, heat, power, limit = (_number(cell) for cell in row[3:])
        found.append(
            Gpu(
                int(row[0]),
                row[1],
                row[2],
                None if used is None else int(used * MIB),
                None if total is None else int(total * MIB),
                use,
                heat,
                power,
                limit,
                tuple(sorted(pids.get(row[1], ()))),
            )
        )
    return found


async def snapshot(host: Host) -> list[Gpu]:
    """The GPUs now; [] where there is no nvidia-smi. Raises CommandFailed when there is one and it fails."""
    form = "--format=csv,noheader,nounits"
    argv = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", form]
    gpus = await host.run(argv, check=False, timeout=20)
    if gpus.returncode == 127:
        return []
    if gpus.returncode != 0:
        # It explains itself on stdout.
        raise CommandFailed(argv, gpus.returncode, gpus.stderr + gpus.stdout)
    apps = await host.run(["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", form], check=False, timeout=20)
    return parse(gpus.stdout, apps.stdout if apps.returncode == 0 else b"")
