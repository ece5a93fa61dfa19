"""The licence of an export: what the source's licence asks of edited pictures, and what it forbids.

flipbench reads the terms of Creative Commons licences only, by their names.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from flipbench.core.errors import LicenceError
from flipbench.core.paired import PairedBenchmark

UNKNOWN = "unknown"
_NO_DERIVATIVES = re.compile(r"(?:^|-)nd(?:-|$)")
_CREATIVE_COMMONS = re.compile(r"cc-(by(?:-(?:nc|sa|nd))*)(?:-v?(\d\.\d))?(?=-|$)")
_LONG_NAMES = (
    ("creativecommons.org-licenses-", "cc-"),
    ("creativecommons.org-publicdomain-zero", "cc0"),
    ("attribution", "cc-by"),
    ("non-?commercial", "nc"),
    ("share-?alike", "sa"),
    ("no-?deriv[a-z]*", "nd"),
)
_FILLER = re.compile(
    r"https?:|www\.|creative|commons|international|unported|generic|public|licen[cs]e|deed|legalcode|-"
)
_ON_THE_HUB = frozenset(
    "afl-3.0 apache-2.0 bsd-2-clause bsd-3-clause c-uda cc0-1.0 cdla-permissive-1.0"
    " cdla-permissive-2.0 cdla-sharing-1.0 etalab-2.0 gfdl gpl-3.0 mit odbl odc-by pddl unlicense"
    " cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0"
    " cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0"
    " cc-by-nc-sa-4.0 unknown".split()
)


@dataclass(frozen=True)
class LicenceDecision:
    """The licence of an export, and why.

    Attributes
    ----------
    licence : str
        Of the export, as the source or the maintainer words it.
    sources : dict of str to int
        Items by their source's licence.
    named : bool
        Whether the maintainer named the licence.
    duties : tuple of str
        What the sources' licences ask, in sentences.
    """

    licence: str
    sources: dict[str, int]
    named: bool
    duties: tuple[str, ...]

    @property
    def hub_id(self) -> str:
        """The licence's name on the Hub; "other" if it has none there."""
        return name if (name := normal(self.licence)) in _ON_THE_HUB else "other"

    @property
    def url(self) -> str:
        """The licence's address if it is a Creative Commons licence with a version, else its name.

        >>> LicenceDecision("CC BY-SA 4.0", {}, False, ()).url
        'https://creativecommons.org/licenses/by-sa/4.0/'
        """
        if (name := normal(self.licence)) == "cc0-1.0":
            return "https://creativecommons.org/publicdomain/zero/1.0/"
        match = _CREATIVE_COMMONS.fullmatch(name)
        if match is None or match[2] is None:
            return self.licence
        return f"https://creativecommons.org/licenses/{match[1]}/{match[2]}/"


def forbids_derivatives(licence: str) -> bool:
    """Return whether a licence forbids sharing adapted material.

    >>> forbids_derivatives("CC-BY-ND-4.0"), forbids_derivatives("cc-by-nc-nd-4.0")
    (True, True)
    >>> forbids_derivatives("https://creativecommons.org/licenses/by-nd/4.0/")
    True
    >>> forbids_derivatives("CC BY-SA 4.0"), forbids_derivatives("")
    (False, False)
    """
    return _NO_DERIVATIVES.search(_spelled(licence)) is not None


def normal(licence: str) -> str:
    """Return a licence's name in lower case with hyphens, "unknown" for an empty one.

    >>> normal("CC BY-NC 4.0"), normal("Apache 2.0"), normal(" ")
    ('cc-by-nc-4.0', 'apache-2.0', 'unknown')
    >>> normal("Creative Commons Attribution-ShareAlike 4.0 International")
    'cc-by-sa-4.0'
    """
    text = _spelled(licence)
    match = _CREATIVE_COMMONS.search(text)
    if match and not _FILLER.sub("", text.replace(match[0], "")):
        return "-".join(filter(None, ("cc", match[1], match[2])))
    if re.fullmatch(r"cc0(-1\.0)?", text.replace("https:-", "").replace("http:-", "")):
        return "cc0-1.0"
    return text or UNKNOWN


def _spelled(licence: str) -> str:
    """Return a licence's name in lower case with hyphens, long names and addresses shortened."""
    text = re.sub(r"[\s_/-]+", "-", licence.strip().lower()).strip("-")
    for long, short in _LONG_NAMES:
        text = re.sub(long, short, text)
    return text


def decide(benchmark: PairedBenchmark, override: str = "") -> LicenceDecision:
    """Return the licence under which a paired benchmark can be published.

    That is the licence of the source, unless the maintainer names another one.

    Parameters
    ----------
    override : str
        The licence that the maintainer names; needed where the items state none or several.

    Raises
    ------
    LicenceError
        If a licence must be named, or the named one drops a term of the source's (share-alike,
        non-commercial).
    """
    sources = Counter(item.licence.strip() or UNKNOWN for item in benchmark.originals)
    n = len(benchmark.pairs)
    n_unknown = sum(count for name, count in sources.items() if normal(name) == UNKNOWN)
    if n_unknown and not override:
        raise LicenceError(
            f"{benchmark.name}: {n_unknown:,} of {n:,} items state no licence, so nothing says that"
            " edited pictures may be shared; set benchmark.licence to what the source states, or"
            " name the licence of the export with --licence ('unknown' for private use)"
        )
    if len({normal(name) for name in sources}) > 1 and not override:
        summary = ", ".join(f"{name} ({count:,})" for name, count in sources.most_common())
        raise LicenceError(
            f"{benchmark.name}: the items have several licences ({summary}); name that of the"
            " export with --licence"
        )
    licence = override or next(iter(sources), UNKNOWN)
    for source in sources:
        _check(licence, source)
    duties = (duty for source in sources for duty in _duties(source, benchmark))
    return LicenceDecision(licence, dict(sources), bool(override), tuple(dict.fromkeys(duties)))


def _check(licence: str, source: str) -> None:
    """Refuse a licence that drops a term of the source's."""
    source_terms, licence_terms = _terms(source), _terms(licence)
    if "sa" in source_terms and licence_terms != source_terms:
        raise LicenceError(
            f"--licence {licence}: {source} asks that edited versions carry the same licence"
        )
    if "nc" in source_terms and "nc" not in licence_terms:
        raise LicenceError(f"--licence {licence}: {source} forbids commercial use; so must yours")


def _terms(licence: str) -> frozenset[str]:
    """Return the terms of the Creative Commons licence in a name: "by", "nc", "sa", "nd"."""
    match = _CREATIVE_COMMONS.search(_spelled(licence))
    return frozenset(match[1].split("-")) if match else frozenset()


def _duties(source: str, benchmark: PairedBenchmark) -> list[str]:
    terms = _terms(source)
    if normal(source) == UNKNOWN:
        return ["The source states no licence: whether its pictures may be shared is not known."]
    if normal(source) == "cc0-1.0":
        return []
    if not terms:
        return [f"{source}: flipbench does not read the terms of this licence; read them yourself."]
    duties = [f"{source}: name the source, and state that pictures were changed."]
    if "nc" in terms:
        duties.append(f"{source}: no commercial use.")
    if "sa" in terms:
        duties.append(f"{source}: edited versions carry the same licence.")
    if "nd" in terms and benchmark.exchangeable is not False:
        duties.append(
            f"{source} forbids sharing edited pictures; the maintainer decided to share these."
        )
    return duties
