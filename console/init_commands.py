"""`console init`: look at a host, find the running server, and write its deployment file."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from console import init
from console.commands import agreed, ask_about_key, note, say
from console.deployment import HostSpec
from console.errors import Refused
from console.exits import Exit
from console.hints import command
from console.paths import config_dir, ssh_config_file


def run(_: str, args: argparse.Namespace) -> Exit:
    """Run the command."""
    return asyncio.run(_init(args))


async def _init(args: argparse.Namespace) -> Exit:
    from remote.host import open_host

    name = args.name or init.file_name(args.host)
    file = config_dir() / f"{name}.toml"
    ssh = "" if args.host == "local" else args.host
    config = [str(ssh_config_file(args.ssh_config))] if args.ssh_config else None
    host = await open_host(ssh or None, config_paths=config, trust=ask_about_key)
    try:
        found = await init.look(host, HostSpec(ssh=ssh), name, args.port)
    finally:
        await host.close()
    found = init.completed(found, args.cache, args.draft, args.log)
    text = init.as_toml(found.deployment)
    for item in found.notes:
        note(f"note: {item}")
    if args.dry_run:
        print(text, end="")
        note(f"{file} would be written; nothing was")
        return Exit.OK
    if args.read_only:
        raise Refused(f"read-only: {file} was not written")
    if file.exists() and not args.force:
        raise Refused(f"{file} exists; --force writes over it, --name NAME beside it, --dry-run shows the new one")
    note(text)
    await agreed(args, f"write {file}?")
    _write(file, text, args.force)
    say(f"{file} written; next: {command(args, 'check', name)}")
    return Exit.OK


def _write(file: Path, text: str, over: bool) -> None:
    """Whole or not at all, for this account alone; without `over` never on top of a file that came meanwhile."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
    try:
        if over:
            fresh.replace(file)
        else:
            os.link(fresh, file)
    except FileExistsError:
        raise Refused(f"{file} came into being meanwhile, and was left as it is") from None
    finally:
        fresh.unlink(missing_ok=True)
