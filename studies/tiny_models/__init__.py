"""How the two tiny models of the embedded world were trained, and populations of such models.

Reading order: ``tiny`` (build the models: LLaVA, Qwen2-VL and InternVL classes; initial weights),
``curriculum`` (their training text), ``exam`` (batches, and accuracy along the way), ``pretrain``
(the script). Then populations: ``lineage`` (one model), ``population`` (the script).

The weights are shipped with flipbench (``flipbench/shapes/checkpoints``). To train them again:
``python -m studies.tiny_models.pretrain --family llava --export DIR``. To add a family, build
it in ``tiny``, add it to ``BUILDERS`` there, and its rendered turn to ``exam``. The room ``flux``
trains a tiny Flux with a ControlNet.
"""
