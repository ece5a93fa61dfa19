"""How the tiny Flux of the embedded world was trained.

Reading order: ``pictures`` (training scenes, none of them in the benchmark), ``optimizing`` (the
steps that all lessons share), and the lessons: ``autoencoder``, ``text_encoder``, ``denoiser``
(with the pipeline of all parts). ``exam`` judges edits by their pixels; ``train`` is the script.
"""
