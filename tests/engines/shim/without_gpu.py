"""What SGLang needs to be started on a machine without GPU; SGLang itself is not edited.

A .pth file of the environment puts this folder on the path and imports this module, so every process of the server runs
it first; run as a program, this module writes that file. Two things are done, each at the first import of a package:

* torchvision: the wheel of the registry is built for CUDA, and its operators do not load beside a torch for the CPU.
  Its Python side only wants the two operators declared.
* sglang: its attention backend for the CPU, the only one there that can draft, is kept only on processors with AMX.
  The kernels of this folder's `sgl_kernel` need none.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any


class _Prepare:
    """A finder that finds nothing, and prepares torch before a package is looked for."""

    def __init__(self) -> None:
        self.waiting = {"torchvision": self._declare_operators, "sglang": self._claim_amx}
        self.kept: list[Any] = []

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        prepare = self.waiting.pop(name, None)
        if prepare is not None:
            prepare()

    def _declare_operators(self) -> None:
        import torch

        if torch.version.cuda is None:
            library = torch.library.Library("torchvision", "DEF")  # declared for as long as it is kept
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            self.kept.append(library)

    def _claim_amx(self) -> None:
        import torch

        torch.cpu._is_amx_tile_supported = lambda: True


if __name__ == "__main__":
    here = Path(__file__).resolve()
    Path(sysconfig.get_path("purelib"), "without_gpu.pth").write_text(f"{here.parent}\nimport {here.stem}\n", "utf-8")
else:
    sys.meta_path.insert(0, _Prepare())
