// A chart of curves over steps, tokens or time, drawn by uPlot. Behind each curve a band shows the least and the greatest value of every bucket;
// marks on the axis show restarts, checkpoints and alerts. Charts of one page share their cursor and their zoom.
import { color, h, replace } from './dom.js';
import { clock, number, short, span } from './format.js';

/* global uPlot */

export const COLORS = ['--c1', '--c2', '--c3', '--c4', '--c5', '--c6', '--c7', '--c8'];

const POWERS = Array.from({ length: 50 }, (_, i) => 2 ** i);
const MARKS = { restart: '--warning', checkpoint: '--muted', failure: '--bad', stop: '--c4', alert: '--bad', note: '--accent' };

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

// Of the ticks of a logarithmic axis of many decades only powers of ten have a line.
function sparse(ticks) {
  const decades = Math.log10(ticks[ticks.length - 1] / ticks[0]);
  if (!(decades > 3)) return ticks;
  const every = Math.ceil(decades / 6);
  return ticks.map((tick) => { const power = Math.log10(tick); return Math.abs(power - Math.round(power)) < 1e-6 && Math.round(power) % every === 0 ? tick : null; });
}

function sinceText({ step }) {
  return `NaN since step ${step.toLocaleString('en-US')}`;
}

function axisText(mode, value) {
  if (mode === 'time') return clock(value * 1000);
  if (mode === 'elapsed') return span(value);
  return mode === 'tokens' ? `${short(value)} tokens` : `step ${value.toLocaleString('en-US')}`;
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
  // `zoomed` is called when a part is chosen.
  constructor(zoomed = () => {}) {
    this.charts = new Set();
    this.zoomed = zoomed;
    this.zoom = null;
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
    if (this.zoom) this.zoomed();
  }
}

