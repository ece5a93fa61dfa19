"""Printed tables of one paper, recomputed: Xu, Wu, Ryu, arXiv 2606.10066, Tables 2 to 5.

``audit`` knows the paper's columns, benchmarks and external models. ``python -m studies.published
TABLE.csv …`` prints what cannot be true and what is odd; ``flipbench doctor`` checks other tables.
The tables are in ``tests/published``.
"""
