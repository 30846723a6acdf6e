// What a job looks like in lists: state, progress, spark line.
import { h, svg } from './dom.js';
import { moment } from './format.js';

export const STATES = { QUEUED: 'waiting', PREFLIGHT: 'waiting', STARTING: 'starting', RUNNING: 'training', RESTARTING: 'restarting', STOPPING: 'stopping',
  SUCCEEDED: 'finished', FAILED: 'failed', STOPPED: 'stopped' };
export const ACTIVE = ['QUEUED', 'PREFLIGHT', 'STARTING', 'RUNNING', 'RESTARTING', 'STOPPING'];

// How many seconds the job's ranks have run; null before their first start.
export function runSeconds(job) {
  return job.run_seconds === null || !job.running_since ? job.run_seconds : job.run_seconds + Math.max(0, Date.now() - job.running_since) / 1000;
}

export function isActive(job) {
  return ACTIVE.includes(job.state);
}

// Colour and word: the state is never shown by the colour alone.
export function badge(job) {
  return h('span', { class: `badge ${job.health.level}${job.state === 'RUNNING' ? ' running' : ''}` }, STATES[job.state] || job.state.toLowerCase());
}

export function progress(job) {
  const share = job.steps > 0 ? Math.min(job.step / job.steps, 1) : 0;
  const bar = h('i', {});
  bar.style.width = `${100 * share}%`;
  return h('div', { class: `progress ${job.state === 'SUCCEEDED' ? 'done' : job.health.level}`, role: 'progressbar', 'aria-valuenow': String(Math.round(100 * share)), 'aria-valuemin': '0', 'aria-valuemax': '100', 'aria-label': 'steps done' }, bar);
}

export function sparkLine(points, width = 96, height = 24) {
  const known = (points || []).filter((value) => value !== null);
  const picture = svg('svg', { class: 'spark', width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': known.length ? `loss from ${known[0]} to ${known[known.length - 1]}` : 'no loss yet' });
  if (known.length < 2) return picture;
  const low = Math.min(...known);
  const high = Math.max(...known);
  const x = (i) => 1 + i / (points.length - 1) * (width - 5);
  const y = (value) => 2 + (high - value) / (high - low || 1) * (height - 5);
  const places = points.map((value, i) => (value === null ? null : [x(i).toFixed(1), y(value).toFixed(1)])).filter(Boolean);
  const line = places.map((place) => place.join(' ')).join('L');
  picture.append(svg('path', { class: 'area', d: `M${places[0][0]} ${height}L${line}L${places[places.length - 1][0]} ${height}Z` }),
    svg('path', { class: 'line', d: `M${line}` }),
    svg('circle', { class: 'end', cx: places[places.length - 1][0], cy: places[places.length - 1][1], r: 2 }));
  return picture;
}

// The label of a sweep leads to its page.
export function labels(job) {
  const sweep = job.sweep && `#/sweep/${encodeURIComponent(job.sweep.name)}?owner=${encodeURIComponent(job.owner)}`;
  return Object.entries(job.labels || {}).map(([name, value]) => (sweep && name === 'sweep' ? h('a', { class: 'label', href: sweep, title: 'All jobs of this sweep' }, `${name}=${value}`)
    : h('span', { class: 'label' }, `${name}=${value}`)));
}

export function eventRow(event, withJob) {
  return h('li', { class: `event ${event.severity}` }, h('time', { datetime: new Date(event.time).toISOString(), title: new Date(event.time).toLocaleString() }, moment(event.time)),
    withJob && h('a', { href: `#/job/${event.job}` }, withJob), h('b', {}, event.reason.toLowerCase().replaceAll('_', ' ')), h('span', {}, event.text));
}
