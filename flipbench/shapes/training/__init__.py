"""How the two tiny models of the embedded world were trained.

Reading order: ``tiny`` (build the models: LLaVA and Qwen2-VL classes), ``curriculum`` (their
training text), ``exam`` (batches, and accuracy along the way), ``pretrain`` (the script).

Nothing else imports this room, because the weights are shipped with flipbench. To train them again:
``python -m flipbench.shapes.training.pretrain --family llava --export DIR``. To add a family, build
it in ``tiny`` and add its name to ``FAMILIES`` there. The room ``flux`` trains a tiny Flux with a
ControlNet.
"""
