"""The style sheet of the page. Its digest is in the page's policy, so no other style applies."""

from __future__ import annotations

import base64
import hashlib

CSS = """
:root { color-scheme: light dark; --paper: #fff; --card: #f6f7f9; --ink: #1b1f24; --faint: #59636e; --line: #d8dde3;
  --accent: #2563c9; --fill: #5b8def; --warn: #9a4b00; --warn-paper: #fff4e5; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --card: #1e2329; --ink: #e6e9ed; --faint: #9aa5b1;
  --line: #333b44; --accent: #8ab4ff; --fill: #5b8def; --warn: #ffc680; --warn-paper: #3a2a14; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Noto Sans", "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
main, header, footer { max-width: 70rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.3rem; margin: 0 0 .75rem; padding-top: 1.5rem; }
h3 { font-size: 1.02rem; margin: 1.25rem 0 .5rem; }
p { margin: 0 0 .75rem; }
p.after { margin-top: .75rem; }
a { color: var(--accent); }
.lead, .faint, caption, dt, figcaption, footer { color: var(--faint); }
.faint, footer { font-size: .875rem; }
nav { margin: 1rem 0 0; padding: .5rem 0; border-block: 1px solid var(--line); display: flex; flex-wrap: wrap;
  gap: .25rem 1.1rem; font-size: .9375rem; }
nav a { text-decoration: none; padding: .2rem 0; }
nav a:hover { text-decoration: underline; }
section { border-bottom: 1px solid var(--line); padding-bottom: 1.5rem; }
dl.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .75rem;
  margin: 1.25rem 0 0; }
dl.tiles > div { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .6rem .85rem; }
dt { font-size: .8125rem; }
dd { margin: 0; font-size: 1.3rem; font-weight: 600; line-height: 1.25; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; margin-bottom: .75rem; }
table { border-collapse: collapse; width: 100%; font-size: .9375rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .3rem; font-size: .875rem; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  overflow-wrap: normal; }
th { font-weight: 500; }
thead th { color: var(--faint); font-size: .8125rem; white-space: nowrap; }
tbody th, td bdi { overflow-wrap: anywhere; }
tbody th { min-width: 6rem; max-width: 24rem; }
td.number, th.number { text-align: right; white-space: nowrap; }
table.bars td:last-child { width: 45%; min-width: 7rem; padding-right: 0; }
svg.bar { display: block; width: 100%; height: .75rem; margin-top: .4rem; border-radius: .2rem;
  background: var(--card); }
svg.bar rect, svg.curve path { fill: var(--fill); }
svg.curve { display: block; width: 100%; height: 7rem; background: var(--card); border-radius: .4rem; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 0 2.5rem; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(7rem, 1fr)); gap: .9rem .6rem;
  margin: 0 0 1rem; padding: 0; list-style: none; }
.sheet figure { margin: 0; }
.sheet .frame { display: flex; height: 6rem; align-items: center; justify-content: center; background: var(--card);
  border-radius: .4rem; overflow: hidden; font-size: .75rem; color: var(--faint); text-align: center; padding: 0; }
.sheet img { display: block; max-width: 100%; max-height: 100%; }
.sheet figcaption { font-size: .78rem; line-height: 1.3; margin-top: .25rem; display: -webkit-box;
  -webkit-line-clamp: 2; -webkit-box-orient: vertical; overflow: hidden; }
.note { background: var(--warn-paper); color: var(--warn); border-radius: .5rem; padding: .6rem .85rem;
  margin-top: .75rem; }
details { margin: .25rem 0 .75rem; }
summary { cursor: pointer; color: var(--accent); padding: .25rem 0; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem; overflow-x: auto;
  font: .8125rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; margin: .5rem 0; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .875em; }
footer { padding-top: 1rem; padding-bottom: 3rem; }
@media (max-width: 36rem) { main, header, footer { padding-inline: 1rem; } h1 { font-size: 1.6rem; }
  .sheet { grid-template-columns: repeat(4, 1fr); } .sheet .frame { height: 4.75rem; }
  dl.tiles { grid-template-columns: repeat(2, 1fr); gap: .5rem; }
  dl.tiles > div { padding: .45rem .6rem; }
  dd { font-size: 1.1rem; } table { font-size: .875rem; } th, td { padding-right: .5rem; }
  table.bars td:last-child { width: 25%; min-width: 3rem; } tbody th { min-width: 5.5rem; }
  .minor { display: none; } table.wide { min-width: 40rem; } }
@media print { nav { display: none; } section { break-inside: avoid; } }
"""

# Nothing is loaded, no script runs, pictures come from the page itself, and it is sent nowhere.
POLICY = (
    "default-src 'none'; img-src data:; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'"
)
