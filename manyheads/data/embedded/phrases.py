"""Built-in parallel corpus: phrases in two languages, generated from the Unicode CLDR data in the library Babel.

The corpus requires no download.

A fragment is a date, a time, a time span, a relative time, an interval, a number, a percentage, an amount of money, a
quantity with a unit, or a list or combination of territory and language names. A phrase consists of one to three
fragments or names, joined by the patterns of the two locales.

A hash of a fragment's source text determines the split of the fragment, and all fragments of a phrase are from one
split. A held-out combination (a date in a pattern, an amount with a unit, a list) therefore does not occur in training,
not even inside a longer phrase. There is one exception: a date with a time, or an interval, is a separate fragment, and
the date inside it may be held out as another fragment. Names and patterns cannot be inferred, so all names and patterns
of held-out phrases also occur in training. No-break and thin spaces are replaced by plain spaces, which users type.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from random import Random
from typing import Any, Literal, NamedTuple

from babel import Locale, UnknownLocaleError, dates, lists, localedata, numbers, units
from babel.languages import get_official_languages

from manyheads.data.readers.parallel import Pairs
from manyheads.data.readers.splits import SplitData
from manyheads.errors import UserError

_SPLITS = ("train", "validation", "test")
_HELD_OUT_FRACTION = 0.05  # fraction of the fragments that is held out for validation, and the same fraction for test
# Translation table (str.translate) that makes all spaces plain, and removes invisible marks of the writing direction.
PLAIN_SPACES = str.maketrans("\u00a0\u202f\u2009\u2007\u2008", " " * 5, "\u200e\u200f\u061c")
# Fixed date relative to which relative times are formatted, so that the corpus does not depend on the current date.
_TODAY = date(2026, 1, 1)
_EARLIEST, _LATEST = date(1950, 1, 1).toordinal(), date(2049, 12, 31).toordinal()
# The long formats come before the short ones. If two formats give the same source text ("May 5, 2026"), the first one
# determines the target text.
_DATE_FORMATS: tuple[Literal["full", "long", "medium", "short"], ...] = ("full", "long", "medium", "short")
_DATE_SKELETONS = ("yMMMM", "MMMMd", "yMMMEd", "MMMEd", "MMMd")
_JOINTS = ("{}: {}", "{} ({})", "{} – {}", "{}; {}")


class Fragment(NamedTuple):
    source: str
    target: str
    needs: tuple[str, ...]  # names and patterns of the fragment, which must also occur in the training data


def cldr_pairs(source: str = "en", target: str = "de", *, seed: int = 0, size: int = 30_000) -> SplitData[Pairs]:
    """Generate `size` training pairs of phrases, and size // 30 pairs each for validation and test.

    The splits are smaller if the two locales do not yield that number of different phrases. No source text occurs
    twice. The result depends only on the seed and the version of Babel. Raises UserError for an unknown locale.
    """
    first, second = locale_of(source), locale_of(target)
    if first == second:
        raise UserError(f"source and target are both {source!r}; expected two different locales")
    if size < 1000:
        raise UserError(f"size={size}: expected at least 1,000 pairs; with fewer, some names are not trained")
    return Writer(first, second, Random(seed)).corpus(size)


def locale_of(name: str) -> Locale:
    try:
        return Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError):
        near = difflib.get_close_matches(name.replace("-", "_"), localedata.locale_identifiers(), n=1, cutoff=0.0)
        raise UserError(f"unknown locale {name!r}; the nearest is {near[0]!r}") from None


def split_of(source: str) -> str:
    fraction = int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8).digest()) / 2**64
    return _SPLITS[(fraction < 2 * _HELD_OUT_FRACTION) + (fraction < _HELD_OUT_FRACTION)]


class Writer:
    """Generator of fragments in two locales, and of phrases that consist of fragments."""

    def __init__(self, source: Locale, target: Locale, random: Random) -> None:
        self.locales = (source, target)
        self.random = random
        self.targets: dict[str, str] = {}  # Each source text has exactly one target text.
        # Only official languages are used, because a model can learn the names of these few languages in three minutes.
        codes = {
            str(language).split("_")[0]
            for territory in filter(str.isalpha, source.territories)
            for language in get_official_languages(territory, de_facto=True)
        }
        self.territories = self._names("territory", lambda x: {k: v for k, v in x.territories.items() if k.isalpha()})
        self.languages = self._names("language", lambda x: {k: v for k, v in x.languages.items() if k in codes})
        self.names = self.territories + self.languages

    def corpus(self, size: int) -> SplitData[Pairs]:
        kinds = [list(kind) for kind in self.kinds().values()]
        pools = {split: [[f for f in kind if split_of(f.source) == split] for kind in kinds] for split in _SPLITS}
        train = self.phrases(pools["train"], size, self.names)
        shown = {need for fragment in train for need in fragment.needs}
        parts = [train]
        for split in ("validation", "test"):
            inferable = [[f for f in pool if shown.issuperset(f.needs)] for pool in pools[split]]
            parts.append(self.phrases(inferable, size // 30, []))
        splits = [Pairs([f.source for f in part], [f.target for f in part]) for part in parts]
        return SplitData(splits[0], splits[1], splits[2])

    def phrases(self, pools: list[list[Fragment]], size: int, alone: list[Fragment]) -> list[Fragment]:
        """Compose `size` distinct phrases, including each fragment in `alone` as a separate phrase.

        All kinds of fragments have equal probability.
        """
        pools = [pool for pool in pools if pool]
        phrases = {f.source: f for f in alone[:size]}
        random, choose = self.random, self.random.choice
        for _ in range(4 * size):
            if len(phrases) >= size:
                break
            phrase = choose(choose(pools))
            if random.random() < 0.45:
                other = choose(self.names) if random.random() < 0.4 else choose(choose(pools))
                phrase = self._join(choose(_JOINTS), phrase, other)
                if random.random() < 0.2:
                    phrase = self._join(choose(_JOINTS), phrase, choose(self.names))
            phrases.setdefault(phrase.source, phrase)
        ordered = list(phrases.values())
        random.shuffle(ordered)
        return ordered

    @staticmethod
    def _join(joint: str, a: Fragment, b: Fragment) -> Fragment:
        return Fragment(joint.format(a.source, b.source), joint.format(a.target, b.target), a.needs + b.needs)

    def _both(self, needs: tuple[str, ...], form: Callable[..., str], *args: Any, **options: Any) -> list[Fragment]:
        """Format a fragment in both locales. Return it as a list of one fragment.

        The list is empty if a locale lacks the pattern, or if the source text already has another target text.

        needs  names and patterns of the fragment, which must also occur in the training data
        form   function of Babel that formats the arguments `args` and `options` in a locale
        """
        try:
            texts = (form(*args, locale=locale, **options).translate(PLAIN_SPACES) for locale in self.locales)
            source, target = (" ".join(text.split()) for text in texts)
        except (LookupError, ValueError, AttributeError):  # Babel raises this exception if a locale lacks a pattern.
            return []
        if not source or not target or self.targets.setdefault(source, target) != target:
            return []
        return [Fragment(source, target, needs)]

    def _names(self, kind: str, of: Callable[[Locale], dict[str, str]]) -> list[Fragment]:
        tables = {locale: of(locale) for locale in self.locales}

        def name(code: str, locale: Locale) -> str:
            return tables[locale][code]

        codes = sorted(set.intersection(*map(set, tables.values())))
        return [fragment for code in codes for fragment in self._both((f"{kind} {code}",), name, code)]

    def kinds(self) -> dict[str, Iterator[Fragment]]:
        """Return a generator of fragments for each kind, by its name.

        A kind whose fragments contain many different names is divided into several kinds.
        """
        return {
            "dates": self._dates(),
            "times": self._times(),
            "moments": self._moments(),
            "spans": self._spans(),
            "intervals": self._intervals(),
            "numbers": self._numbers(),
            "sums": self._sums("standard"),
            "sums spelt out": self._sums("name"),
            "units": self._units(decimal=False),
            "units with decimals": self._units(decimal=True),
            "lists of territories": self._lists(self.territories),
            "lists of languages": self._lists(self.languages),
            "places": self._places(),
        }

    def _plural(self, number: float) -> str:
        return "/".join(locale.plural_form(number) for locale in self.locales)

    def _day(self) -> date:
        return date.fromordinal(self.random.randint(_EARLIEST, _LATEST))

    def _amount(self, digits: int, *, decimal: bool) -> float:
        """Draw a random number (an amount) of up to `digits` digits; each number of digits is equally probable.

        If `decimal` is true, the number is rounded to one decimal place, otherwise to an integer.
        """
        number = 10 ** self.random.uniform(0, digits)
        return round(number, 1) if decimal else int(number)

    def _dates(self) -> Iterator[Fragment]:
        for day in (self._day() for _ in range(1000)):
            for name in (*_DATE_FORMATS, *_DATE_SKELETONS):
                needs = (f"date {name} month {day.month}", f"date {name} weekday {day.weekday()}")
                if name in _DATE_FORMATS:
                    yield from self._both(needs, dates.format_date, day, name)
                else:
                    yield from self._both(needs, dates.format_skeleton, name, day, fuzzy=False)

    def _times(self) -> Iterator[Fragment]:
        for minute in range(24 * 60):
            clock = time(minute // 60, minute % 60, self.random.randrange(60))
            for form in ("short", "medium"):
                yield from self._both((f"time {form} {clock.hour}",), dates.format_time, clock, form)

    def _moments(self) -> Iterator[Fragment]:
        for _ in range(3000):
            moment = datetime.combine(self._day(), time(self.random.randrange(24), self.random.randrange(60)))
            # The long formats are tried first, as in _dates, so that "May 5, 2026" counts as a date in the long format.
            forms = [form for form in _DATE_FORMATS if self._both((), dates.format_date, moment, form)]
            form = self.random.choice(forms)
            needs = (f"date {form} month {moment.month}", f"date {form} weekday {moment.weekday()}")
            yield from self._both((f"moment {form}", f"time short {moment.hour}", *needs), _moment, moment, form)

    def _spans(self) -> Iterator[Fragment]:
        for unit, seconds in dates.TIMEDELTA_UNITS:
            for number in range(1, 100):
                for sign in (0, 1, -1):  # a time span without a direction, in the future, or in the past
                    needs = (f"span {unit} {sign} {self._plural(number)}",)
                    delta = timedelta(seconds=seconds * number * (sign or 1))
                    yield from self._both(needs, dates.format_timedelta, delta, unit, 1e9, add_direction=sign != 0)

    def _intervals(self) -> Iterator[Fragment]:
        for _ in range(1000):
            start = self._day()
            for skeleton in ("yMMMd", "yMMMM", "MMMd"):
                end = start + timedelta(days=self.random.randint(1, 900 if skeleton == "yMMMM" else 300))
                needs = (f"interval {skeleton} {start.month}", f"interval {skeleton} {end.month}")
                yield from self._both(needs, dates.format_interval, start, end, skeleton)
            first, last = sorted(self.random.sample(range(24 * 60), 2))
            clocks = time(*divmod(first, 60)), time(*divmod(last, 60))
            yield from self._both(("interval Hm",), dates.format_interval, *clocks, "Hm")

    def _numbers(self) -> Iterator[Fragment]:
        for i in range(1000):
            yield from self._both(("decimal",), numbers.format_decimal, self._amount(7, decimal=False))
            yield from self._both(("decimal",), numbers.format_decimal, self._amount(5, decimal=True))
            fraction = self._amount(3, decimal=i % 2 == 0) / 100
            yield from self._both(("percent",), numbers.format_percent, fraction, decimal_quantization=False)
            scale, count = self.random.choice((10**6, 10**9, 10**12)), self._amount(2, decimal=True)
            needs = (f"compact {scale} {self._plural(count)}",)
            options: dict[str, Any] = {"format_type": "long", "fraction_digits": 1}
            yield from self._both(needs, numbers.format_compact_decimal, round(count * scale), **options)

    def _sums(self, form: Literal["standard", "name"]) -> Iterator[Fragment]:
        """Yield amounts of money in all currencies that are legal tender somewhere.

        Amounts that are spelled out are integers.
        """
        territories = sorted(filter(str.isalpha, self.locales[0].territories))
        codes = sorted({str(code) for t in territories for code in numbers.get_territory_currencies(t, _TODAY)})
        options = {"format_type": form, "currency_digits": form == "standard"}
        for i in range(4000):
            code, number = codes[i % len(codes)], self._amount(5, decimal=False)
            needs = (f"currency {form} {code} {self._plural(number)}",)
            amount = number + self.random.randrange(100) / 100 * (form == "standard")
            yield from self._both(needs, numbers.format_currency, amount, code, **options)

    def _units(self, *, decimal: bool) -> Iterator[Fragment]:
        names = sorted(set.intersection(*(set(locale.unit_display_names) for locale in self.locales)))
        for i in range(4000 if names else 0):
            unit, number = names[i % len(names)], self._amount(3, decimal=decimal)
            yield from self._both((f"unit {unit} {self._plural(number)}",), units.format_unit, number, unit)

    def _lists(self, names: list[Fragment]) -> Iterator[Fragment]:
        for _ in range(4000 if len(names) > 3 else 0):
            items = self.random.sample(names, self.random.choice((2, 2, 3, 3, 4)))
            style = self.random.choice(("standard", "or"))
            texts = dict(zip(self.locales, ([f.source for f in items], [f.target for f in items]), strict=True))
            needs = (f"list {style} {len(items)}", *(need for f in items for need in f.needs))
            yield from self._both(needs, _list, texts, style)

    def _places(self) -> Iterator[Fragment]:
        """Yield names that combine a language and a territory, in the format of locale names in CLDR."""
        for _ in range(4000 if self.languages and self.territories else 0):
            yield self._join("{} ({})", self.random.choice(self.languages), self.random.choice(self.territories))


def _moment(moment: datetime, form: Literal["full", "long", "medium", "short"], locale: Locale) -> str:
    pattern = str(dates.get_datetime_format(form, locale=locale)).replace("'", "")
    return pattern.format(dates.format_time(moment, "short", locale=locale), dates.format_date(moment, form, locale))


def _list(texts: dict[Locale, list[str]], style: Literal["standard", "or"], locale: Locale) -> str:
    return lists.format_list(texts[locale], style, locale)
