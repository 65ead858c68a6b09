"""Colours and styles of charts and pages, as CSS variables: one drawing serves light, dark and print."""

from __future__ import annotations

# The hues of Okabe and Ito.  Their lightness differs, so that they stay apart under simulated colour blindness (most of
# all the first five), and each has a contrast of at least 3:1 to its background.  The last is a grey for references.
PALETTE = {
    "light": ("#0b54a6", "#bf3f0a", "#178a68", "#b955b6", "#c48510", "#4398d0", "#4d1414", "#6b7682"),
    "dark": ("#3a8cf0", "#ee6a1e", "#22b893", "#d070c8", "#f7d038", "#9fd6ff", "#f3ece4", "#8b97a5"),
}
TONES = {
    "light": {"ink": "#1b2430", "muted": "#5b6673", "grid": "#e6eaee", "axis": "#9aa5b1", "surface": "#ffffff"},
    "dark": {"ink": "#e8ecf1", "muted": "#9fabb8", "grid": "#2a333e", "axis": "#5d6977", "surface": "#171d25"},
}


def _variables(mode: str) -> str:
    slots = {f"c{slot}": color for slot, color in enumerate(PALETTE[mode])}
    return ":root{" + "".join(f"--lg-{name}:{color};" for name, color in (TONES[mode] | slots).items()) + "}"


# Without "screen", a page printed from a dark screen would come out dark.
_THEME = f"{_variables('light')}\n@media screen and (prefers-color-scheme:dark){{{_variables('dark')}}}\n"
CHART_CSS = (
    _THEME
    + """:root{--lg-font:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
.lg text{font:12px var(--lg-font);fill:var(--lg-ink);font-variant-numeric:tabular-nums}
.lg text.muted{fill:var(--lg-muted)} .lg text.title{font-size:15px;font-weight:600}
.lg text.halo{paint-order:stroke;stroke:var(--lg-surface);stroke-width:4px;stroke-linejoin:round}
.lg .surface{fill:var(--lg-surface)} .lg .grid{stroke:var(--lg-grid)} .lg .axis{stroke:var(--lg-axis)}
.lg .line{stroke:var(--c);fill:none;stroke-width:2;stroke-linecap:round;stroke-linejoin:round}
.lg .dashed{stroke-dasharray:5 5} .lg .rule{stroke:var(--c);stroke-width:1.5;stroke-dasharray:3 3}
.lg .area{fill:var(--c);fill-opacity:.2} .lg .edge{stroke:var(--c);stroke-opacity:.7;fill:none}
.lg .bar{fill:var(--c)} .lg .dot{fill:var(--c);stroke:var(--lg-surface);stroke-width:.75}
.lg .dots{stroke:var(--c);stroke-width:5;stroke-linecap:round;stroke-opacity:.55}
"""
)
