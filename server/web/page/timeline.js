// The picture of a trace: a lane for each rank and kind, and a table of what takes the most time.
import { color, h, replace } from './dom.js';
import { percent, seconds } from './format.js';

const LANE = 20;
const GAP = 3;
const HEAD = 26;
const AXIS = 20;
const COLORS = ['--c1', '--c2', '--c3', '--c4', '--c5', '--c6', '--c7'];
const TALLEST = 16_000;  // pixels of a canvas that browsers draw
const SHORTEST = 0.02;  // microseconds in the picture

// The first event of a lane that may still be there at `time`.
function firstAt(lane, time) {
  let low = 0;
  let high = lane.begin.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.begin[middle] < time - lane.longest) low = middle + 1;
    else high = middle;
  }
  return low;
}

const time = (microseconds) => seconds(microseconds / 1e6);

// A time since the begin, so exact that times `unit` apart differ.
function moment(microseconds, unit, longest) {
  const [scale, name] = longest >= 1e6 ? [1e6, 's'] : longest >= 1e3 ? [1e3, 'ms'] : [1, 'µs'];
  return `${(microseconds / scale).toFixed(Math.max(Math.ceil(-Math.log10(unit / scale) - 1e-9), 0))} ${name}`;
}

export class Timeline {
  constructor(trace) {
    this.trace = trace;
    this.from = trace.begin;
    this.to = trace.end;
    this.chosen = null;
    this.place();
    this.paint = this.colours();
    this.value = h('p', { class: 'values', role: 'status' });
    this.canvas = h('canvas', { tabindex: '0', role: 'application', 'aria-describedby': 'timeline-keys',
      'aria-label': `Timeline of ${trace.ranks || 1} rank${trace.ranks > 1 ? 's' : ''}, steps ${trace.first_step} to ${trace.last_step}` });
    this.canvas.style.height = `${this.height}px`;
    this.titles = h('div', { class: 'lane-names', 'aria-hidden': 'true' }, this.labels());
    this.selection = h('i', { hidden: true });
    const button = (text, name, act) => h('button', { type: 'button', 'aria-label': name, title: name, onclick: act }, text);
    this.box = h('div', { class: 'lane-box' }, this.titles, h('div', { class: 'lane-area' }, this.canvas, this.selection));
    this.element = h('div', { class: 'timeline' },
      h('div', { class: 'tools' }, button('−', 'Zoom out', () => this.zoom(2)), button('+', 'Zoom in', () => this.zoom(0.5)), button('←', 'Earlier', () => this.move(-0.5)), button('→', 'Later', () => this.move(0.5)),
        button('All', 'The whole trace', () => this.show(trace.begin, trace.end)), this.value),
      this.box,
      h('p', { class: 'note', id: 'timeline-keys' }, 'Drag to zoom in, double-click to zoom out. With the picture focused: ← → previous and next, ↑ ↓ other lane, + − zoom, 0 all.',
        trace.left > 0 && ` ${trace.left.toLocaleString('en-US')} events are not in the picture; the table has them.`));
    this.listen();
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.canvas);
  }

  close() {
    this.observer.disconnect();
  }

  // The top of each lane; the ranks are apart.
  place() {
    let top = AXIS;
    let rank = null;
    this.tops = this.trace.lanes.map((lane) => {
      if (lane.rank !== rank) top += HEAD;
      rank = lane.rank;
      top += LANE + GAP;
      return top - LANE - GAP;
    });
    this.height = top;
  }

  labels() {
    return this.trace.lanes.flatMap((lane, i) => {
      const name = h('span', {}, lane.title);
      name.style.top = `${this.tops[i]}px`;
      if (i > 0 && this.trace.lanes[i - 1].rank === lane.rank) return [name];
      const rank = h('b', { title: this.trace.nodes.get(lane.rank) }, this.trace.nodes.get(lane.rank) || `rank ${lane.rank}`);
      rank.style.top = `${this.tops[i] - HEAD + 6}px`;
      return [rank, name];
    });
  }

  // For each kind of lane a colour for each name, the same in all ranks: those with the most time get the first ones. Steps are grey.
  colours() {
    const paint = {};
    for (const title of new Set(this.trace.lanes.map((lane) => lane.title))) {
      const sums = new Map();
      for (const lane of this.trace.lanes.filter((one) => one.title === title)) {
        lane.name.forEach((name, i) => sums.set(name, (sums.get(name) || 0) + lane.length[i]));
      }
      const order = [...sums.keys()].sort((a, b) => sums.get(b) - sums.get(a));
      paint[title] = new Map(order.map((name, i) => [name, title === 'steps' ? '--c8' : COLORS[i % COLORS.length]]));
    }
    return paint;
  }

  show(from, to) {
    const whole = this.trace.end - this.trace.begin;
    const width = Math.min(Math.max(to - from, SHORTEST), whole);
    this.from = Math.min(Math.max(from, this.trace.begin), this.trace.end - width);
    this.to = this.from + width;
    this.draw();
  }

  zoom(factor, at = this.centre()) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  move(share) {
    const by = (this.to - this.from) * share;
    this.show(this.from + by, this.to + by);
  }

  // The event that was chosen, if it is in view; else the middle.
  centre() {
    if (this.chosen) {
      const { lane, i } = this.chosen;
      const middle = lane.begin[i] + lane.length[i] / 2;
      if (middle >= this.from && middle <= this.to) return middle;
    }
    return (this.from + this.to) / 2;
  }

  timeAt(x) {
    return this.from + x / this.canvas.clientWidth * (this.to - this.from);
  }

  // The event under a point; the shortest of those that are there.
  at(x, y) {
    const index = this.tops.findIndex((top) => y >= top && y < top + LANE);
    if (index < 0) return null;
    const lane = this.trace.lanes[index];
    const slack = 1.5 * (this.to - this.from) / this.canvas.clientWidth;
    const when = this.timeAt(x);
    let found = null;
    for (let i = firstAt(lane, when - slack); i < lane.begin.length && lane.begin[i] <= when + slack; ++i) {
      if (lane.begin[i] + lane.length[i] + slack < when) continue;
      if (found === null || lane.length[i] <= lane.length[found]) found = i;
    }
    return found === null ? null : { lane, i: found };
  }

  choose(chosen) {
    this.chosen = chosen;
    if (chosen) {
      const { lane, i } = chosen;
      replace(this.value, h('b', {}, this.trace.names[lane.name[i]]), ` ${time(lane.length[i])}`, h('span', { class: 'muted' }, ` at ${moment(lane.begin[i] - this.trace.begin, 1, this.trace.end - this.trace.begin)}, rank ${lane.rank}, ${lane.title}`));
    } else {
      replace(this.value);
    }
    this.draw();
  }

  // By keyboard: the next event of a lane, with the view moved to it.
  step(by) {
    const lane = this.chosen ? this.chosen.lane : this.trace.lanes[0];
    const i = this.chosen ? this.chosen.i + by : Math.min(firstAt(lane, this.from + lane.longest), lane.begin.length - 1);
    if (i >= 0 && i < lane.begin.length) this.focusOn(lane, i);
  }

  otherLane(by) {
    const lanes = this.trace.lanes;
    const index = this.chosen ? lanes.indexOf(this.chosen.lane) + by : 0;
    if (index < 0 || index >= lanes.length) return;
    const lane = lanes[index];
    this.focusOn(lane, Math.min(firstAt(lane, this.centre() + lane.longest), lane.begin.length - 1));
  }

  focusOn(lane, i) {
    const end = lane.begin[i] + lane.length[i];
    const width = this.to - this.from;
    if (end < this.from || lane.begin[i] > this.to) {
      this.from = lane.begin[i] + lane.length[i] / 2 - width / 2;
      this.to = this.from + width;
    }
    const top = this.tops[this.trace.lanes.indexOf(lane)];
    this.box.scrollTop = Math.min(Math.max(this.box.scrollTop, top + LANE + GAP - this.box.clientHeight), top - HEAD);
    this.choose({ lane, i });
  }

  key(event) {
    const acts = { ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1), ArrowDown: () => this.otherLane(1), ArrowUp: () => this.otherLane(-1),
      '+': () => this.zoom(0.5), '=': () => this.zoom(0.5), '-': () => this.zoom(2), 0: () => this.show(this.trace.begin, this.trace.end), Escape: () => this.choose(null) };
    if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    acts[event.key]();
  }

  listen() {
    let down = null;
    const x = (event) => Math.min(Math.max(event.clientX - this.canvas.getBoundingClientRect().left, 0), this.canvas.clientWidth);
    this.canvas.addEventListener('pointerdown', (event) => {
      if (event.button !== 0 || event.pointerType === 'touch') return;
      down = x(event);
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener('pointermove', (event) => {
      const now = x(event);
      if (down !== null && Math.abs(now - down) > 3) {
        this.selection.hidden = false;
        this.selection.style.left = `${Math.min(now, down)}px`;
        this.selection.style.width = `${Math.abs(now - down)}px`;
      } else {
        const found = this.at(now, event.offsetY);
        if (found?.lane !== this.chosen?.lane || found?.i !== this.chosen?.i) this.choose(found);
      }
    });
    this.canvas.addEventListener('pointerup', (event) => {
      const now = x(event);
      this.selection.hidden = true;
      if (down !== null && Math.abs(now - down) > 3) this.show(this.timeAt(Math.min(now, down)), this.timeAt(Math.max(now, down)));
      down = null;
    });
    this.canvas.addEventListener('pointercancel', () => { down = null; this.selection.hidden = true; });
    this.canvas.addEventListener('dblclick', () => this.show(this.trace.begin, this.trace.end));
    this.canvas.addEventListener('wheel', (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      if (event.ctrlKey) this.zoom(Math.exp(event.deltaY / 200), this.timeAt(x(event)));
      else this.move((event.deltaX || event.deltaY) / this.canvas.clientWidth);
    }, { passive: false });
    this.canvas.addEventListener('keydown', (event) => this.key(event));
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (width === 0) return;
    const ratio = Math.min(devicePixelRatio || 1, TALLEST / this.height);
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    const ctx = this.canvas.getContext('2d');
    ctx.scale(ratio, ratio);
    const scheme = Object.fromEntries([...COLORS, '--c8', '--text', '--faint', '--grid', '--bg', '--panel'].map((name) => [name, color(name)]));
    ctx.font = `11px ${color('--font')}`;
    ctx.textBaseline = 'middle';
    this.drawAxis(ctx, width, scheme);
    this.trace.lanes.forEach((lane, i) => this.drawLane(ctx, lane, this.tops[i], width, scheme));
  }

  drawAxis(ctx, width, scheme) {
    const span = this.to - this.from;
    const rough = span / Math.max(width / 110, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const unit = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
    ctx.lineWidth = 1;
    for (let tick = Math.ceil((this.from - this.trace.begin) / unit) * unit; tick <= this.to - this.trace.begin; tick += unit) {
      const x = Math.round((tick + this.trace.begin - this.from) / span * width) + 0.5;
      ctx.strokeStyle = scheme['--grid'];
      ctx.beginPath();
      ctx.moveTo(x, AXIS - 4);
      ctx.lineTo(x, this.height);
      ctx.stroke();
      ctx.fillStyle = scheme['--faint'];
      const text = moment(tick, unit, this.to - this.trace.begin);
      const room = ctx.measureText(text).width;
      ctx.fillText(text, Math.min(Math.max(x - room / 2, 0), width - room), AXIS / 2 - 1);
    }
  }

  drawLane(ctx, lane, top, width, scheme) {
    const scale = width / (this.to - this.from);
    ctx.fillStyle = scheme['--bg'];
    ctx.fillRect(0, top, width, LANE);
    const paint = this.paint[lane.title];
    let drawn = -1;  // up to this pixel; what is shorter than one hides in what is there
    for (let i = firstAt(lane, this.from); i < lane.begin.length && lane.begin[i] <= this.to; ++i) {
      const left = Math.max((lane.begin[i] - this.from) * scale, 0);
      const right = Math.min((lane.begin[i] + lane.length[i] - this.from) * scale, width);
      if (right < 0 || right < drawn + 0.5) continue;
      const room = right - left;
      ctx.fillStyle = scheme[paint.get(lane.name[i])];
      ctx.globalAlpha = room < 1 ? 0.7 : 0.9;
      ctx.fillRect(left, top, Math.max(room - (room > 3 ? 1 : 0), 1), LANE);
      ctx.globalAlpha = 1;
      if (room < 1) drawn = left + 1;
      if (room > 24) this.write(ctx, this.trace.names[lane.name[i]], left + 5, top + LANE / 2 + 1, room - 10, scheme);
    }
    if (this.chosen?.lane === lane) {
      const left = (lane.begin[this.chosen.i] - this.from) * scale;
      ctx.strokeStyle = scheme['--text'];
      ctx.lineWidth = 2;
      ctx.strokeRect(left, top + 1, Math.max(lane.length[this.chosen.i] * scale - 1, 2), LANE - 2);
    }
  }

  // The name, shortened to the room that there is.
  write(ctx, name, x, y, room, scheme) {
    let text = name;
    const all = ctx.measureText(text).width;
    if (all > room) text = `${text.slice(0, Math.floor(text.length * room / all) - 1)}…`;
    if (text.length < 3) return;
    ctx.fillStyle = scheme['--panel'];
    ctx.fillText(text, x, y);
  }
}

export function topTable(trace) {
  return h('table', { class: 'top-times' }, h('caption', {}, 'What takes the most time'),
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Name'), h('th', { scope: 'col' }, 'Kind'), ...['Calls a step', 'Time a step', 'Share of the step'].map((title) => h('th', { scope: 'col', class: 'num' }, title)))),
    h('tbody', {}, trace.top.map((one) => h('tr', {}, h('th', { scope: 'row' }, h('code', {}, one.name)), h('td', {}, one.kind), h('td', { class: 'num' }, String(Number(one.calls.toPrecision(4)))),
      h('td', { class: 'num' }, time(one.time)), h('td', { class: 'num' }, percent(one.share, 1))))));
}