export class Chart {
  // `format` writes a value, `axis` a number beside the axis; `zero`: the axis begins at 0; `spikes`: it may end below a few much higher values, 'runs': of
  // several runs below those that are much higher; `binary`: its
  // numbers are powers of two; `big`: the chart is two columns wide.
  constructor(group, { title, note = '', format = short, axis = format === number ? short : format, height = 190, zero = false, spikes = false, binary = false, big = false }) {
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
    this.holder = h('div', { class: 'plot' });
    this.empty = h('p', { class: 'empty' }, 'nothing yet');
    this.element = h('figure', { class: big ? 'chart big' : 'chart', 'aria-label': title },
      h('figcaption', {}, h('span', { class: 'title' }, title), note && h('span', { class: 'note' }, note), this.values), this.holder, this.empty);
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

  // `curves`: [{name, color, x, y, min, max, dots, dashed}]; `mode`: step, tokens, time or elapsed; `marks`: [{x, to, kind, text}], from `x` on to `to`, if it is
  // there; `broken`: [{from, to, step, open}] where the values were not finite, up to the end if `open`. They are drawn in one of the next frames; the first chart
  // of a page at once.
  show(given) {
    this.given = given;
    const { curves, mode, log = false, marks = [], broken = [] } = given;
    const known = curves.filter((curve) => curve.x.length > 0 && curve.y.some((value) => Number.isFinite(value)));
    this.off = known.filter((curve) => this.group.hidden.has(curve.name));
    if (this.off.length === known.length) this.off = [];
    const drawn = known.filter((curve) => !this.off.includes(curve));
    this.lost = broken.length > 0 ? curves.filter((curve) => curve.breaks && !known.includes(curve)) : [];  // no value of them is finite
    this.empty.hidden = drawn.length > 0;
    this.empty.textContent = broken.length > 0 ? sinceText(broken[0]) : 'nothing yet';
    this.empty.classList.toggle('bad', broken.length > 0);
    this.holder.hidden = drawn.length === 0;
    if (drawn.length === 0) {
      waiting.delete(this);
      replace(this.values);
      return;
    }
    const layout = JSON.stringify([mode, log, this.off.map((curve) => curve.name), drawn.map((curve) => [curve.name, curve.color, !!curve.min, curve.dots, curve.dashed])]);
    this.next = { curves: drawn, mode, log, marks, broken, layout };
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
    const { curves, mode, log, marks, broken, layout } = this.next;
    this.curves = curves;
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
    for (const curve of this.curves) {
      const stroke = color(curve.color);
      this.columns.push(series.length);
      series.push({ stroke, width: 1.5, spanGaps: true, dash: curve.dashed ? [5, 4] : undefined,
        points: { show: !!curve.dots, size: 5, fill: stroke, width: 0 }, paths: curve.dots === 'only' ? () => null : undefined });
      if (curve.min) {
        series.push({ show: true, width: 0, points: { show: false }, spanGaps: true }, { show: true, width: 0, points: { show: false }, spanGaps: true });
        bands.push({ series: [series.length - 1, series.length - 2], fill: `${stroke}3c` });
      }
    }
    const axis = { stroke: color('--muted'), grid: { stroke: color('--grid'), width: 1 }, ticks: { show: false }, font: `11px ${color('--font')}`, gap: 4 };
    this.plot = new uPlot({
      width: Math.max(this.holder.clientWidth, 100), height: this.height,
      legend: { show: false },
      padding: [8, 16, 0, 0],
      cursor: { sync: { key: this.group.sync.key, setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { size: 6 }, y: false },
      select: { show: true },
      scales: { x: { time: this.mode === 'time' }, y: { distr: this.log ? 3 : 1, range: this.log ? undefined : (plot, low, high) => this.range(plot, low, high) } },
      axes: [{ ...axis, size: 24, space: 70, values: this.mode === 'time' ? undefined : (plot, ticks) => ticks.map((tick) => (this.mode === 'elapsed' ? span(tick) : short(tick))) },
        { ...axis, size: this.binary ? 56 : 46, incrs: this.binary ? POWERS : undefined, values: (plot, ticks) => ticks.map((tick) => (tick === null ? '' : this.axisFormat(tick))),
          grid: this.log ? { ...axis.grid, filter: (plot, ticks) => sparse(ticks) } : axis.grid }],
      series, bands,
      hooks: {
        draw: [() => this.drawMarks()],
        setCursor: [(plot) => this.showValues(plot.cursor.idx)],
        setSelect: [(plot) => this.select(plot)],
      },
    }, data, this.holder);
    this.plot.ctx.canvas.setAttribute('role', 'img');
    this.plot.ctx.canvas.setAttribute('aria-label', `${this.title}: a curve; the latest values are above it`);
    this.plot.over.addEventListener('dblclick', () => this.group.zoomTo(null));
  }

  range(plot, low, high) {
    if (low === null || high === null) return [0, 1];
    const bottom = this.zero ? Math.min(0, low) : low;
    const top = this.spikes ? this.usualTop(plot, high) : high;
    this.beyond = top < high ? high : null;
    this.above = this.beyond !== null && this.spikes === 'runs' ? this.curves.filter((_, i) => plot.data[this.columns[i]].some((value) => value > top)).map((curve) => curve.name) : [];
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
    // Nor does one of several runs press the others flat.
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
    if (this.plot && width > 0 && Math.abs(width - this.plot.width) > 1) this.plot.setSize({ width, height: this.height });
  }

  // The values under the cursor, or the last ones.
  showValues(index) {
    if (!this.plot) return;
    const data = this.plot.data;
    const at = index === null || index === undefined ? data[0].length - 1 : index;
    const last = index === null || index === undefined ? this.broken.find((one) => one.open) : null;
    const items = this.curves.map((curve, i) => {
      const column = data[this.columns[i]];
      let place = at;
      while (place > 0 && (column[place] === null || column[place] === undefined)) --place;
      const spread = curve.min && this.curves.length < 4 && index !== null && Number.isFinite(data[this.columns[i] + 1][place]) &&
        data[this.columns[i] + 1][place] !== data[this.columns[i] + 2][place];
      const lost = curve.breaks && (last || (index !== null && index !== undefined && this.broken.find((one) => data[0][at] > one.from && data[0][at] <= one.to)));
      return h('span', { class: 'value', data: { name: curve.name }, title: 'Click to hide, double-click to see it alone' }, h('i', { class: `swatch ${curve.color.slice(2)}` }), `${curve.name} `,
        lost ? h('b', { class: 'bad' }, sinceText(lost)) : h('b', {}, this.format(column[place])),
        spread && h('small', {}, ` ${this.format(data[this.columns[i] + 1][place])}–${this.format(data[this.columns[i] + 2][place])}`));
    });
    const here = index === null || index === undefined ? null : h('span', { class: 'value at' }, axisText(this.mode, data[0][at]));
    const marks = here ? this.marksAt(data[0][at]) : [];
    const off = this.off.map((curve) => h('span', { class: 'value off', data: { name: curve.name }, title: 'Click to show it again' }, h('i', { class: 'swatch' }), curve.name));
    const lost = this.lost.map((curve) => h('span', { class: 'value' }, h('i', { class: `swatch ${curve.color.slice(2)}` }), `${curve.name} `, h('b', { class: 'bad' }, sinceText(this.broken[0]))));
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

  drawMarks() {
    const { ctx, bbox } = this.plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const ratio = devicePixelRatio || 1;
    for (const one of this.broken) this.hatch(one, ratio);
    const lines = {};  // where the last line of each kind is: one in 8 pixels is enough
    for (const mark of this.marks) {
      if (mark.x === null) continue;
      const x = Math.round(this.plot.valToPos(mark.x, 'x', true));
      ctx.setLineDash([]);
      ctx.strokeStyle = ctx.fillStyle = color(MARKS[mark.kind] || '--muted');
      ctx.lineWidth = ratio;
      ctx.globalAlpha = 0.7;
      if (mark.kind === 'checkpoint') {
        ctx.fillRect(x - ratio, bbox.top + bbox.height - 5 * ratio, 2 * ratio, 5 * ratio);
        continue;
      }
      // What happened again and again is a bar along the top.
      if (mark.to) ctx.fillRect(x, bbox.top, Math.max(this.plot.valToPos(mark.to, 'x', true) - x, 2 * ratio), 4 * ratio);
      if (Math.abs(x - lines[mark.kind]) < 8 * ratio) continue;
      lines[mark.kind] = x;
      ctx.setLineDash([4 * ratio, 3 * ratio]);
      ctx.lineDashOffset = mark.kind === 'stop' ? 3.5 * ratio : 0;  // a stop and the restart at the same place are both seen
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.moveTo(x - 4 * ratio, bbox.top);
      ctx.lineTo(x + 4 * ratio, bbox.top);
      ctx.lineTo(x, bbox.top + 6 * ratio);
      ctx.fill();
    }
    if (this.beyond !== null) {
      ctx.globalAlpha = 1;
      ctx.fillStyle = color('--muted');
      ctx.font = `${11 * ratio}px ${color('--font')}`;
      ctx.textAlign = 'right';
      ctx.textBaseline = 'top';
      ctx.fillText(`▲ ${this.above.length > 0 && this.above.length < 3 ? `${this.above.join(', ')} ` : ''}up to ${this.format(this.beyond)}`, bbox.left + bbox.width - 4 * ratio, bbox.top + 2 * ratio);
    }
    ctx.restore();
  }
}
