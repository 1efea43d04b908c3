"""What the source of a chat template tells: the options that it reads, and what it reads besides messages and options.

The source is parsed as Jinja and not run.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from outdo.models.template_header import DATE

RANDOM = "random"
"""A filter of Jinja. Its function `lipsum` draws at random too."""


class _Generation(Extension):
    """The block `generation` of transformers, which marks what the assistant writes."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


_JINJA = Environment(extensions=["jinja2.ext.loopcontrols", _Generation])
_JINJA.globals.clear()  # so that functions of the environment count as looked up


def sources_of(template: Any) -> list[str]:
    """Return the texts of `tokenizer.chat_template`: none, one, or several by name, also as a list of tables."""
    if isinstance(template, Mapping):
        template = [*template.values()] if "template" not in template else template["template"]
    if isinstance(template, list):
        return [text for part in template for text in sources_of(part)]
    return [template] if isinstance(template, str) else []


def reads_clock(template: Any) -> bool:
    """Return whether a chat template writes today's date, and keeps none of its own."""
    return any(DATE in _looked_up(tree) for tree in _trees(template))


def draws(template: Any) -> bool:
    """Return whether a chat template draws at random, so that no two renderings need be equal."""
    return any(
        "lipsum" in _looked_up(tree) or any(node.name == RANDOM for node in tree.find_all(nodes.Filter))
        for tree in _trees(template)
    )


def options_without_effect(template: Any, options: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each option that changes nothing, and why: the template does not read it, or sets it itself.

    `template` is without defaults that were set for it. One that cannot be parsed is taken to read every option.
    """
    trees = list(_trees(template))
    read = {name for tree in trees for name in _looked_up(tree)}
    written = {name.name for tree in trees for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    for option in options if len(trees) == len(sources_of(template)) else ():
        if option not in read and option in written:
            yield option, f"sets {option} itself, so that the option has no effect"
        elif option not in read:
            yield option, f"does not know the option {option}"


def _trees(template: Any) -> Iterator[nodes.Template]:
    for text in sources_of(template):
        try:
            yield _JINJA.parse(text)
        except TemplateSyntaxError:  # rendering reports it
            continue


def _looked_up(tree: nodes.Template) -> set[str]:
    """Return the variables that a template reads and has not set itself before on every way."""
    return meta.find_undeclared_variables(tree)
