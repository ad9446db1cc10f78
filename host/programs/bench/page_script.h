// Script of the page: draws what the controls select from the embedded document, and shows the same points as
// a table, for readers without eyes on the chart. Chart.js 3 or later.
#pragma once

namespace gdx::bench {

inline constexpr char kPageScript[] = R"js(
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const axes = { bytes: 'message size (B)', endpoints: 'endpoints', depth: 'messages between two flushes' };
const figures = {
  'latency_us/median': 'latency, median (us)', 'latency_us/p99': 'latency, p99 (us)',
  'latency_us/p99_9': 'latency, p99.9 (us)', 'messages_per_s/median': 'messages a second',
  'gigabytes_per_s/median': 'GB/s', 'bus/busbw_gigabytes_per_s': 'busbw (GB/s)',
  'cpu_us_per_message/rank_0': 'CPU us of a message, rank 0', 'credit_stalls': 'credit stalls',
  'occupancy/leased_slots': 'staging slots leased, over time',
  'occupancy/in_flight': 'WQEBBs in flight, over time', 'pcie_reads_per_message': 'PCIe reads of a message (counted)',
  'pcie_writes_per_message': 'PCIe writes of a message (counted)' };
// Some figures are over time whatever the axis: of the messages that warm up the last round.
const over_time = () => figure.value.startsWith('occupancy/');
const at = (row, path) => path.split('/').reduce((value, name) => (value == null ? value : value[name]), row);
const select = (id, entries) => {
  const control = document.getElementById(id);
  for (const [value, text] of entries) control.add(new Option(text, value));
  return control;
};
const unique = (values) => [...new Set(values)];
const tests = unique(data.rows.map((row) => row.operation + ' ' + row.measure));
const test = select('test', tests.map((one) => [one, one]));
const figure = select('figure', Object.entries(figures));
const axis = select('axis', Object.entries(axes));
const models = unique(data.modelled.map((row) => row.series));
const model = select('model', [['', 'none'], ...models.map((one) => [one, one])]);
const narrow = window.matchMedia('(max-width: 40rem)');
// Binary units, as in the other tables; other axes are plain numbers.
const short = (x) => [[1 << 20, ' MiB'], [1 << 10, ' KiB'], [1, ' B']].filter(([unit]) => x % unit === 0)
  .map(([unit, name]) => x / unit + name)[0] ?? String(x);
const dark = window.matchMedia('(prefers-color-scheme: dark)');
const colour = (index) => 'hsl(' + (index * 137 + 210) % 360 + ' 65% ' + (dark.matches ? 64 : 44) + '%)';

// Lines of what is selected: rows that differ along the axis alone make one line.
function selected() {
  const lines = new Map();
  const add = (name, series, point, dashed) => {
    if (point.y == null) return;
    if (!lines.has(name)) lines.set(name, { name, series, dashed, points: [] });
    lines.get(name).points.push(point);
  };
  const shown = data.rows.filter((row) => row.operation + ' ' + row.measure === test.value);
  const differing = ['bytes', 'scope', 'endpoints', 'depth', 'batch', 'direction', 'doorbell', 'queues']
    .filter((field) => (over_time() || field !== axis.value) && unique(shown.map((row) => row[field])).length > 1);
  for (const row of shown) {
    const name = [row.mode, ...differing.map((field) => field + ' ' + row[field])].join(', ');
    if (over_time()) {
      row.occupancy.us.forEach((x, i) => add(name, row.series, { x, y: at(row, figure.value)[i] }, false));
      continue;
    }
    const parent = at(row, figure.value.split('/')[0]);
    const interval = figure.value.endsWith('/median') && parent != null;
    const counted = figure.value.startsWith('pcie_');
    const series = counted ? 'counted by ' + row.pcie_counted_by : row.series;
    add(name, series, { x: row[axis.value], y: at(row, figure.value), low: interval ? parent.low : null,
      high: interval ? parent.high : null }, false);
  }
  const beside = data.peers.filter((row) => row.operation + ' ' + row.measure === test.value);
  for (const row of beside) {
    const parent = row[figure.value.split('/')[0]];
    const interval = figure.value.endsWith('/median') && parent != null;
    const shared = differing.filter((field) => field !== 'scope');
    const name = [row.mode, ...shared.map((field) => field + ' ' + row[field])].join(', ');
    add(name, row.series.split(':')[0] + ': ' + row.mode, { x: row[axis.value], y: at(row, figure.value) ?? null,
      low: interval ? parent.low : null, high: interval ? parent.high : null }, false);
  }
  const fits = test.value.startsWith('put ') && axis.value === 'bytes' && model.value !== '';
  for (const row of fits ? data.modelled : []) {
    const field = figure.value.split('/')[0];
    const single = figure.value.endsWith('/median') ? row[field] : null;
    if (row.series === model.value) add(row.mode + ' (modelled)', row.series, { x: row.bytes, y: single }, true);
  }
  for (const line of lines.values()) line.points.sort((a, b) => a.x - b.x);
  return [...lines.values()];
}

function describe(line, point) {
  const interval = point.low == null ? '' : ' [' + point.low + ', ' + point.high + ']';
  return line.name + ': ' + point.y + interval + '; ' + line.series;
}

function show_points(lines) {
  const body = document.getElementById('plotted');
  body.replaceChildren(...lines.flatMap((line) => line.points.map((point) => {
    const row = document.createElement('tr');
    for (const value of [line.name, point.x, point.y, point.low ?? '', point.high ?? '', line.series]) {
      const cell = document.createElement('td');
      cell.textContent = String(value);
      row.append(cell);
    }
    return row;
  })));
}

let chart = null;
function draw() {
  const lines = selected();
  show_points(lines);
  if (typeof Chart === 'undefined') return;
  if (chart !== null) chart.destroy();
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue('--ink').trim();
  const grid = style.getPropertyValue('--line').trim();
  const positive = lines.every((line) => line.points.every((point) => point.y > 0)) && !over_time();
  const scale = (type, text) => ({ type, title: { display: true, text, color: ink }, ticks: { color: ink },
    grid: { color: grid } });
  // A tick at each value that was measured or modelled, none elsewhere.
  const values = unique(lines.flatMap((line) => line.points.map((point) => point.x))).sort((a, b) => a - b);
  const across = over_time() ? scale('linear', 'us') : scale('logarithmic', axes[axis.value]);
  if (!over_time()) across.afterBuildTicks = (built) => { built.ticks = values.map((value) => ({ value })); };
  across.ticks.callback = (value) => (!over_time() && axis.value === 'bytes' ? short(value) : String(value));
  if (values.length > 1) Object.assign(across, { min: values[0], max: values[values.length - 1] });
  chart = new Chart(document.getElementById('chart'), {
    type: 'line',
    data: { datasets: lines.map((line, index) => ({ label: line.name, data: line.points, borderColor: colour(index),
      backgroundColor: colour(index), borderDash: line.dashed ? [6, 4] : [], pointRadius: 3, borderWidth: 2,
      clip: 8 })) },
    options: {
      animation: false, responsive: true, maintainAspectRatio: false, parsing: false,
      interaction: { mode: 'nearest', intersect: false },
      scales: { x: across,
        y: scale(positive ? 'logarithmic' : 'linear', figures[figure.value]) },
      plugins: { legend: { position: narrow.matches ? 'bottom' : 'right', labels: { color: ink } },
        tooltip: { yAlign: 'bottom', caretPadding: 8, displayColors: false, callbacks: {
          title: (items) => across.ticks.callback(items[0].raw.x),
          label: (item) => describe(lines[item.datasetIndex], item.raw) } } } } });
}

// Arrow keys walk over the points of the chart: left and right along a line, up and down to the next line.
let cursor = { line: 0, point: 0 };
function walk(event) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const step = steps[event.key];
  if (step === undefined || chart === null) return;
  const sets = chart.data.datasets;
  if (sets.length === 0) return;
  event.preventDefault();
  cursor.line = (cursor.line + step[0] + sets.length) % sets.length;
  cursor.point = Math.max(0, Math.min(cursor.point + step[1], sets[cursor.line].data.length - 1));
  const active = [{ datasetIndex: cursor.line, index: cursor.point }];
  chart.setActiveElements(active);
  chart.tooltip.setActiveElements(active, { x: 0, y: 0 });
  chart.update();
  const point = sets[cursor.line].data[cursor.point];
  document.getElementById('spoken').textContent = describe(selected()[cursor.line], point);
}

if (typeof Chart !== 'undefined') {
  document.getElementById('chart').addEventListener('keydown', walk);
  for (const query of [dark, narrow]) query.addEventListener('change', draw);
}
for (const control of [test, figure, axis, model]) control.addEventListener('change', draw);
test.addEventListener('change', () => {
  figure.value = test.value.endsWith(' bw') ? 'gigabytes_per_s/median' : 'latency_us/median';
  draw();
});
if (tests.length > 0) {
  figure.value = tests[0].endsWith(' bw') ? 'gigabytes_per_s/median' : 'latency_us/median';
  draw();
}
)js";

}  // namespace gdx::bench
