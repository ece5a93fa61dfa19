"""A Ray cluster of two nodes on this machine, for all tests of the room."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

NODE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": 100 * 2**20,
    "include_dashboard": False,
    "include_log_monitor": False,
}


@pytest.fixture(scope="package")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each; Ray is connected to them."""
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    nodes: Any = Cluster(initialize_head=True, head_node_args=NODE)
    nodes.add_node(**NODE)
    ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.ERROR)
    yield nodes
    ray.shutdown()
    nodes.shutdown()
