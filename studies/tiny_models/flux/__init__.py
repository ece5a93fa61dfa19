"""How the tiny Flux of the embedded world was trained.

Reading order: ``parts`` (build the models of the real classes), ``pictures`` (training scenes, none
of them in the benchmark), ``optimizing`` (the steps that all lessons share), and the lessons:
``autoencoder``, ``text_encoder``, ``denoiser``. ``exam`` judges edits by their pixels; ``train``
is the script.
"""
