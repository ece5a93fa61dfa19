"""Images as data: variants made by a fixed recipe, and how similar two images are.

Reading order: ``derived`` (make and encode each derived image once), ``similarity`` (unchanged,
nearly unchanged, edited or unrelated; perceptual hashes).

Imports ``core`` only. Diffusion editors are in ``generate/editors``; storage is in ``core.images``.
To add an operation, write a function from image to image or to a number, and state sizes and units.
"""
