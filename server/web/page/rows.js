// What a job looks like in lists: state, progress, spark line.
import { h, replace, svg } from './dom.js';
import { moment, number, stamp } from './format.js';

const ACTIVE = ['QUEUED', 'PREFLIGHT', 'STARTING', 'RUNNING', 'RESTARTING', 'STOPPING'];

// How many seconds the job's ranks have run; null before their first start.
export function runSeconds(job) {
  return job.run_seconds === null || !job.running_since ? job.run_seconds : job.run_seconds + Math.max(0, Date.now() - job.running_since) / 1000;
}

export function isActive(job) {
  return ACTIVE.includes(job.state);
}

// At a step of halve_at, until the other jobs of its sweep have reached it too.
export function waitsForSweep(job) {
  return job.state === 'STOPPED' && job.title === 'waiting';
}

// The lowest validation loss; null before the first validation and where it is not a number.
export function bestOf(job) {
  return !(job.val_step > 0) || job.val_loss === null ? null : Math.min(job.val_loss, job.best_val ?? Infinity);
}

export function wasDropped(job) {
  return job.reason === 'SWEEP_DROPPED';
}

// Colour and word: the state is never shown by the colour alone. The word is the coordinator's, of common/estimate/state_title.h.
export function badge(job) {
  return h('span', { class: `badge ${job.health.level}${job.state === 'RUNNING' ? ' running' : ''}`, title: job.state }, job.title);
}

// A loss, or that it is none.
export function lossText(value, nonfinite) {
  return nonfinite ? h('span', { class: 'bad' }, 'NaN') : number(value);
}

// What a row says below the name: what is wrong, or why it waits. State and times of a job that trains stand beside it.
export function words(job) {
  return job.health.level === 'waiting' ? job.health.words : job.health.why;
}

// Failures that somebody has looked at, in this browser: {id: when it failed}.
const SEEN = 'seen';
const MOST_SEEN = 200;
let seen = JSON.parse(localStorage.getItem(SEEN) || '{}');

export function wasSeen(job) {
  return seen[job.id] === job.ended;
}

export function markSeen(job) {
  if (job.state !== 'FAILED' || wasSeen(job)) return;
  seen = Object.fromEntries([...Object.entries(seen).filter(([id]) => id !== job.id), [job.id, job.ended]].slice(-MOST_SEEN));
  localStorage.setItem(SEEN, JSON.stringify(seen));
}

const FRESH = 24 * 3600 * 1000;  // how long the end of a job may need somebody

function asks(job) {
  if (job.needs_you !== undefined) return job.needs_you;
  if (!['bad', 'warning'].includes(job.health.level)) return false;
  return isActive(job) || (['FAILED', 'SUCCEEDED'].includes(job.state) && Date.now() - job.ended < FRESH);
}

// Something is wrong that was not muted, and that nobody has looked at in this browser.
export function needsYou(job) {
  return asks(job) && !wasSeen(job);
}

// It would need somebody, but was looked at here.
export function isSettled(job) {
  return asks(job) && wasSeen(job);
}

export function progress(job) {
  const share = job.steps > 0 ? Math.min(job.step / job.steps, 1) : 0;
  const bar = h('i', {});
  bar.style.width = `${100 * share}%`;
  return h('div', { class: `progress ${job.state === 'SUCCEEDED' && job.health.level === 'good' ? 'done' : job.health.level}`, role: 'progressbar', 'aria-valuenow': String(Math.round(100 * share)), 'aria-valuemin': '0', 'aria-valuemax': '100', 'aria-label': 'steps done' }, bar);
}

// One scale for the spark lines of a list: what is far above the others is cut off.
export function sparkScale(sparks) {
  const all = sparks.flatMap((points) => points || []).filter((value) => value !== null).sort((a, b) => a - b);
  const tenth = (value, round) => round(10 * value) / 10;  // so that it seldom changes
  return all.length > 1 ? { low: tenth(all[0], Math.floor), high: tenth(all[Math.floor(0.97 * (all.length - 1))], Math.ceil) } : null;
}

