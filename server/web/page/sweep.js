// What a sweep is about: its jobs from best to worst, the keys in which they differ, and the loss by each key and by two of them.
import { RUNS } from './chart.js';
import { h, svg } from './dom.js';
import { middle, number, short } from './format.js';
import { isActive, waitsForSweep as waits, wasDropped as dropped } from './rows.js';

export const validated = (job) => job.val_step > 0 && Number.isFinite(job.val_loss);

// The order of `nsactl sweep`: dropped jobs come last; in a halved sweep those that came further come first, then the lower loss.
export function rank(a, b) {
  const out = (job) => Number(dropped(job) || job.state === 'FAILED');
  const far = (job) => (job.sweep.halve_at.length ? -job.val_step : 0);
  const loss = (job) => (validated(job) ? job.val_loss : Infinity);
  return out(a) - out(b) || far(a) - far(b) || (loss(a) === loss(b) ? 0 : loss(a) - loss(b)) || a.sweep.index - b.sweep.index;
}

// The keys of the job file in which the jobs differ: they are labels.
export function sweptKeys(jobs) {
  const keys = [...new Set(jobs.flatMap((job) => Object.keys(job.labels)))].filter((key) => key !== 'sweep');
  return keys.filter((key) => new Set(jobs.map((job) => job.labels[key])).size > 1 || key.includes('.')).sort();
}

export function note(job) {
  if (waits(job)) return `waits at step ${job.stop.at_step} for the other jobs`;
  if (job.state === 'STOPPED' || job.state === 'FAILED') return job.message;
  return job.stop?.mode === 'at_step' ? `stops after step ${job.stop.at_step}` : job.health.words;
}

// The sentence about a sweep and its best job; `owners` have sweeps of this name.
export function sweepHead(name, jobs, keys, owners, owner) {
  const active = jobs.filter((job) => isActive(job) || waits(job)).length;
  const best = jobs.filter(validated).sort(rank)[0];
  const halved = jobs[0]?.sweep.halve_at ?? [];
  const values = best && keys.map((key) => `${key}=${best.labels[key] ?? '–'}`).join(', ');
  const parts = [`${jobs.length} of ${jobs[0]?.sweep.jobs ?? 0} jobs`, active > 0 ? `${active} still to finish` : 'all ended', halved.length > 0 && `halved after step ${halved.join(', ')}`];
  return [h('div', { class: 'names' }, h('a', { href: '#/' }, 'All jobs'), h('span', { class: 'muted' }, '/'), h('b', {}, `sweep ${name}`),
    owners.length > 1 && h('span', { class: 'chips' }, owners.map((one) => h('a', { class: 'chip', 'aria-current': owner === one ? 'true' : undefined, href: `#/sweep/${encodeURIComponent(name)}?owner=${encodeURIComponent(one)}` }, one)))),
  h('h1', { class: 'sentence' }, h('i', { class: `dot ${active ? 'good' : 'waiting'}`, 'aria-hidden': 'true' }), h('span', {}, parts.filter(Boolean).join('; '))),
  h('p', { class: 'best-job' }, best ? ['Best: ', h('a', { href: `#/job/${best.id}` }, best.name), ` (${values}), validation loss ${number(best.val_loss)} at step ${number(best.val_step)}`] : 'No job has a validation yet.')];
}

// The loss by each key, and by each pair of the first three. `place` is the place of a job among the ticked ones.
export function keyPictures(keys, jobs, place) {
  const pairs = keys.slice(0, 3).flatMap((one, i, few) => few.slice(i + 1).map((other) => [one, other]));
  return [...keys.map((key) => lossByKey(key, jobs, place)), ...pairs.map(([one, other]) => lossByTwo(one, other, jobs))].filter(Boolean);
}

const byValue = (a, b) => (Number.isFinite(Number(a)) && Number.isFinite(Number(b)) ? Number(a) - Number(b) : a < b ? -1 : Number(a > b));

