// Reads a trace as the coordinator makes it: gzip of Chrome's trace event format, one event a line (docs/formats.md). One line is in memory
// at a time, and of the events what the picture needs.
import { lines } from './api.js';

// Rows of the picture, from top to bottom: the kinds of events in each, and its name.
const ROWS = [[['step'], 'steps'], [['phase'], 'phases'], [['layer'], 'layers'], [['kernel'], 'kernels'], [['collective'], 'collectives'],
  [['gpu_kernel'], 'GPU kernels'], [['gpu_collective'], 'GPU collectives'], [['gpu_copy', 'gpu_set'], 'GPU copies']];
// Kinds that the table counts, and what it calls them. Where there are events of a GPU, what the host did to start them is not counted.
const HOST = { phase: 'phase', kernel: 'kernel', collective: 'collective' };
const GPU = { phase: 'phase', gpu_kernel: 'GPU kernel', gpu_collective: 'GPU collective', gpu_copy: 'GPU copy', gpu_set: 'GPU set' };
// Events in the picture, of all ranks together; the rest is counted in the table only.
const MOST_EVENTS = 600_000;
const MOST_LANES = 512;

// Numbers that are added one after another.
class Column {
  constructor(Type) {
    this.values = new Type(256);
    this.length = 0;
  }

  push(value) {
    if (this.length === this.values.length) {
      const larger = new this.values.constructor(2 * this.length);
      larger.set(this.values);
      this.values = larger;
    }
    this.values[this.length++] = value;
  }
}

class Lane {
  constructor(rank, row) {
    this.rank = rank;
    this.row = row;
    this.title = ROWS[row][1];
    this.begin = new Column(Float64Array);
    this.length = new Column(Float64Array);
    this.name = new Column(Uint32Array);
  }

  // In the order of their begin, with the longest length: what ends after a time begins at most that long before it.
  finish() {
    const count = this.begin.length;
    const order = Uint32Array.from({ length: count }, (_, i) => i).sort((a, b) => this.begin.values[a] - this.begin.values[b]);
    this.begin = Float64Array.from(order, (i) => this.begin.values[i]);
    this.length = Float64Array.from(order, (i) => this.length.values[i]);
    this.name = Uint32Array.from(order, (i) => this.name.values[i]);
    this.longest = this.length.reduce((most, one) => Math.max(most, one), 0);
  }
}

class Reader {
  constructor() {
    this.head = {};
    this.names = [];
    this.numbers = new Map();
    this.nodes = new Map();
    this.lanes = new Map();
    this.kept = new Map();
    this.left = 0;
    this.times = new Map();
    this.steps = 0;
    this.stepTime = 0;
  }

  number(name) {
    let number = this.numbers.get(name);
    if (number === undefined) {
      number = this.names.push(name) - 1;
      this.numbers.set(name, number);
    }
    return number;
  }

  lane(rank, row) {
    const key = `${rank} ${row}`;
    if (!this.lanes.has(key) && this.lanes.size < MOST_LANES) this.lanes.set(key, new Lane(rank, row));
    return this.lanes.get(key);
  }

  add(event) {
    if (event.ph === 'M' && event.name === 'process_name') this.nodes.set(event.pid, event.args.name);
    if (event.ph !== 'X') return;
    const row = ROWS.findIndex(([kinds]) => kinds.includes(event.cat));
    if (row < 0) return;
    if (event.cat === 'step') {
      this.steps += 1;
      this.stepTime += event.dur;
    } else {
      const key = `${event.cat}\n${event.name}`;
      const time = this.times.get(key) || { kind: event.cat, name: event.name, calls: 0, time: 0 };
      time.calls += 1;
      time.time += event.dur;
      this.times.set(key, time);
    }
    const kept = this.kept.get(event.pid) || 0;
    const lane = kept < this.share ? this.lane(event.pid, row) : undefined;
    if (!lane) {
      this.left += 1;
      return;
    }
    this.kept.set(event.pid, kept + 1);
    lane.begin.push(event.ts);
    lane.length.push(event.dur);
    lane.name.push(this.number(event.name));
  }

  line(text) {
    if (text === '' || text === ']}') {
      this.whole = this.whole || text === ']}';
    } else if (this.share === undefined) {
      this.head = JSON.parse(`${text}]}`).otherData;
      this.share = MOST_EVENTS / Math.max(this.head.ranks || 1, 1);
    } else {
      this.add(JSON.parse(text.endsWith(',') ? text.slice(0, -1) : text));
    }
  }

  // The ten names with the most time. Times are microseconds.
  top() {
    const all = [...this.times.values()];
    const words = all.some((one) => one.kind.startsWith('gpu_')) ? GPU : HOST;
    return all.filter((one) => words[one.kind]).sort((a, b) => b.time - a.time).slice(0, 10)
      .map((one) => ({ ...one, kind: words[one.kind], calls: one.calls / Math.max(this.steps, 1), share: this.stepTime > 0 ? one.time / this.stepTime : NaN, time: one.time / Math.max(this.steps, 1) }));
  }

  result() {
    const lanes = [...this.lanes.values()].sort((a, b) => a.rank - b.rank || a.row - b.row);
    for (const lane of lanes) lane.finish();
    const begin = Math.min(...lanes.map((lane) => lane.begin[0]));
    const end = Math.max(...lanes.map((lane) => lane.begin.reduce((most, one, i) => Math.max(most, one + lane.length[i]), -Infinity)));
    return { ...this.head, lanes, names: this.names, nodes: this.nodes, begin, end, left: this.left, top: this.top() };
  }
}

// From the compressed file: {job, first_step, last_step, lanes, names, nodes, begin, end, left, top, …}. Times are microseconds.
export async function readTrace(blob) {
  const reader = new Reader();
  try {
    for await (const line of lines(blob.stream().pipeThrough(new DecompressionStream('gzip')))) reader.line(line);
  } catch {
    reader.whole = false;
  }
  if (!reader.whole || reader.lanes.size === 0) throw new Error('the trace is not whole; record another');
  return reader.result();
}
