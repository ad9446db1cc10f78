// Stands in for Chart.js where a test has none: keeps the lines that the page draws.
class Chart {
  constructor(canvas, config) {
    this.data = config.data;
    this.config = config;
    Chart.drawn = config;
    this.tooltip = { setActiveElements() {} };
  }
  destroy() {}
  update() {}
  setActiveElements(active) { Chart.active = active; }
}
