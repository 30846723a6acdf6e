// Heat maps of layer × step.
import { color, h, replace } from './dom.js';
import { number } from './format.js';

const ROW = 14;
const LONGEST = 260;

const SHADES = 256;

const RAMPS = { heat: ['--heat0', '--heat1', '--heat2', '--heat3'], high: ['--alarm0', '--alarm1', '--alarm2'], low: ['--alarm2', '--alarm1', '--alarm0'] };

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
  // `fixed`: the ends of the scale; without it those of the data. `alarm`: 'high' or 'low' values are a warning. What is not measured is hatched.
  constructor({ title, note, fixed = null, alarm = 'heat' }) {
    this.fixed = fixed;
    this.alarm = alarm;
    this.canvas = h('canvas', { role: 'img', 'aria-label': `${title}: layers from top to bottom, steps from left to right` });
    this.scale = h('span', { class: 'scale' });
    this.value = h('div', { class: 'values' });
    this.rows = h('div', { class: 'layers', 'aria-hidden': 'true' });
    this.steps = h('div', { class: 'steps', 'aria-hidden': 'true' });
    this.element = h('figure', { class: 'heat' },
      h('figcaption', {}, h('span', { class: 'title' }, title), note && h('span', { class: 'note' }, note), this.scale, this.value),
      h('div', { class: 'cells' }, this.rows, this.canvas), this.steps);
    this.canvas.addEventListener('mousemove', (event) => this.point(event));
    this.canvas.addEventListener('mouseleave', () => replace(this.value));
  }

  show(steps, layers, width) {
    this.data = { steps, layers, width };
    const flat = layers.flat().filter((value) => value !== null);
    const [low, high] = this.fixed || [Math.min(...flat.length ? flat : [0]), Math.max(...flat.length ? flat : [1])];
    // A value that is the same everywhere is drawn in the middle of the colours: the lightest would look like no value.
    const same = high <= low;
    this.low = same ? low - 1 : low;
    this.high = same ? low + 1 : high;
    this.draw();
    if (same) replace(this.scale, `${number(low, 3)} everywhere`);
    else replace(this.scale, number(low, 3), h('i', { class: `ramp ${this.alarm}`, 'aria-hidden': 'true' }), number(high, 3));
    const shown = layers.length > 12 ? layers.map((_, i) => i).filter((i) => i % Math.ceil(layers.length / 8) === 0) : layers.map((_, i) => i);
    replace(this.rows, layers.map((_, i) => h('span', {}, shown.includes(i) ? String(i) : '')));
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
    // What is not measured at every step (an audit) holds until it is measured again.
    layers.forEach((values, layer) => { let last = null; values.forEach((measured, i) => {
      const value = measured ?? last;
      last = value;
      if (value === null) return;
      const shade = 3 * Math.min(Math.max(Math.round((value - this.low) * scale), 0), SHADES - 1);
      const pixel = 4 * (layer * columns + i);
      for (let k = 0; k < 3; ++k) image.data[pixel + k] = colours[shade + k];
      image.data[pixel + 3] = 255;
    }); });
    ctx.putImageData(image, 0, 0);
  }

  point(event) {
    const { steps, layers } = this.data;
    const box = this.canvas.getBoundingClientRect();
    const i = Math.min(Math.floor((event.clientX - box.left) / box.width * steps.length), steps.length - 1);
    const layer = Math.min(Math.floor((event.clientY - box.top) / box.height * layers.length), layers.length - 1);
    if (i < 0 || layer < 0) return;
    replace(this.value, h('span', { class: 'value at' }, `layer ${layer}, step ${steps[i].toLocaleString('en-US')}`), h('span', { class: 'value' }, h('b', {}, this.at(layers[layer], i))));
  }

  // The value that is drawn there.
  at(values, i) {
    if (values.every((value) => value === null)) return 'this layer has no such branch';
    const measured = values.slice(0, i + 1).findLast((value) => value !== null);
    return measured === undefined ? 'not measured yet' : number(measured, 3);
  }
}
