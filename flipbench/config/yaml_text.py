"""Read YAML that people write: strictly, within bounds, with the line in each message."""

from __future__ import annotations

from typing import Any

import yaml

from flipbench.core.errors import ConfigError, shorten

MAX_CHARACTERS = 300_000
MAX_NODES = 100_000
MAX_DEPTH = 50
_MERGE = "tag:yaml.org,2002:merge"


def read_yaml(text: str, where: str) -> Any:
    """Return the value of a YAML file's text, as `parse_yaml`.

    Raises
    ------
    ConfigError
        The message names the file, ``where``, and the line.
    """
    try:
        return parse_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line}: not YAML ({explain(error)})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not YAML ({explain(error)})") from error


def explain(error: yaml.YAMLError) -> str:
    """Return an error's message on one line, without an excerpt of the text."""
    if isinstance(error, yaml.MarkedYAMLError):
        return shorten(", ".join(part for part in (error.context, error.problem) if part))
    return shorten(str(error))


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text.

    Refused, besides what is not YAML: a key that a mapping has twice, a number with a leading 0
    (YAML 1.1 reads it as octal) or with colons (as base 60), a NUL, and texts that are larger, nest
    deeper or, with their aliases written out, hold more than configurations do.

    Raises
    ------
    yaml.YAMLError
    """
    if len(text) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"over {MAX_CHARACTERS:,} characters")
    _check_depth(text)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node, {}, [])
        return loader.construct_document(node)
    finally:
        loader.dispose()


class _RefusedError(yaml.MarkedYAMLError):
    """YAML that is not read; ``node`` is where."""

    def __init__(self, problem: str, node: Any) -> None:
        super().__init__(problem=problem, problem_mark=node.start_mark)


def _check_depth(text: str) -> None:
    """Check the nesting before anything recursive reads the text."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _RefusedError(f"nested more than {MAX_DEPTH} deep", event)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_size(node: yaml.Node, sizes: dict[int, int], ancestors: list[int]) -> int:
    """Return the number of nodes below a node, counting each alias as what it stands for."""
    if id(node) in ancestors:
        raise _RefusedError("an alias to a part that contains it", node)
    if id(node) not in sizes:
        children = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        ancestors.append(id(node))
        sizes[id(node)] = 1 + sum(_check_size(child, sizes, ancestors) for child in children)
        ancestors.pop()
        if sizes[id(node)] > MAX_NODES:
            raise _RefusedError(f"over {MAX_NODES:,} values, with its aliases written out", node)
    return sizes[id(node)]


class _Loader(yaml.SafeLoader):
    """The safe loader, without the surprises."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping without repeated keys; a merged mapping may repeat some."""
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE or not isinstance(key_node, yaml.ScalarNode):
                continue
            key = self.construct_object(key_node)
            if key in lines:
                problem = (
                    f"the key {shorten(str(key))!r} is there twice, first in line {lines[key]}"
                )
                raise _RefusedError(problem, key_node)
            lines[key] = key_node.start_mark.line + 1
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_plain(self, node: yaml.ScalarNode) -> Any:
        """Return a number, boolean or date; what only looks like one raises as other errors do."""
        text = node.value.lstrip("+-").replace("_", "")
        is_octal = node.tag.endswith(":int") and text[:1] == "0" and text[1:].isdigit()
        is_base_60 = node.tag.endswith((":int", ":float")) and ":" in text
        if is_octal or is_base_60:
            reason = "it would be read in base 60" if is_base_60 else "its leading 0 makes it octal"
            raise _RefusedError(
                f"{shorten(node.value)}: {reason}; leave out the 0, or put it in quotes", node
            )
        construct = yaml.SafeLoader.yaml_constructors[node.tag]
        try:
            return construct(self, node)
        except (ValueError, OverflowError, LookupError, AttributeError) as error:  # "!!int ''"
            raise _RefusedError(f"{shorten(node.value)}: {shorten(str(error))}", node) from error

    def construct_text(self, node: yaml.ScalarNode) -> str:
        """Return a text; no text of ours has a NUL, which no path may have."""
        text: str = self.construct_scalar(node)
        if "\0" in text:
            raise _RefusedError("a text with a NUL character", node)
        return text


for _name in ("bool", "int", "float", "timestamp", "binary"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_name}", _Loader.construct_plain)
_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.construct_text)
