"""Numbers as Grafana writes them: format_value(0.25, "percentunit") is "25%".

Source: Grafana's packages/grafana-data/src/valueFormats. A unit that is not in UNITS is an error, so that no
value is silently shown in a wrong unit.
"""
import math

BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
SHORT = ["", " K", " Mil", " Bil", " Tri", " Quadr"]
COUNT = ["", "K", "M", "B", "T"]
SI = ["", "k", "M", "G", "T", "P", "E"]
LONG_TIMES = [("years", 31536000.0), ("weeks", 604800.0), ("days", 86400.0), ("hours", 3600.0), ("mins", 60.0)]


def automatic_decimals(value):
    """Decimals for three significant digits."""
    return 0 if value == int(value) else max(0, 2 - math.floor(math.log10(abs(value))))


def fixed(value, decimals):
    text = f"{value:.{automatic_decimals(value) if decimals is None else decimals}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def scaled(value, decimals, factor, names, join=""):
    """The value in the largest suitable unit of `names`; each unit is `factor` times the one before."""
    i = 0
    while abs(value) >= factor and i < len(names) - 1:
        value, i = value / factor, i + 1
    return fixed(value, decimals) + join + names[i]


def seconds(value, decimals):
    size = abs(value)
    if size == 0:
        return "0 s"
    for limit, factor, name in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (60.0, 1.0, "s")):
        if size < limit:
            return f"{fixed(value * factor, decimals)} {name}"
    for name, length in LONG_TIMES:
        if size >= length:
            return f"{fixed(value / length, decimals)} {name}"
    raise AssertionError(value)


UNITS = {
    "none": fixed,
    "short": lambda v, d: scaled(v, d, 1000.0, SHORT),
    "bytes": lambda v, d: scaled(v, d, 1024.0, BINARY, " "),
    "s": seconds,
    "percentunit": lambda v, d: fixed(v * 100, d) + "%",
    "percent": lambda v, d: fixed(v, d) + "%",
    "reqps": lambda v, d: scaled(v, d, 1000.0, COUNT) + " req/s",
    "flops": lambda v, d: scaled(v, d, 1000.0, [f"{prefix}FLOP/s" for prefix in SI], " "),
    "celsius": lambda v, d: fixed(v, d) + " °C",
    "watt": lambda v, d: scaled(v, d, 1000.0, [f"{prefix}W" for prefix in SI], " "),
    "locale": lambda v, d: f"{v:,.{automatic_decimals(v) if d is None else d}f}",
    "sci": lambda v, d: f"{v:.{3 if d is None else d}e}",
}


def format_value(value, unit, decimals=None):
    if unit not in UNITS:
        raise ValueError(f"unit '{unit}': not known here (known: {', '.join(sorted(UNITS))}); add it to grafana_units.py")
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return UNITS[unit](value, decimals)
