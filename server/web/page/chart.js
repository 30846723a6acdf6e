// A chart of curves over steps, tokens or time, drawn by uPlot. Behind each curve a band shows the least and the greatest value of every bucket;
// lanes below it show restarts, checkpoints and alerts. Charts of one page share their cursor and their zoom.
import { axisText, csvOf, pictureOf, summaryOf, tableOf } from './chart_files.js';
import { color, h, replace, save } from './dom.js';
import { isUtc, middle, number, short, span, timeTicks } from './format.js';

/* global uPlot */

export const COLORS = ['--c1', '--c2', '--c3', '--c4', '--c5', '--c6', '--c7', '--c8'];
export const RUNS = COLORS.slice(0, 7);  // of runs beside each other; grey is none of them

const POWERS = Array.from({ length: 50 }, (_, i) => 2 ** i);
const MARKS = { restart: '--warning', checkpoint: '--muted', failure: '--bad', stop: '--c4', alert: '--bad', note: '--accent' };
const LANE = 14;  // pixels
const AXIS = { time: 38, step: 24, tokens: 24, elapsed: 24 };  // with a row for dates
export const MANY = 10;  // so many curves have colours; of more, only the one that is pointed at

// An exponential mean that does not begin at 0. `weight` 0 leaves the values as they are.
export function smooth(values, weight) {
  if (weight <= 0) return values;
  let mean = 0;
  let sum = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    mean = mean * weight + value * (1 - weight);
    sum = sum * weight + (1 - weight);
    return mean / sum;
  });
}

// Ticks of a logarithmic axis: round numbers, as many as there is room for.
function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const every = Math.max(1, Math.ceil(decades / 6));
  const first = Math.floor(Math.log10(low));
  const steps = decades > 3 ? [1] : decades > 1.2 ? [1, 2, 5] : decades > 0.5 ? [1, 1.5, 2, 2.5, 3, 4, 5, 7] : null;
  if (steps) return Array.from({ length: Math.ceil(decades) + 2 }, (_, i) => first + i).filter((power) => power % every === 0).flatMap((power) => steps.map((step) => step * 10 ** power)).filter((tick) => tick >= low && tick <= high);
  const unit = 10 ** Math.floor(Math.log10((high - low) / 4));
  const step = unit * [1, 2, 5, 10].find((one) => (high - low) / (one * unit) <= 6);
  return Array.from({ length: 8 }, (_, i) => (Math.ceil(low / step) + i) * step).filter((tick) => tick <= high);
}

export function swatch({ color: name, dash }) {
  const box = h('i', { class: dash ? 'swatch dashed' : 'swatch' });
  box.style.setProperty('--c', `var(${name})`);
  return box;
}

function sinceText({ step }) {
  return `NaN since step ${step.toLocaleString('en-US')}`;
}

// Charts whose curves have changed. One is drawn a frame, so that no frame is late, and those in view are first. Where all that is new takes less than
// half a pixel, a chart in view may wait; those out of view wait until they come into view; but no chart waits longer than this.
const LONGEST_WAIT = { seen: 2000, hidden: 10_000 };  // milliseconds
const waiting = new Set();
let turn = 0;   // the frame that draws the next one
let timer = 0;  // looks again when none may be drawn yet

function nextWaiting() {
  const now = performance.now();
  let next = null;
  for (const chart of waiting) {
    const wait = now - chart.drawn;
    if (!chart.plot || (chart.inView && (wait > LONGEST_WAIT.seen || chart.changes()))) return chart;
    if (!next && (!chart.current || wait > LONGEST_WAIT.hidden)) next = chart;
  }
  return next;
}

function awaitTurn() {
  if (turn || waiting.size === 0) return;
  clearTimeout(timer);
  if (nextWaiting()) turn = requestAnimationFrame(takeTurn);
  else timer = setTimeout(awaitTurn, LONGEST_WAIT.seen / 4);
}

function takeTurn() {
  turn = 0;
  const chart = nextWaiting();
  if (chart) chart.draw();
  awaitTurn();
}

