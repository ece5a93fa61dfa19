"""A population of models of known history: every kind of contamination, on many clean lineages.

Reading order: ``settings`` (the configuration: lineages, kinds, phases, other perturbed pictures),
``unit`` (one kind on one lineage: train, ask, score), ``study`` (all units, in order, by several
workers). To add a kind, add it to the configuration.

Results are two parquet tables, from which ``page`` makes tables and figures without a model:
``results`` (the tables, and rates that respect lineages), ``kinds`` (power, false alarms, AUROC,
agreement), ``other_lineages`` (the gap compared with released models of other lineages), ``power``
(against the number of pairs; audits of membership), ``rules`` (chosen on one half of the lineages,
counted on the other).
"""
