"""Compares released engines with our tables: `python -m tests.drift [[ENGINE==]VERSION…]`.

`make drift VERSIONS="0.5.22 0.5.23 vllm==0.33.0"` does the same; a version without a name is SGLang's, a name without a
version its newest release, and nothing at all the newest of each in the package registry. Sources are downloaded as
wheels and read, never installed, imported or run. Exits 1 when something differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from checks.engines.locate import version_beside
from tests.drift import report, vllm

READERS = {"sglang": report.drift, "vllm": vllm.drift}
PLATFORMS = ("any", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_28_x86_64", "manylinux_2_34_x86_64")


def fetch(engine: str, version: str, into: Path) -> Path:
    """The Python sources of a release's wheel, unpacked; returns the folder that holds the package."""
    into.mkdir(parents=True, exist_ok=True)
    wheels = Path(tempfile.mkdtemp(dir=into))
    wanted = f"{engine}=={version}" if version else engine
    options = [word for platform in PLATFORMS for word in ("--platform", platform)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--python-version", "3.11", *options, "--dest", str(wheels), wanted], check=True)
    (wheel,) = wheels.glob("*.whl")
    root = into / wheel.name.removesuffix(".whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root, [name for name in archive.namelist() if name.endswith((".py", "METADATA"))])
    wheel.unlink()
    wheels.rmdir()
    return root


def named(asked: str) -> tuple[str, str]:
    """`vllm==0.33.0`, `vllm` or `0.5.23` as an engine and its version, "" for the newest."""
    engine, _, version = asked.rpartition("==")
    return (engine or "sglang", version) if version not in READERS else (version, "")


def main() -> int:
    """Print what differs, release by release."""
    parser = argparse.ArgumentParser(prog="python -m tests.drift", description="released engines against our tables")
    parser.add_argument("versions", nargs="*", help="releases, of SGLang where no engine is named")
    parser.add_argument("--tables", default="", help="ask the tables as they were at this release")
    parser.add_argument("--source", type=Path, help="an unpacked release instead of a download")
    parser.add_argument("--keep", type=Path, help="keep the sources in this folder")
    args = parser.parse_args()
    found = 0
    with tempfile.TemporaryDirectory() as scratch:
        for asked in args.versions or (["sglang"] if args.source else READERS):
            engine, version = named(asked)
            root = args.source or fetch(engine, version, args.keep or Path(scratch))
            known = version or version_beside(root / engine)
            print(f"{engine} {known}" + (f", tables of {args.tables}" if args.tables else ""), flush=True)
            for line in READERS[engine](root, known, args.tables):
                print(f"  {line}")
                found += 1
    print(f"{found} differences" if found else "nothing differs")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
