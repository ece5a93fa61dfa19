"""The embedded world: rendered scenes with known truth, a benchmark, and two tiny models.

Reading order: ``scene`` (the scene graph), ``render``, ``questions``, ``benchmark``
(``shapes-vqa``), ``wording`` and ``rewording`` (scenes and questions in words), ``backends``
(captioner, editor and judge that are exact), ``faults`` (faulty edits, planted on purpose),
``other`` (questions for controls). How the models were trained is in ``training``.

Only what needs the known truth belongs here; everything else must work on real images too. To add
a question type, add it to ``questions`` with its paraphrases; that changes the benchmark.
"""
