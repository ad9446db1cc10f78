// Usage: node bench_page.js SCRIPTS DATA: runs a page's scripts on a small document model, chooses everything that its
// controls offer, and prints the drawn lines as JSON, one choice a line.
'use strict';
const fs = require('fs');
const vm = require('vm');
const [scripts, data] = process.argv.slice(2).map((file) => fs.readFileSync(file, 'utf8'));
const elements = {};
const element = (id) => (elements[id] ??= {
  id, options: [], value: '', rows: [], handlers: {},
  add(option) { if (this.options.length === 0) this.value = option.value; this.options.push(option); },
  addEventListener(kind, handler) { (this.handlers[kind] ??= []).push(handler); },
  replaceChildren(...rows) { this.rows = rows; },
});
element('data').textContent = data;
const created = () => ({ cells: [], append(cell) { this.cells.push(cell); } });
const context = vm.createContext({
  console, Option: function Option(text, value) { this.text = text; this.value = value; },
  document: { getElementById: element, createElement: created, documentElement: {} },
  getComputedStyle: () => ({ getPropertyValue: () => '#000' }),
  window: { matchMedia: () => ({ matches: false, addEventListener() {} }) } });
vm.runInContext(scripts, context);
const drawn = () => vm.runInContext('Chart.drawn', context).data.datasets;
for (const test of element('test').options) {
  for (const figure of element('figure').options) {
    for (const model of element('model').options) {
      element('test').value = test.value;
      element('model').value = model.value;
      element('figure').value = figure.value;
      element('figure').handlers.change.forEach((handler) => handler());
      console.log(JSON.stringify({ test: test.value, figure: figure.value, model: model.value, lines: drawn(),
        table: element('plotted').rows.map((row) => row.cells.map((cell) => cell.textContent)) }));
    }
  }
}
// The keys: two steps to the right from the first point reach the third.
element('figure').value = 'latency_us/median';
element('test').value = element('test').options[0].value;
element('figure').handlers.change.forEach((handler) => handler());
for (let i = 0; i < 2; ++i)
  element('chart').handlers.keydown.forEach((handler) => handler({ key: 'ArrowRight', preventDefault() {} }));
console.log(JSON.stringify({ active: vm.runInContext('Chart.active', context), spoken: element('spoken').textContent }));
