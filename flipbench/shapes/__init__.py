"""The embedded world: scenes with known truth, a benchmark, and two tiny models that answer."""
