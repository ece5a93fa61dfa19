"""How the two tiny models of the embedded world were trained.

Reading order: ``tiny`` (build the models: LLaVA and Qwen2-VL classes), ``curriculum`` (their
training text), ``exam`` (batches, and accuracy along the way), ``pretrain`` (the script).

Nothing else imports this room: the weights are shipped with flipbench. Run it only to train them
again: ``python -m flipbench.shapes.training.pretrain --family llava``. To add a family, build it in
``tiny`` and name it in ``pretrain``.
"""
