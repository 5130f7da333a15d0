"""The API key of a server: on its command line, in its file of flags, in its environment, or in the deployment."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from console.launch import flags_of

if TYPE_CHECKING:
    from console.deployment import Deployment
    from remote.host import Host

_VARIABLES = {"vllm": "VLLM_API_KEY"}
"""The variable in which an engine looks for its key where no flag gives one; SGLang has none."""
_CONFIG = "config"
"""The flag of both engines that names a YAML file of flags; the command line wins over it (SGLang from 0.5.3 on)."""
_CONFIG_BYTES = 1 << 20
# A scalar or the first of a list, plain or quoted, at the top level. Of YAML no more is read: the rest of the file
# is for the engine.
_IN_CONFIG = re.compile(
    r"""^["']?api[-_]key["']?[ \t]*:[ \t]*(?:\[[ \t]*|\r?\n[ \t]*-[ \t]+)?"""
    r"""(?:"(?P<double>[^"\\\n]+)"|'(?P<single>[^'\n]+)'|(?P<plain>(?!null\b|~)[^\s"'\[\]{}&*!|>%@`#,][^\s,\]]*))""",
    re.MULTILINE,
)


def api_key(deployment: Deployment, argv: Sequence[str], env: Mapping[str, str] | None = None, config: str = "") -> str:
    """The key that a server of this command line and environment wants, as they or else the deployment say.

    `config` is the text of the file that --config names. "" where none of them names a key.
    """
    spec = deployment.server
    variable = _VARIABLES.get(spec.engine_name, "")
    found = _IN_CONFIG.search(config)
    given = (
        flags_of(deployment, argv).get("api-key"),
        next(filter(None, found.groups())) if found is not None else None,
        (env or {}).get(variable),
        *(value for key, value in spec.args.items() if key.lstrip("-").replace("_", "-") == "api-key"),
        spec.env.get(variable),
    )
    firsts = (value[0] if isinstance(value, (list, tuple)) and value else value for value in given)
    # A masked or broken one cannot stand in a header.
    return next((key for key in firsts if isinstance(key, str) and key.isascii() and key.isprintable() and key), "")


async def config_text(host: Host, deployment: Deployment, argv: Sequence[str], cwd: str) -> str:
    """The text of the file of flags that a command line names, relative to its working folder; "" where none is read.

    Raises HostUnreachable.
    """
    from remote import files
    from remote.errors import HostUnreachable, RemoteError

    flags = flags_of(deployment, argv)
    path = flags.get(_CONFIG)
    if not isinstance(path, str) or "api-key" in flags:
        return ""
    try:
        return (await files.read(host, posixpath.join(cwd, path), _CONFIG_BYTES)).decode("utf-8", "replace")
    except HostUnreachable:
        raise
    except RemoteError:
        return ""  # it may be gone, or not ours to read: the engine read it at its start