// The best loss for each pair of values; the better, the stronger the tint.
function lossByTwo(one, other, jobs) {
  const seen = jobs.filter((job) => validated(job) && job.labels[one] !== undefined && job.labels[other] !== undefined);
  const values = (key) => [...new Set(seen.map((job) => job.labels[key]))].sort(byValue);
  const [lines, columns] = [values(one), values(other)];
  if (lines.length < 2 || columns.length < 2) return null;
  const losses = seen.map((job) => job.val_loss);
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const cell = (line, column) => {
    const best = seen.filter((job) => job.labels[one] === line && job.labels[other] === column).sort((a, b) => a.val_loss - b.val_loss)[0];
    const at = h('td', { class: best?.val_loss === low ? 'num best' : 'num' }, best ? h('a', { href: `#/job/${best.id}`, title: `${best.name}, at step ${best.val_step}` }, number(best.val_loss)) : '–');
    if (best) at.style.background = `color-mix(in srgb, var(--accent) ${Math.round(28 * (high === low ? 1 : (high - best.val_loss) / (high - low)))}%, var(--panel))`;
    return at;
  };
  return h('figure', { class: 'chart pairs', 'aria-label': `Validation loss by ${one} and ${other}` }, h('figcaption', {}, h('span', { class: 'title' }, h('code', {}, one), ' and ', h('code', {}, other)), h('span', { class: 'note' }, 'the lowest validation loss of each pair')),
    h('div', { class: 'scroll', role: 'region', tabindex: '0', 'aria-label': `${one} and ${other}` }, h('table', {}, h('thead', {}, h('tr', {}, h('th', {}, h('code', {}, `${one} ↓ ${other} →`)), columns.map((column) => h('th', { class: 'num' }, column)))),
      h('tbody', {}, lines.map((line) => h('tr', {}, h('th', { scope: 'row' }, line), columns.map((column) => cell(line, column))))))));
}

const WIDTH = 400;
const HEIGHT = 200;
const EDGE = { left: 52, right: 12, top: 10, bottom: 24 };

// Where values lie on an axis from `from` to `to`: words side by side; numbers by size, or by their logarithm if they differ tenfold.
export function scale(texts, from, to) {
  const values = texts.map(Number);
  const numeric = values.every(Number.isFinite);
  const positive = numeric && values.every((value) => value > 0);
  const logarithmic = positive && Math.max(...values) >= 10 * Math.min(...values);
  const words = [...new Set(texts)].sort();
  const at = (text) => (numeric ? (logarithmic ? Math.log(Number(text)) : Number(text)) : words.indexOf(text));
  const places = texts.map(at);
  const low = Math.min(...places);
  const high = Math.max(...places);
  const margin = numeric ? 0.04 : 0.2;
  const place = (text) => (high === low ? (from + to) / 2 : from + (to - from) * (margin + (1 - 2 * margin) * (at(text) - low) / (high - low)));
  const ticks = numeric && words.length > 6 ? [texts[places.indexOf(low)], texts[places.indexOf(high)]] : words;
  return { place, ticks };
}

// A value as a label of an axis that has room for so many letters.
export function tick(value, letters) {
  return Number.isFinite(Number(value)) && value.length > 7 ? short(Number(value)) : middle(value, letters);
}

// One dot for each job with a validation: its loss by the value of this key. Jobs that stopped early are pale, because their losses are of an earlier step.
function lossByKey(key, jobs, place) {
  const seen = jobs.map((job, i) => [job, i]).filter(([job]) => validated(job) && job.labels[key] !== undefined);
  if (seen.length < 2 || new Set(seen.map(([job]) => job.labels[key])).size < 2) return null;
  const x = scale(seen.map(([job]) => job.labels[key]), EDGE.left, WIDTH - EDGE.right);
  const losses = seen.map(([job]) => job.val_loss);
  const low = Math.min(...losses);
  const high = Math.max(...losses);
  const y = (loss) => EDGE.top + (high === low ? 0.5 : (high - loss) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const letters = Math.max(5, Math.floor((WIDTH - EDGE.left) / x.ticks.length / 6));
  const furthest = Math.max(...seen.map(([job]) => job.val_step));
  const text = (words, attributes) => svg('text', attributes, words);
  const picture = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': `validation loss by ${key}` },
    ...[low, high].map((loss) => text(number(loss), { x: EDGE.left - 8, y: y(loss) + 4, class: 'tick end' })),
    ...[low, high].map((loss) => svg('line', { x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(loss), y2: y(loss), class: 'grid' })),
    ...x.ticks.map((value) => text(tick(value, letters), { x: x.place(value), y: HEIGHT - 6, class: 'tick middle' })),
    ...seen.map(([job, i]) => {
      const dot = svg('circle', { cx: x.place(job.labels[key]), cy: y(job.val_loss), r: i === 0 ? 5 : 4, class: job.val_step < furthest ? 'early' : '' },
        svg('title', {}, `${job.name}: ${key}=${job.labels[key]}, ${number(job.val_loss)} at step ${job.val_step}`));
      const at = place(job.id);
      dot.style.fill = `var(${at < 0 ? '--c8' : RUNS[at % RUNS.length]})`;
      return dot;
    }));
  return h('figure', { class: 'chart dots', 'aria-label': `Validation loss by ${key}` }, h('figcaption', {}, h('span', { class: 'title' }, h('code', {}, key)), h('span', { class: 'note' }, 'nats a token; pale: stopped earlier')), picture);
}
