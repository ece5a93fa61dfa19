"""The command line, on processes without a GPU that may shard all the same.

accelerate believes in FSDP only where it finds GPUs; torch shards on a CPU just as well.
"""

from __future__ import annotations

import os
from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from flipbench.cli import main

make = AcceleratorState.__init__


def make_sharded(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
    make(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if fsdp_plugin is not None and os.environ.get("ACCELERATE_USE_FSDP") == "true":
        self.fsdp_plugin, self.distributed_type = fsdp_plugin, DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP


if __name__ == "__main__":
    AcceleratorState.__init__ = make_sharded
    main()
