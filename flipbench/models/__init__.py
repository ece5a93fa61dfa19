"""Models behind four small protocols, and the engine that asks each question once.

Reading order: ``protocols`` (``VLM``, ``Captioner``, ``Editor``, ``Judge``), ``engine`` (distinct
probes, asked once), ``stored`` (the answers, read from a run), ``plugins`` (your own
implementations), ``estimates`` (memory and operations, by formulas), then ``chat`` (chat models
as captioners, judges and rewriters) and ``vlm`` (models under test).

Detectors and stages depend on these protocols, never on a backend. To add a backend, implement a
protocol in ``chat`` or ``vlm`` and build it in ``api/stages``.
"""
