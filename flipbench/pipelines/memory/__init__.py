"""What captioner, editor and judges take on this machine, for ``--dry-run``.

``phases`` finds the phases of a configuration and what each is asked; ``answering`` runs a
vision-language model without weights. An editor's part is `flipbench.generate.footprint`.
"""
