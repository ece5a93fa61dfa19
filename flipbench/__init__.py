"""Answer-flipped benchmarks, controlled contamination, and detectors with honest statistics."""

__version__ = "0.1.0"
