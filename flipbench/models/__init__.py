"""Models behind small protocols."""
