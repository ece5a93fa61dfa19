"""Work on many machines, by engines that exist: Ray for the stages of a run.

Reading order: ``cluster`` (a stage as actors on a Ray cluster; functions as its tasks).

Placement, restarts and transport are the engine's. What a stage does stays in its room, and records
are written by the process that started the command alone. A new engine is one file that implements
`flipbench.core.stage.Executor`; ``pipelines`` chooses it by ``executor.kind``.
"""
