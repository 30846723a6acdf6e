// Heat maps of layer × step.
import { color, h, replace } from './dom.js';
import { number } from './format.js';

const ROW = 14;
const LONGEST = 260;

const SHADES = 256;
const COLUMNS = 12;  // of a table

const RAMPS = { plain: ['--heat0', '--heat1', '--heat2', '--heat3'], high: ['--alarm0', '--alarm1', '--alarm2'], low: ['--alarm2', '--alarm1', '--alarm0'] };

// The colours from the lowest value to the highest: red, green and blue of each shade. They are those of the theme.
const made = {};
function ramp(kind) {
  const { theme } = document.documentElement.dataset;
  if (made[kind]?.theme === theme) return made[kind].colours;
  const stops = RAMPS[kind].map((name) => color(name).match(/\w\w/g).map((pair) => parseInt(pair, 16)));
  const colours = new Uint8ClampedArray(3 * SHADES);
  for (let shade = 0; shade < SHADES; ++shade) {
    const place = shade / (SHADES - 1) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    for (let i = 0; i < 3; ++i) colours[3 * shade + i] = Math.round(stops[low][i] + (stops[low + 1][i] - stops[low][i]) * (place - low));
  }
  made[kind] = { theme, colours };
  return colours;
}

export class Heat {
  // `fixed`: the ends of the scale; without it those of the data. `alarm`: 'high' or 'low' values are a warning. What is not measured is hatched; the row of a layer that lacks the branch is blank. `format` writes a value.
  constructor({ title, note, about = null, fixed = null, alarm = 'plain', format = (value) => number(value, 3) }) {
    this.title = title;
    this.format = format;
    this.fixed = fixed;
    this.alarm = alarm;
    this.canvas = h('canvas', { role: 'img', 'aria-label': `${title}: layers from top to bottom, steps from left to right` });
    this.here = null;  // the cell that the keyboard is at
    this.cells = h('div', { class: 'cells', tabindex: '0', role: 'group', 'aria-label': `${title}: arrow keys move from step to step and from layer to layer`, onkeydown: (event) => this.press(event),
      onfocus: () => this.value.setAttribute('aria-live', 'polite'), onblur: () => { this.value.removeAttribute('aria-live'); replace(this.value); } });
    this.table = h('div', { class: 'scroll values-table', role: 'region', tabindex: '0', 'aria-label': `${title}: values`, hidden: true });
    this.tableButton = h('button', { type: 'button', class: 'quiet', title: 'The values as a table', 'aria-label': `${title} as a table`, 'aria-expanded': 'false', onclick: () => this.toggleTable() }, 'Table');
    this.scale = h('span', { class: 'scale' });
    this.value = h('div', { class: 'values' });
    this.rows = h('div', { class: 'layers', 'aria-hidden': 'true' });
    this.steps = h('div', { class: 'steps', 'aria-hidden': 'true' });
    this.element = h('figure', { class: 'heat' },
      h('figcaption', {}, h('span', { class: 'title', title: about }, title), note && h('span', { class: 'note' }, note), h('span', { class: 'ends' }, this.scale, this.tableButton), this.value),
      this.cells, this.steps, this.table);
    this.cells.append(this.rows, this.canvas);
    this.canvas.addEventListener('mousemove', (event) => this.point(event));
    this.canvas.addEventListener('mouseleave', () => replace(this.value));
  }

  show(steps, layers, width) {
    this.data = { steps, layers, width };
    // Layers are measured together: one that has no value when others have is without the branch.
    const empty = layers.filter((values) => values.every((value) => value === null));
    this.lacking = new Set(empty.length < layers.length ? empty : []);
    const flat = layers.flat().filter((value) => value !== null);
    const [low, high] = this.fixed || [Math.min(...flat.length ? flat : [0]), Math.max(...flat.length ? flat : [1])];
    // A value that is the same everywhere is drawn in the middle of the colours: the lightest would look like no value.
    const same = high <= low;
    this.low = same ? low - 1 : low;
    this.high = same ? low + 1 : high;
    this.draw();
    if (same) replace(this.scale, `${this.format(low)} everywhere`);
    else replace(this.scale, this.format(low), h('i', { class: `ramp ${this.alarm}`, 'aria-hidden': 'true' }), this.format(high));
    const shown = layers.length > 12 ? layers.map((_, i) => i).filter((i) => i % Math.ceil(layers.length / 8) === 0) : layers.map((_, i) => i);
    replace(this.rows, layers.map((_, i) => h('span', {}, shown.includes(i) ? String(i) : '')));
    this.showTable();
    replace(this.steps, h('span', {}, `step ${steps.length ? steps[0].toLocaleString('en-US') : ''}`), h('span', {}, steps.length ? steps[steps.length - 1].toLocaleString('en-US') : ''));
  }

