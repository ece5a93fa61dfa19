"""How the tiny Flux of the embedded world was trained.

Reading order: ``parts`` (build the models of the real classes), ``pictures`` (training scenes, none
of them in the benchmark), ``optimizing`` (the steps that all lessons share), and the three lessons:
``autoencoder``, ``text_encoder``, ``denoiser``. ``train`` is the script.
"""