// Paper has what is out of view, too.
export function drawWaiting() {
  for (const chart of [...waiting]) chart.draw();
}

const views = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.target.chart) entry.target.chart.inView = entry.isIntersecting;
  awaitTurn();
}, { rootMargin: '200px' });

// Charts that are zoomed and pointed at together.
export class Group {
  // `zoomed` is called with [from, to] when a part is chosen, and with null when all is shown again; `pointed` with the name of a curve, or ''.
  constructor(zoomed = () => {}, pointed = () => {}) {
    this.charts = new Set();
    this.zoomed = zoomed;
    this.told = pointed;
    this.zoom = null;
    this.pointed = '';
    this.hidden = new Set();  // names of curves
    this.sync = uPlot.sync(`group${Math.random()}`);
  }

  // Hides the curves of this name or shows them again; `alone`: hides all others, or shows all.
  toggle(name, names, alone) {
    if (alone) {
      const others = names.filter((one) => one !== name);
      const solo = !this.hidden.has(name) && others.every((one) => this.hidden.has(one));
      this.hidden = new Set(solo ? [] : others);
    } else if (!this.hidden.delete(name)) {
      this.hidden.add(name);
    }
    for (const chart of this.charts) if (chart.given) chart.show(chart.given);
  }

  zoomTo(from, to) {
    this.zoom = from === null ? null : [from, to];
    for (const chart of this.charts) chart.applyZoom();
    this.zoomed(this.zoom);
  }

  // Of many curves, the one of this name has its colour.
  point(name) {
    if (this.pointed === name) return;
    this.pointed = name;
    for (const chart of this.charts) chart.showPointed();
    this.told(name);
  }
}

