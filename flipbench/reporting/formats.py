"""How numbers are printed in every table, figure and page."""

from __future__ import annotations

from collections.abc import Callable

from flipbench.core.rates import LEVEL, Rate
from flipbench.core.records import Interval

NOTHING = "–"
MINUS = "−"


def percent(fraction: float) -> str:
    """Return percent with one decimal, without the sign.

    >>> percent(276 / 440)
    '62.7'
    """
    return f"{100 * fraction:.1f}"


def points(gap: float) -> str:
    """Return a difference of fractions in percentage points, signed.

    >>> points(-0.1137), points(0.02), points(-0.0001)
    ('−11.4', '+2.0', '0.0')
    """
    text = f"{100 * gap:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)


def number(value: float) -> str:
    """Return three significant digits, for statistics that are not fractions.

    >>> number(-0.01234)
    '−0.0123'
    """
    return f"{value:.3g}".replace("-", MINUS)


def p_value(p: float | None) -> str:
    """Return three decimals without the leading zero, never 0 and never 1; a dash for None.

    >>> p_value(0.0321), p_value(5.4e-5), p_value(1.0), p_value(None)
    ('.032', '<.001', '>.999', '–')
    """
    if p is None:
        return NOTHING
    if p < 0.001:
        return "<.001"
    text = f"{p:.3f}"
    return ">.999" if text == "1.000" else text.removeprefix("0")


def p_equation(p: float) -> str:
    """Return a p-value for use in a sentence.

    >>> p_equation(0.0321), p_equation(5.4e-5)
    ('p = .032', 'p < .001')
    """
    text = p_value(p)
    return f"p {text[0]} {text[1:]}" if text[0] in "<>" else f"p = {text}"


def decimals(value: float, digits: int = 2) -> str:
    """Return a number with a fixed number of decimals.

    >>> decimals(-0.1237), decimals(0.42399, 3)
    ('−0.12', '0.424')
    """
    return f"{value:.{digits}f}".replace("-", MINUS)


def signed(value: float, digits: int = 2) -> str:
    """Return a number with its sign.

    >>> signed(-0.1237), signed(3.0, 1)
    ('−0.12', '+3.0')
    """
    return f"{value:+.{digits}f}".replace("-", MINUS)


def interval(between: Interval | None, form: Callable[[float], str] = points) -> str:
    """Return ``[low, high]``, empty for None; a level other than 95 % is added.

    >>> interval(Interval(low=-0.142, high=-0.086)), interval(Interval(low=0, high=1), percent)
    ('[−14.2, −8.6]', '[0.0, 100.0]')
    """
    if between is None:
        return ""
    level = "" if abs(between.level - LEVEL) < 1e-9 else f" ({100 * between.level:g} %)"
    return f"[{form(between.low)}, {form(between.high)}]{level}"


def share_interval(between: Interval | None) -> str:
    """Return the interval of a fraction in percent, to three significant digits.

    >>> share_interval(Interval(low=0.0512, high=0.25))
    '[5.12, 25]'
    """
    return interval(between, lambda share: number(100 * share))


def rate(value: Rate) -> str:
    """Return percent, count and interval.

    >>> rate(Rate.wilson(253, 294)), rate(Rate.wilson(0, 0))
    ('86.1 % (253/294) [81.6, 89.6]', '– (0/0)')
    """
    share = NOTHING if value.value is None else f"{percent(value.value)} %"
    return f"{share} ({value.k}/{value.n}) {interval(value.interval, percent)}".rstrip()


def as_sentence(text: str) -> str:
    """Return a message with a capital and a full stop.

    >>> as_sentence("too few items")
    'Too few items.'
    """
    return f"{text[:1].upper()}{text[1:]}".removesuffix(".") + "."
