"""vLLM's launch flags as an installed release declares them."""

from __future__ import annotations

from pathlib import Path

from checks.engines.schema import Flag, read_flags

# The server's own options have moved twice; each field of these classes becomes a flag, in a loop.
_FRONTEND_FILES = ("openai/cli_args.py", "launchers/cli_args.py", "common/cli_args.py")
_FILES = ("engine/arg_utils.py", *(f"entrypoints/{name}" for name in _FRONTEND_FILES))
_FRONTEND = ("BaseFrontendArgs", "FrontendArgs")
_SETTINGS = ("config.py", "config/*.py")
_FOLDERS = ("", "vllm")


def schema(source_root: Path) -> list[Flag]:
    """The launch flags of the release whose source lies at a root: the package, an unpacked wheel or a checkout.

    Raises SourceUnknown when its engine arguments are not there or cannot be parsed.
    """
    folders = (source_root / name for name in _FOLDERS)
    folder = next((folder for folder in folders if (folder / _FILES[0]).is_file()), source_root)
    return read_flags(folder, _FILES, whole=_FRONTEND, settings=_SETTINGS)