export class Chart {
  // `of` is the quantity, `about` what it means; `format` writes a value, `axis` a number beside the axis; `zero`: the axis begins at 0; `spikes`: it may end below a few much higher values, 'runs': of
  // several runs below those that are much higher; `binary`: its
  // numbers are powers of two; `big`: the chart is two columns wide; `named`: names stand at the ends of the lines.
  constructor(group, { title, of = '', note = '', about = null, format = short, axis = format === number ? short : format, height = 190, zero = false, spikes = false, binary = false, big = false, named = false }) {
    this.named = named;
    this.group = group;
    this.title = title;
    this.format = format;
    this.axisFormat = axis;
    this.binary = binary;
    this.height = height;
    this.zero = zero;
    this.spikes = spikes;
    this.beyond = null;    // the highest value, if the axis ends below it
    this.above = [];       // names of the curves that have such values, if there are several curves
    this.marks = [];
    this.broken = [];
    this.off = [];         // curves that are hidden
    this.lost = [];        // curves without a finite value
    this.values = h('div', { class: 'values', onclick: (event) => this.choose(event) });
    this.tallest = 0;      // of the values so far: what is below does not move when the mouse does
    let wide = 0;
    this.sizes = new ResizeObserver(() => {
      const { offsetHeight: height, offsetWidth: width } = this.values;
      if (width !== wide) {
        wide = width;
        this.tallest = 0;
        this.values.style.minHeight = '';
      } else if (height > this.tallest) {
        this.values.style.minHeight = `${this.tallest = height}px`;
      }
    });
    this.sizes.observe(this.values);
    this.holder = h('div', { class: 'plot', tabindex: '0', role: 'group', 'aria-label': `${title}: arrow keys move along it, + and − zoom, Escape shows all`, onkeydown: (event) => this.press(event),
      onfocus: () => this.values.setAttribute('aria-live', 'polite'), onblur: () => this.values.removeAttribute('aria-live') });
    this.tableButton = h('button', { type: 'button', class: 'quiet', title: 'The values as a table', 'aria-label': `${title} as a table`, 'aria-expanded': 'false', onclick: () => this.toggleTable() }, 'Table');
    this.files = h('span', { class: 'files', hidden: true }, ['PNG', 'CSV'].map((kind) => h('button', { type: 'button', class: 'quiet', title: `Save this chart as ${kind}`, 'aria-label': `${title} as ${kind}`, onclick: () => this.save(kind) }, kind)), this.tableButton);
    this.table = h('div', { class: 'scroll values-table', role: 'region', tabindex: '0', 'aria-label': `${title}: values`, hidden: true });
    this.empty = h('p', { class: 'empty' }, 'nothing yet');
    this.element = h('figure', { class: big ? 'chart big' : 'chart', 'aria-label': title, data: { of } },
      h('figcaption', {}, h('span', { class: 'title', title: about }, title), note && h('span', { class: 'note' }, note), this.files, this.values), this.holder, this.table, this.empty);
    this.holder.style.minHeight = `${height}px`;  // what is below does not move when the chart is drawn
    this.layout = '';
    this.current = false;  // the drawing has the present layout
    this.inView = false;
    this.drawn = 0;        // when, in milliseconds of performance.now()
    this.element.chart = this;
    views.observe(this.element);
    group.charts.add(this);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.holder);
  }

  close() {
    this.observer.disconnect();
    this.sizes.disconnect();
    views.unobserve(this.element);
    waiting.delete(this);
    this.group.charts.delete(this);
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }

  // A click on a name in the legend hides its curve, a second one leaves it alone.
  choose(event) {
    const name = event.target.closest('[data-name]')?.dataset.name;
    if (name === undefined) return;
    // Both clicks of a double-click come here: the first one is taken back.
    if (event.detail > 1) this.group.toggle(name, [], false);
    this.group.toggle(name, this.given.curves.map((curve) => curve.name), event.detail > 1);
  }

  // `curves`: [{name, color, x, y, min, max, raw, dots, dash, part}]: `raw` is drawn pale behind `y`; one with a `part`, such as 'val', is shown beside the curve
  // of its name. `mode`: step, tokens, time or elapsed; `marks`: [{x, to, kind, text}], from `x` on to `to`, if it is there, are labelled where they are; `lanes`:
  // [{color, marks}] have marks that are drawn, too; `broken`: [{from, to, step, open, name}] where the values, of `name` or of all, were not finite, up to the end
  // if `open`. They are drawn in one of the next frames; the first chart of a page at once.
  show(given) {
    this.given = given;
    const { mode, log = false, lanes = [], marks = lanes.flatMap((lane) => lane.marks), broken = [] } = given;
    const curves = given.curves.flatMap((curve) => (curve.raw ? [{ ...curve, y: curve.raw, min: undefined, max: undefined, raw: undefined, breaks: false, pale: true }, curve] : [curve]));
    const known = curves.filter((curve) => curve.x.length > 0 && curve.y.some((value) => Number.isFinite(value)));
    this.off = known.filter((curve) => this.group.hidden.has(curve.name));
    if (this.off.length === known.length) this.off = [];
    const drawn = known.filter((curve) => !this.off.includes(curve));
    this.lost = curves.filter((curve) => curve.breaks && !known.includes(curve) && broken.some((one) => !one.name || one.name === curve.name));  // no value of them is finite
    this.empty.hidden = drawn.length > 0;
    this.empty.textContent = broken.length > 0 ? sinceText(broken[0]) : 'nothing yet';
    this.empty.classList.toggle('bad', broken.length > 0);
    this.holder.hidden = this.files.hidden = drawn.length === 0;
    if (drawn.length === 0) {
      waiting.delete(this);
      replace(this.values);
      return;
    }
    const layout = JSON.stringify([mode, log, lanes.length, this.off.map((curve) => curve.name), drawn.map((curve) => [curve.name, curve.color, !!curve.min, curve.dots, curve.dash, curve.pale])]);
    this.next = { curves: drawn, mode, log, lanes, marks, broken, layout };
    this.current = !!this.plot && layout === this.layout;
    if (!this.plot && !turn && waiting.size === 0) {
      this.draw();
      turn = requestAnimationFrame(() => { turn = requestAnimationFrame(takeTurn); });
    } else {
      waiting.add(this);
      awaitTurn();
    }
  }

  // Whether the picture would be another one: what is new at the end takes half a pixel, or earlier points are others.
  changes() {
    const { curves, marks } = this.next;
    if (!this.current || marks.length !== this.marks.length) return true;
    const x = this.plot.data[0];
    const pixel = (x[x.length - 1] - x[0]) / this.plot.width;
    return curves.some((curve, i) => {
      const old = this.curves[i];
      const count = old.x.length;
      return Math.abs(curve.x[curve.x.length - 1] - old.x[count - 1]) >= pixel / 2 || [0.25, 0.5, 0.75].some((share) => {
        const place = Math.floor(share * count);
        return curve.x[place] !== old.x[place] || curve.y[place] !== old.y[place];
      });
    });
  }

  draw() {
    waiting.delete(this);
    const { curves, mode, log, lanes, marks, broken, layout } = this.next;
    this.curves = curves;
    this.lanes = lanes;
    this.marks = marks;
    this.broken = broken;
    const data = this.align(curves);
    if (!this.plot || layout !== this.layout) {
      if (this.plot) this.plot.destroy();
      this.mode = mode;
      this.log = log;
      this.layout = layout;
      this.make(data);
    } else {
      this.plot.setData(data, !this.group.zoom);
      if (this.group.zoom) this.plot.redraw();
    }
    this.current = true;
    this.drawn = performance.now();
    this.applyZoom();
    this.plot.ctx.canvas.setAttribute('aria-label', summaryOf(this));
    this.showTable();
    this.showValues(this.underCursor());
  }

  // The index of the value under the cursor; what the plot remembers is of the data before.
  underCursor() {
    const { left } = this.plot.cursor;
    if (!(left >= 0)) return null;
    const x = this.plot.data[0];
    const wanted = this.plot.posToVal(left, 'x');
    let next = x.findIndex((value) => value >= wanted);
    if (next < 0) next = x.length - 1;
    return next > 0 && wanted - x[next - 1] < x[next] - wanted ? next - 1 : next;
  }

  // uPlot wants one x for all curves. A curve has three columns when it has a band.
  align(curves) {
    if (curves.every((curve) => curve.x === curves[0].x)) {
      return [curves[0].x, ...curves.flatMap((curve) => (curve.min ? [curve.y, curve.min, curve.max] : [curve.y]))];
    }
    const tables = curves.map((curve) => (curve.min ? [curve.x, curve.y, curve.min, curve.max] : [curve.x, curve.y]));
    return uPlot.join(tables);
  }

  make(data) {
    this.beyond = null;
    const series = [{}];
    const bands = [];
    this.columns = [];
    const grey = `${color('--faint')}66`;
    this.many = new Set(this.curves.map((curve) => curve.name)).size > MANY;
    for (const curve of this.curves) {
      const own = color(curve.color) + (curve.pale ? '40' : '');
      const stroke = this.many ? () => (curve.name === this.group.pointed ? own : grey) : own;
      this.columns.push(series.length);
      series.push({ stroke, width: curve.pale ? 1 : 1.5, spanGaps: true, dash: curve.pale ? undefined : curve.dash,
        points: { show: this.many && curve.dots ? () => curve.name === this.group.pointed : !!curve.dots, size: 5, fill: stroke, width: 0 }, paths: curve.dots === 'only' ? () => null : undefined });
      if (curve.min) {
        series.push({ show: true, width: 0, points: { show: false }, spanGaps: true }, { show: true, width: 0, points: { show: false }, spanGaps: true });
        bands.push({ series: [series.length - 1, series.length - 2], fill: `${own}3c` });
      }
    }
    const axis = { stroke: color('--muted'), grid: { stroke: color('--grid'), width: 1 }, ticks: { show: false }, font: `11px ${color('--font')}`, gap: 4 };
    this.plot = new uPlot({
      width: Math.max(this.holder.clientWidth, 100), height: this.whole(),
      legend: { show: false },
      padding: [8, 16, 0, 0],
      cursor: { sync: { key: this.group.sync.key, setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { size: 6 }, y: false, ...(this.many && { focus: { prox: 24 } }) },
      focus: { alpha: 1 },
      select: { show: true },
      tzDate: (seconds) => (isUtc() ? uPlot.tzDate(new Date(seconds * 1000), 'Etc/UTC') : new Date(seconds * 1000)),
      scales: { x: { time: this.mode === 'time' }, y: { distr: this.log ? 3 : 1, range: (plot, low, high) => this.range(plot, low, high) } },
      axes: [{ ...axis, size: AXIS[this.mode] + LANE * this.lanes.length, space: 70, values: (plot, ticks, i, space, step) => (this.mode === 'time' ? timeTicks(ticks, step) : ticks.map(this.mode === 'elapsed' ? span : (tick) => short(tick))) },
        { ...axis, size: this.binary ? 56 : 46, incrs: this.binary ? POWERS : undefined, values: (plot, ticks) => ticks.map((tick) => (tick === null ? '' : this.axisFormat(tick))),
          ...(this.log && { splits: (plot, i, low, high) => logTicks(low, high), filter: (plot, ticks) => ticks, grid: { ...axis.grid, filter: (plot, ticks) => ticks } }) }],
      series, bands,
      hooks: {
        draw: [() => this.drawMore()],
        setSeries: [(plot, i, change) => { if (this.many && change.focus) this.group.point(i === null ? '' : this.curves[this.columns.indexOf(i)]?.name ?? ''); }],
        setCursor: [(plot) => this.showValues(plot.cursor.idx)],
        setSelect: [(plot) => this.select(plot)],
      },
    }, data, this.holder);
    this.plot.ctx.canvas.setAttribute('role', 'img');
    this.plot.over.addEventListener('dblclick', () => this.group.zoomTo(null));
  }

  range(plot, low, high) {
    if (low === null || high === null) return [0, 1];
    const bottom = this.zero && !this.log ? Math.min(0, low) : low;
    const top = this.spikes ? Math.max(this.usualTop(plot, high), low) : high;
    this.beyond = top < high ? high : null;
    this.above = this.beyond !== null && this.spikes === 'runs' ? [...new Set(this.curves.filter((_, i) => plot.data[this.columns[i]].some((value) => value > top)).map((curve) => curve.name))] : [];
    if (this.log) return low > 0 ? [0.97 * low, 1.03 * top] : [0.1, 1];
    const room = (top - bottom) * 0.06 || Math.abs(top) * 0.1 || 1;
    return [this.zero && low >= 0 ? 0 : bottom - room, top + room];
  }

  // Where the axis ends. Values above three times what 98 of 100 stay below, such as those of a first step, would press all others flat; drawMarks() says
  // how high they are.
  usualTop(plot, high) {
    const [from, to] = plot.series[0].idxs || [0, plot.data[0].length - 1];
    const tops = this.columns.map((column) => {
      const seen = plot.data[column].slice(from, to + 1).filter(Number.isFinite).sort((a, b) => a - b);
      return seen.length > 0 ? seen[Math.floor(0.98 * (seen.length - 1))] : -Infinity;
    }).sort((a, b) => a - b);
    // One of several runs does not press the others flat either.
    const most = this.spikes === 'runs' && tops.length > 2 ? 3 * tops[(tops.length - 1) >> 1] : Infinity;
    const usual = Math.max(...tops.filter((top) => top <= most || most <= 0));
    return usual > 0 && high > 3 * usual ? 1.5 * usual : high;
  }

  select(plot) {
    if (plot.select.width < 4) return;
    const from = plot.posToVal(plot.select.left, 'x');
    const to = plot.posToVal(plot.select.left + plot.select.width, 'x');
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.group.zoomTo(from, to);
  }

  applyZoom() {
    if (!this.plot) return;
    const x = this.plot.data[0];
    if (x.length === 0) return;
    const [from, to] = this.group.zoom || [x[0], x[x.length - 1]];
    this.plot.setScale('x', { min: from, max: to === from ? from + 1 : to });
  }

  resize() {
    const width = this.holder.clientWidth;
    if (this.plot && width > 0 && Math.abs(width - this.plot.width) > 1) this.plot.setSize({ width, height: this.whole() });
  }

  // Its height with its lanes.
  whole() {
    return this.height + LANE * this.lanes.length;
  }

  showPointed() {
    if (!this.plot || !this.many) return;
    this.plot.redraw(false);
    this.showValues(this.underCursor());
  }

  // Arrows move the cursor, + and - zoom around it.
  press(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const { min, max } = this.plot.scales.x;
    const { left } = this.plot.cursor;
    const at = left >= 0 ? this.plot.posToVal(left, 'x') : (min + max) / 2;
    const move = { ArrowLeft: -0.01, ArrowRight: 0.01 }[event.key];
    const grow = { '+': 0.25, '=': 0.25, '-': 1 }[event.key];
    if (move) {
      const next = Math.min(Math.max(at + move * (event.shiftKey ? 10 : 1) * (max - min), min), max);
      this.plot.setCursor({ left: this.plot.valToPos(next, 'x'), top: this.height / 3 });
    } else if (grow) {
      const x = this.plot.data[0];
      const [from, to] = [Math.max(x[0], at - grow * (max - min)), Math.min(x[x.length - 1], at + grow * (max - min))];
      if (from <= x[0] && to >= x[x.length - 1]) this.group.zoomTo(null);
      else this.group.zoomTo(from, to);
    } else if (event.key === 'Escape' && this.group.zoom) {
      this.group.zoomTo(null);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  save(kind) {
    const name = `${this.title.toLowerCase().replaceAll(' ', '-')}.${kind.toLowerCase()}`;
    if (kind === 'CSV') save(new Blob([csvOf(this)], { type: 'text/csv' }), name);
    else pictureOf(this).toBlob((blob) => save(blob, name));
  }

  // The values as a table, for who does not see the curves or wants the numbers.
  toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.tableButton.setAttribute('aria-expanded', String(!this.table.hidden));
    this.showTable();
  }

  showTable() {
    if (!this.table.hidden && this.plot) replace(this.table, tableOf(this));
  }

  // The values under the cursor, or the last ones.
  showValues(index) {
    if (!this.plot) return;
    const data = this.plot.data;
    const at = index === null || index === undefined ? data[0].length - 1 : index;
    const value = (curve) => {
      const column = data[this.columns[this.curves.indexOf(curve)]];
      let place = at;
      while (place > 0 && (column[place] === null || column[place] === undefined)) --place;
      return [column[place], place];
    };
    const main = this.curves.filter((curve) => !curve.pale && !curve.part && (!this.many || curve.name === this.group.pointed));
    const items = main.map((curve) => {
      const [own, place] = value(curve);
      const band = this.columns[this.curves.indexOf(curve)];
      const spread = curve.min && main.length < 4 && index !== null && Number.isFinite(data[band + 1][place]) && data[band + 1][place] !== data[band + 2][place];
      const mine = curve.breaks ? this.broken.filter((one) => !one.name || one.name === curve.name) : [];
      const lost = mine.find((one) => (index === null || index === undefined ? one.open : data[0][at] > one.from && data[0][at] <= one.to));
      const parts = this.curves.filter((one) => one.part && one.name === curve.name);
      return h('span', { class: 'value', data: { name: curve.name }, title: 'Click to hide, double-click to see it alone' }, swatch(curve), `${curve.name} `,
        lost ? h('b', { class: 'bad' }, sinceText(lost)) : h('b', {}, this.format(own)),
        spread && h('small', {}, ` ${this.format(data[band + 1][place])}–${this.format(data[band + 2][place])}`),
        parts.map((one) => [` · ${one.part} `, h('b', {}, this.format(value(one)[0]))]).flat());
    });
    if (this.many && items.length === 0) items.push(h('span', { class: 'value' }, `${new Set(this.curves.map((curve) => curve.name)).size} runs; point at one`));
    const here = index === null || index === undefined ? null : h('span', { class: 'value at' }, axisText(this.mode, data[0][at]));
    const marks = here ? this.marksAt(data[0][at]) : [];
    const off = this.off.filter((curve) => !curve.pale && !curve.part).map((curve) => h('span', { class: 'value off', data: { name: curve.name }, title: 'Click to show it again' }, h('i', { class: 'swatch' }), curve.name));
    const lost = this.lost.map((curve) => h('span', { class: 'value' }, swatch(curve), `${curve.name} `, h('b', { class: 'bad' }, sinceText(this.broken.find((one) => !one.name || one.name === curve.name)))));
    replace(this.values, here, lost, items, off, marks.map((mark) => h('span', { class: 'value mark' }, mark.text)));
  }

  // The nearest mark of each kind within 8 pixels, so that a stop beside a checkpoint can be read too.
  marksAt(x) {
    const near = this.plot.posToVal(8, 'x') - this.plot.posToVal(0, 'x');
    const nearest = {};
    for (const mark of this.marks) {
      const away = mark.x === null ? Infinity : Math.max(mark.x - x, x - (mark.to ?? mark.x), 0);
      if (away <= near && !(away >= nearest[mark.kind]?.away)) nearest[mark.kind] = { mark, away };
    }
    // What the line has no room for is cut off, so long texts come last.
    return Object.values(nearest).map(({ mark }) => mark).sort((a, b) => a.text.length - b.text.length);
  }

  // Red stripes where the values were not finite.
  hatch({ from, to, open }, ratio) {
    const { ctx, bbox } = this.plot;
    const left = this.plot.valToPos(from, 'x', true);
    const right = open ? bbox.left + bbox.width : Math.max(this.plot.valToPos(to, 'x', true), left + 2 * ratio);
    if (right < bbox.left || left > bbox.left + bbox.width) return;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, bbox.top, Math.max(right - left, 2 * ratio), bbox.height);
    ctx.clip();
    ctx.strokeStyle = ctx.fillStyle = color('--bad');
    ctx.globalAlpha = 0.08;
    ctx.fillRect(left, bbox.top, right - left, bbox.height);
    ctx.globalAlpha = 0.5;
    ctx.lineWidth = ratio;
    ctx.beginPath();
    for (let x = Math.max(left, bbox.left) - bbox.height; x < right; x += 7 * ratio) {
      ctx.moveTo(x, bbox.top + bbox.height);
      ctx.lineTo(x + bbox.height, bbox.top);
    }
    ctx.stroke();
    ctx.restore();
  }

  // What uPlot does not draw: where values are not finite, names, and the lanes.
  drawMore() {
    const { ctx, bbox } = this.plot;
    const ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const one of this.broken) this.hatch(one, ratio);
    if (this.named) this.drawNames(ratio);
    if (this.beyond !== null) {
      ctx.fillStyle = color('--muted');
      ctx.font = `${11 * ratio}px ${color('--font')}`;
      ctx.textAlign = 'right';
      ctx.textBaseline = 'top';
      ctx.fillText(`▲ ${this.above.length > 0 && this.above.length < 3 ? `${this.above.join(', ')} ` : ''}up to ${this.format(this.beyond)}`, bbox.left + bbox.width - 4 * ratio, bbox.top + 2 * ratio);
    }
    ctx.restore();
    this.lanes.forEach((lane, i) => this.drawLane(lane, bbox.top + bbox.height + (AXIS[this.mode] + LANE * i) * ratio, ratio));
  }

  // Above the end of each line, one below the other where they would overlap.
  drawNames(ratio) {
    const { ctx, bbox, data } = this.plot;
    const ends = this.curves.map((curve, i) => {
      const column = data[this.columns[i]];
      let last = column.length - 1;
      while (last > 0 && !Number.isFinite(column[last])) --last;
      return { curve, x: this.plot.valToPos(data[0][last], 'x', true), y: this.plot.valToPos(column[last], 'y', true) };
    }).filter(({ curve, x, y }) => !curve.pale && !curve.part && Number.isFinite(y) && x >= bbox.left && x <= bbox.left + bbox.width + 1 && y > bbox.top && (!this.many || curve.name === this.group.pointed));
    if (ends.length < 2 && !this.many) return;
    ctx.font = `600 ${11 * ratio}px ${color('--font')}`;
    ctx.textAlign = 'right';
    ctx.textBaseline = 'bottom';
    ctx.lineWidth = 3 * ratio;
    ctx.lineJoin = 'round';
    ctx.setLineDash([]);
    const line = 13 * ratio;
    ends.sort((a, b) => a.y - b.y).forEach((end, i) => { end.base = Math.max(end.y - 3 * ratio, i > 0 ? ends[i - 1].base + line : 0); });
    let below = bbox.top + bbox.height + line;
    for (const end of ends.toReversed()) below = end.base = Math.min(end.base, below - line);
    for (const { curve, x, base } of ends) {
      const name = middle(curve.name);
      const right = Math.max(x - 2 * ratio, bbox.left + ctx.measureText(name).width + 4 * ratio);
      ctx.strokeStyle = color('--panel');
      ctx.strokeText(name, right, base);
      ctx.fillStyle = color(curve.color);
      ctx.fillText(name, right, base);
    }
  }

  // What happened to a run: checkpoints are ticks, the rest bars and dots with as much text as there is room for.
  drawLane({ color: name, marks }, top, ratio) {
    const { ctx, bbox } = this.plot;
    const right = bbox.left + bbox.width;
    const place = (x) => Math.round(this.plot.valToPos(x, 'x', true));
    ctx.save();
    ctx.fillStyle = color(name);
    ctx.fillRect(bbox.left - 12 * ratio, top + 3 * ratio, 7 * ratio, 7 * ratio);
    ctx.fillStyle = color('--grid');
    ctx.fillRect(bbox.left, top + 13 * ratio, bbox.width, ratio);
    ctx.beginPath();
    ctx.rect(bbox.left, top, bbox.width, LANE * ratio);
    ctx.clip();
    ctx.font = `${10 * ratio}px ${color('--font')}`;
    ctx.textAlign = 'left';
    ctx.textBaseline = 'middle';
    const seen = marks.filter((mark) => mark.x !== null).map((mark) => ({ ...mark, left: place(mark.x), right: mark.to ? place(mark.to) : place(mark.x) })).filter((mark) => mark.right >= bbox.left && mark.left <= right);
    for (const mark of seen.filter((one) => one.kind === 'checkpoint')) {
      ctx.fillStyle = color(MARKS.checkpoint);
      ctx.fillRect(mark.left, top + 3 * ratio, ratio, 7 * ratio);
    }
    const others = seen.filter((one) => one.kind !== 'checkpoint').sort((a, b) => a.left - b.left);
    others.forEach((mark, i) => {
      const wide = Math.max(mark.right - mark.left, 5 * ratio);
      ctx.fillStyle = color(MARKS[mark.kind] || '--muted');
      // A stop and the restart at its place are both seen.
      ctx.fillRect(mark.left - 2 * ratio, top + (mark.kind === 'restart' ? 7 : 1) * ratio, wide, (mark.kind === 'restart' || mark.kind === 'stop' ? 5 : 11) * ratio);
      const from = Math.max(mark.left + wide + 3 * ratio, bbox.left);
      const room = (others[i + 1]?.left ?? right) - from;
      if (room < 60 * ratio) return;
      let { text } = mark;
      while (text.length > 4 && ctx.measureText(text).width > room) text = `${text.slice(0, -2).replace(/…$/, '')}…`;
      ctx.fillStyle = color('--muted');
      ctx.fillText(text, from, top + 7 * ratio);
    });
    ctx.restore();
  }
}
