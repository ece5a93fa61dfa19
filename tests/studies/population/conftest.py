"""Pairs of the embedded world."""

from tests.evaluate.conftest import shapes_benchmark as shapes_benchmark
