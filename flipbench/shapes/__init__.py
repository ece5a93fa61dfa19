"""The embedded world: rendered scenes with known ground truth, a benchmark, and two tiny models.

Reading order: ``scene`` (the scene graph), ``render``, ``questions``, ``benchmark``
(``shapes-vqa``, and the ground truth of its items), ``wording`` (captions of scenes), ``reading``
(scenes read off pictures), ``faults`` (faulty edits, planted on purpose), ``other`` (questions for
controls). ``studies/tiny_models`` trained the models.

Only code that needs the ground truth belongs here; everything else must work on real images too. To
add a question type, add it to ``questions`` with its paraphrases; that changes the benchmark.
"""