  draw() {
    const { steps, layers } = this.data;
    const row = Math.max(Math.min(ROW, Math.floor(LONGEST / Math.max(layers.length, 1))), 4);
    const columns = Math.max(steps.length, 1);
    this.canvas.width = columns;
    this.canvas.height = Math.max(layers.length, 1);
    this.canvas.style.height = `${row * Math.max(layers.length, 1)}px`;
    const ctx = this.canvas.getContext('2d');
    const image = ctx.createImageData(columns, this.canvas.height);
    const colours = ramp(this.alarm);
    const scale = (SHADES - 1) / (this.high - this.low);
    const blank = color('--panel').match(/\w\w/g).map((pair) => parseInt(pair, 16));
    // What is not measured at every step (an audit) holds until it is measured again.
    layers.forEach((values, layer) => { let last = null; const lacks = this.lacking.has(values); values.forEach((measured, i) => {
      const value = measured ?? last;
      last = value;
      if (value === null && !lacks) return;
      const shade = 3 * Math.min(Math.max(Math.round((value - this.low) * scale), 0), SHADES - 1);
      const pixel = 4 * (layer * columns + i);
      for (let k = 0; k < 3; ++k) image.data[pixel + k] = lacks ? blank[k] : colours[shade + k];
      image.data[pixel + 3] = 255;
    }); });
    ctx.putImageData(image, 0, 0);
  }

  point(event) {
    const { steps, layers } = this.data;
    const box = this.canvas.getBoundingClientRect();
    const i = Math.min(Math.floor((event.clientX - box.left) / box.width * steps.length), steps.length - 1);
    const layer = Math.min(Math.floor((event.clientY - box.top) / box.height * layers.length), layers.length - 1);
    if (i >= 0 && layer >= 0) this.tell(layer, i);
  }

  press(event) {
    const [down, right] = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key] || [];
    if (down === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const { steps, layers } = this.data;
    const by = event.shiftKey ? 10 : 1;
    const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
    const [layer, i] = this.here || [0, steps.length - 1];
    this.here = this.here ? [within(layer + by * down, layers.length), within(i + by * right, steps.length)] : [layer, i];
    this.tell(...this.here);
    event.preventDefault();
  }

  toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.tableButton.setAttribute('aria-expanded', String(!this.table.hidden));
    this.showTable();
  }

  // At most twelve steps of each layer, the last one always.
  showTable() {
    if (this.table.hidden) return;
    const { steps, layers } = this.data;
    const count = Math.min(COLUMNS, steps.length);
    const places = Array.from({ length: count }, (_, i) => (count > 1 ? Math.round(i * (steps.length - 1) / (count - 1)) : 0));
    replace(this.table, h('table', {}, h('caption', { class: 'hidden' }, this.title),
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Layer'), places.map((i) => h('th', { scope: 'col', class: 'num' }, `step ${number(steps[i])}`)))),
      h('tbody', {}, layers.map((values, layer) => h('tr', {}, h('th', { scope: 'row' }, String(layer)), places.map((i) => h('td', { class: 'num' }, this.at(values, i))))))));
  }

  tell(layer, i) {
    const { steps, layers } = this.data;
    replace(this.value, h('span', { class: 'value at' }, `layer ${layer}, step ${steps[i].toLocaleString('en-US')}`), h('span', { class: 'value' }, h('b', {}, this.at(layers[layer], i))));
  }

  // The value that is drawn there.
  at(values, i) {
    if (this.lacking.has(values)) return 'this layer has no such branch';
    const measured = values.slice(0, i + 1).findLast((value) => value !== null);
    return measured === undefined ? 'not measured yet' : this.format(measured);
  }
}
