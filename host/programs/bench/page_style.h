// Style of the page: the reader's light or dark, and narrow screens.
#pragma once

namespace gdx::bench {

inline constexpr char kPageStyle[] = R"css(
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --quiet: #5a5a5a; --line: #d0d0d0; --warn: #a02000; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181c; --quiet: #a8a8a8; --line: #3c4048; --warn: #ff9070; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
code { overflow-wrap: anywhere; } .quiet { color: var(--quiet); } .warn { color: var(--warn); font-weight: 600; }
.controls { display: flex; flex-wrap: wrap; gap: .75rem; margin: .75rem 0; }
.controls label { display: flex; flex-direction: column; font-size: .85rem; color: var(--quiet);
  min-width: 0; }
select { max-width: 100%; font: inherit; color: inherit; background: var(--paper); border: 1px solid var(--line);
  padding: .3rem; }
:focus-visible { outline: 3px solid #3d7eff; outline-offset: 2px; }
.chart { position: relative; height: min(60vh, 30rem); min-height: 16rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
thead th { position: sticky; top: 0; background: var(--paper); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } body { padding: .6rem; } }
)css";

}  // namespace gdx::bench