export function sparkLine(points, scale = null, width = 96, height = 24) {
  const known = (points || []).filter((value) => value !== null);
  const picture = svg('svg', { class: 'spark', width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': known.length ? `loss from ${known[0]} to ${known[known.length - 1]}` : 'no loss yet' });
  if (known.length < 2) return picture;
  const { low, high } = scale || { low: Math.min(...known), high: Math.max(...known) };
  const x = (i) => 1 + i / (points.length - 1) * (width - 5);
  const y = (value) => 2 + Math.min(Math.max((high - value) / (high - low || 1), 0), 1) * (height - 5);
  const places = points.map((value, i) => (value === null ? null : [x(i).toFixed(1), y(value).toFixed(1)])).filter(Boolean);
  const line = places.map((place) => place.join(' ')).join('L');
  picture.append(svg('path', { class: 'area', d: `M${places[0][0]} ${height}L${line}L${places[places.length - 1][0]} ${height}Z` }),
    svg('path', { class: 'line', d: `M${line}` }),
    svg('circle', { class: 'end', cx: places[places.length - 1][0], cy: places[places.length - 1][1], r: 2 }));
  return picture;
}

export function sweepLink(job) {
  return `#/sweep/${encodeURIComponent(job.sweep.name)}?owner=${encodeURIComponent(job.owner)}`;
}

// The label of a sweep leads to its page.
export function labels(job) {
  const sweep = job.sweep && sweepLink(job);
  return Object.entries(job.labels || {}).map(([name, value]) => (sweep && name === 'sweep' ? h('a', { class: 'label', href: sweep, title: 'All jobs of this sweep' }, `${name}=${value}`)
    : h('span', { class: 'label' }, `${name}=${value}`)));
}

function eventRow({ last: event, count, first }, withJob) {
  return h('li', { class: `event ${event.severity}` }, h('time', { datetime: new Date(event.time).toISOString(), title: stamp(event.time) }, moment(event.time)),
    withJob && h('a', { href: `#/job/${event.job}` }, withJob), h('b', {}, event.reason),
    h('span', {}, count > 1 && h('small', {}, `×${count.toLocaleString('en-US')} since ${moment(first.time)}: `), event.text));
}

// Events, folded: warnings of one cause and one start of the ranks are one entry with a count, others where they follow each other.
export class Folded {
  constructor(most = 500) {
    this.most = most;
    this.groups = [];  // {first, last, count}, in the order of their last events
    this.open = new Map();
  }

  // Returns the group that the event is in.
  add(event) {
    const key = `${event.job} ${event.reason} ${event.generation} ${event.rank}`;
    const before = this.open.get(key);
    const newest = this.groups[this.groups.length - 1];
    const joins = before && event.reason !== 'NOTE' && (event.severity !== 'info' || before === newest);
    const group = joins ? before : { first: event, last: event, count: 0 };
    group.last = event;
    ++group.count;
    if (group !== newest) {
      if (joins) this.groups.splice(this.groups.lastIndexOf(group), 1);
      this.groups.push(group);
    }
    this.open.set(key, group);
    if (this.groups.length > this.most) {
      const [gone] = this.groups.splice(0, 1);
      for (const [name, one] of this.open) if (one === gone) this.open.delete(name);
      gone.row?.remove();
    }
    return group;
  }
}

// The list of what happened, the newest first. An event changes one row.
export class Happened {
  constructor(element, { most = 500, named = false } = {}) {
    this.element = element;
    this.named = named;
    this.most = most;
    this.show([]);
  }

  show(events) {
    this.folded = new Folded(this.most);
    for (const event of events) this.folded.add(event);
    replace(this.element, events.length === 0 && h('li', { class: 'muted' }, 'Nothing yet.'), this.folded.groups.toReversed().map((group) => this.row(group)));
  }

  add(event) {
    if (this.folded.groups.length === 0) replace(this.element);
    const group = this.folded.add(event);
    group.row?.remove();
    this.element.prepend(this.row(group));
  }

  row(group) {
    group.row = eventRow(group, this.named && group.last.name);
    return group.row;
  }

  get groups() {
    return this.folded.groups;
  }
}
