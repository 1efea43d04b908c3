"""What the source of a chat template tells: which options have an effect, whether it reads the clock, or draws."""

import pytest

from outdo.models.template_header import with_date, with_defaults, without_header
from outdo.models.template_source import draws, options_without_effect, reads_clock

UNKNOWN, SET = "does not know the option x", "sets x itself, so that the option has no effect"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ x }}", None),
        ("{% if x is defined and x %}a{% endif %}", None),
        ("{% macro f(a) %}{{ a }}{{ x }}{% endmacro %}{{ f(1) }}", None),
        ("{% for m in messages %}{% if not loop.last %}{{ x or 1 }}{% continue %}{% endif %}{% endfor %}", None),
        ("{% if not x is defined %}{% set x = 1 %}{% endif %}{{ x }}", None),
        ("{% generation %}{{ x }}{% endgeneration %}", None),
        ("x {{ messages }}", UNKNOWN),  # only in the text
        ("{{ messages[0].x }}", UNKNOWN),
        ("{{ messages[0]['x'] }}{# x #}", UNKNOWN),
        ("{% set x = strftime_now('%Y') %}{{ x }}", SET),
        ("{% for x in messages %}{{ x.content }}{% endfor %}", SET),
        ("{% if %}", None),  # what cannot be parsed is refused when it is rendered
    ],
)
def test_an_option_has_an_effect_if_the_template_reads_what_it_has_not_set(template: str, why: str | None) -> None:
    assert [each for _, each in options_without_effect(template, ["x"])] == ([why] if why else [])
    several = {"default": "{{ messages }}", "tool_use": template}
    assert [each for _, each in options_without_effect(several, ["x"])] == ([why] if why else [])


@pytest.mark.parametrize(
    ("template", "reads"),
    [
        ("{{ strftime_now('%Y') }}", True),
        ("{% macro f() %}{{ strftime_now('%Y') }}{% endmacro %}{{ f() }}", True),
        ("{% if strftime_now is defined %}{% set today = strftime_now('%Y') %}{% endif %}", True),
        ([{"name": "tool_use", "template": "{{ strftime_now('%Y') }}"}, {"name": "default", "template": "a"}], True),
        ("strftime_now {{ messages }}", False),
        (with_date("{{ strftime_now('%Y') }}", "2026-11-28"), False),
        (None, False),
    ],
)
def test_a_template_reads_the_clock_if_it_calls_strftime_now_and_keeps_no_date(template: object, reads: bool) -> None:
    assert reads_clock(template) is reads


def test_a_template_that_draws_is_found() -> None:
    assert draws("{{ ['a', 'b'] | random }}")
    assert draws("{% for m in messages %}{{ lipsum(1) }}{% endfor %}")
    assert not draws("random {{ messages.random }}")


def test_the_header_goes_as_it_came() -> None:
    template = "\n{{ strftime_now('%Y') }}{{ x }}"
    for changed in (
        with_date(with_defaults(template, {"x": 1}), "2026-11-28"),
        with_defaults(with_date(template, "2026-11-28"), {"x": 1}),
    ):
        assert without_header(changed) == template
        assert without_header(with_defaults(with_date(changed, "2027-01-01"), {"y": 2})) == template
