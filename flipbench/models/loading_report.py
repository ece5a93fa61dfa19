"""Whether a checkpoint's tensors arrived: what the libraries report of loading, read and enforced.

transformers, diffusers and peft draw missing tensors at random and pass over others with a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from flipbench.core.errors import DataError

_NAMED = 3
_INDEX = "*.safetensors.index.json"
DAMAGED = "copy or download it again, or save it again with the version of the library in use here"
"""The remedy for a checkpoint that is not whole."""


@dataclass(frozen=True)
class LoadingReport:
    """The tensors that have not found their places.

    ``missing`` are those of the model that the checkpoint lacks, but not those tied to another, nor
    those that the model's class says may be missing; the model has no place for ``unexpected``
    ones, and ``mismatched`` ones have another shape.
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()

    @classmethod
    def read(cls, info: Mapping[str, Any]) -> LoadingReport:
        """Return the report in what ``from_pretrained(output_loading_info=True)`` returns.

        >>> LoadingReport.read({"missing_keys": {"b", "a"}, "mismatched_keys": [("c", [2], [3])]})
        LoadingReport(missing=('a', 'b'), unexpected=(), mismatched=('c: [2] instead of [3]',))
        """
        return cls(
            tuple(sorted(info.get("missing_keys", ()))),
            tuple(sorted(info.get("unexpected_keys", ()))),
            tuple(
                f"{name}: {list(stored_shape)} instead of {list(model_shape)}"
                for name, stored_shape, model_shape in sorted(info.get("mismatched_keys", ()))
            ),
        )

    def __str__(self) -> str:
        counts = (
            ("missing", self.missing),
            ("without a place in it", self.unexpected),
            ("of another shape", self.mismatched),
        )
        return "; ".join(
            f"{len(names)} {'tensor is' if len(names) == 1 else 'tensors are'} {problem}"
            f" ({first_names(names)})"
            for problem, names in counts
            if names
        )

    def check(self, part: str, source: str | Path, remedy: str = DAMAGED) -> None:
        """Refuse a checkpoint of which a tensor has not found its place (a `DataError`)."""
        if problems := str(self):
            file = weight_file(source)
            raise DataError(f"{file}: not the {part}'s weights: {problems}; {remedy}")


def load_pretrained(cls: Any, source: str | Path, part: str, **options: Any) -> Any:
    """Load a model of transformers or diffusers whose tensors have all found their places.

    ``cls`` has ``from_pretrained``, which gets the options; with ``device_map="meta"`` only names
    and shapes are read. Raises a `DataError` as `LoadingReport.check`, and whatever the library
    raises if the checkpoint cannot be loaded at all.
    """
    of_diffusers = hasattr(cls, "load_config")
    if not of_diffusers:  # to be told which, instead of an error without names
        options["ignore_mismatched_sizes"] = True
    try:
        model, info = cls.from_pretrained(
            source, use_safetensors=True, output_loading_info=True, **options
        )
    except ValueError:
        if of_diffusers:  # its error names the first tensor and advises to draw it at random
            LoadingReport.read({"mismatched_keys": _mismatched(cls, source)}).check(part, source)
        raise
    LoadingReport.read(info | _without_tied_head(model, info)).check(part, source)
    return model


def _without_tied_head(model: Any, info: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out a head that equals the embeddings, of a model that is used without its head."""
    if not getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        return {}
    unexpected = info.get("unexpected_keys", ())
    return {"unexpected_keys": [name for name in unexpected if name != "lm_head.weight"]}


def _mismatched(cls: Any, source: str | Path) -> list[tuple[str, list[int], list[int]]]:
    """Return the tensors of a diffusers model that are stored in another shape."""
    import torch

    with torch.device("meta"):
        model_tensors = cls.from_config(cls.load_config(source)).state_dict()
    mismatched = []
    for file in Path(source).glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            for name in model_tensors.keys() & set(tensors.keys()):
                shape = list(tensors.get_slice(name).get_shape())
                if shape != list(model_tensors[name].shape):
                    mismatched.append((name, shape, list(model_tensors[name].shape)))
    return mismatched


def first_names(names: Collection[str]) -> str:
    """Return the first names of many, with an ellipsis."""
    return ", ".join([*list(names)[:_NAMED], *(["…"] if len(names) > _NAMED else [])])


def weight_file(source: str | Path) -> str:
    """Return the file with a checkpoint's weights, or where it is if there is not just one."""
    folder = Path(source)
    if not folder.is_dir():
        return str(source)
    files = [*folder.glob(_INDEX)] or [*folder.glob("*.safetensors")]
    return str(files[0] if len(files) == 1 else folder)
