// A sweep: its jobs from best to worst, their validation losses over each other, and the loss by each key that differs.
import { follow, get, showLive } from './api.js';
import { COLORS, Chart, Group } from './chart.js';
import { Curves } from './curves.js';
import { h, replace, svg, toast, update } from './dom.js';
import { number, short } from './format.js';
import { badge, isActive, lossText, progress, sparkLine, waitsForSweep as waits, wasDropped as dropped } from './rows.js';

const MODES = [['step', 'Step'], ['tokens', 'Tokens'], ['elapsed', 'Time']];
const DRAWN = COLORS.length;

const validated = (job) => job.val_step > 0 && Number.isFinite(job.val_loss);

// The order of `nsactl sweep`: dropped jobs come last; in a halved sweep those that came further come first, then the lower loss.
function rank(a, b) {
  const out = (job) => Number(dropped(job) || job.state === 'FAILED');
  const far = (job) => (job.sweep.halve_at.length ? -job.val_step : 0);
  const loss = (job) => (validated(job) ? job.val_loss : Infinity);
  return out(a) - out(b) || far(a) - far(b) || (loss(a) === loss(b) ? 0 : loss(a) - loss(b)) || a.sweep.index - b.sweep.index;
}

// The keys of the job file in which the jobs differ: they are labels.
function sweptKeys(jobs) {
  const keys = [...new Set(jobs.flatMap((job) => Object.keys(job.labels)))].filter((key) => key !== 'sweep');
  return keys.filter((key) => new Set(jobs.map((job) => job.labels[key])).size > 1 || key.includes('.')).sort();
}

function note(job) {
  if (waits(job)) return `waits at step ${job.stop.at_step} for the other jobs`;
  if (job.state === 'STOPPED' || job.state === 'FAILED') return job.message;
  return job.stop?.mode === 'at_step' ? `stops after step ${job.stop.at_step}` : job.health.words;
}

export function sweepPage(main, name, parameters) {
  const group = new Group();
  const charts = {};
  let jobs = [];
  let keys = [];
  let curves = new Map();
  let mode = 'step';
  let owner = parameters.get('owner') || '';
  let stop = null;
  let closed = false;

  const head = h('section', { class: 'top' });
  const axis = h('div', { class: 'chips', role: 'group', 'aria-label': 'Horizontal axis' });
  const grid = h('div', { class: 'charts' });
  const dots = h('div', { class: 'charts' });
  const columns = h('tr');
  const body = h('tbody');
  const table = h('table', { class: 'jobs' }, h('thead', {}, columns), body);
  main.append(head, h('div', { class: 'filters sticky' }, axis, h('span', { class: 'grow' }), h('button', { type: 'button', class: 'primary', onclick: () => compare() }, 'Compare the best')), grid,
    h('section', { 'aria-label': 'Jobs of the sweep' }, h('div', { class: 'scroll' }, table)), h('section', {}, h('h2', {}, 'Validation loss by key'), dots));

  function compare() {
    location.hash = `#/compare?jobs=${jobs.slice(0, DRAWN).map((job) => job.id).join(',')}`;
  }

  function setMode(next) {
    mode = next;
    group.zoom = null;
    show();
  }

  function sentence() {
    const active = jobs.filter((job) => isActive(job) || waits(job)).length;
    const best = jobs.find(validated);
    const halved = jobs[0].sweep.halve_at;
    const values = best && keys.map((key) => `${key}=${best.labels[key] ?? '–'}`).join(', ');
    const parts = [`${jobs.length} of ${jobs[0].sweep.jobs} jobs`, active > 0 ? `${active} not ended` : 'all ended', halved.length > 0 && `halved after step ${halved.join(', ')}`];
    return [h('h1', { class: 'sentence' }, h('i', { class: `dot ${active ? 'good' : 'waiting'}`, 'aria-hidden': 'true' }), h('span', {}, parts.filter(Boolean).join('; '))),
      h('p', { class: 'best-job' }, best ? ['Best: ', h('a', { href: `#/job/${best.id}` }, best.name), ` (${values}), validation loss ${number(best.val_loss)} at step ${number(best.val_step)}`] : 'No job has a validation yet.')];
  }

  function showHead(owners) {
    update(head, h('div', { class: 'names' }, h('a', { href: '#/' }, 'Fleet'), h('span', { class: 'muted' }, '/'), h('b', {}, `sweep ${name}`),
      owners.length > 1 && h('span', { class: 'chips' }, owners.map((one) => h('a', { class: 'chip', 'aria-current': owner === one ? 'true' : undefined, href: `#/sweep/${encodeURIComponent(name)}?owner=${encodeURIComponent(one)}` }, one)))), sentence());
    document.title = `Sweep ${name}`;
  }

  function row(job, place) {
    const swatch = place < DRAWN && h('i', { class: `swatch ${COLORS[place].slice(2)}` });
    return h('tr', { data: { id: job.id }, onclick: (event) => { if (!event.target.closest('a')) location.hash = `#/job/${job.id}`; } },
      h('td', { class: 'num' }, String(place + 1)),
      h('td', { class: 'name' }, swatch, h('a', { href: `#/job/${job.id}` }, job.name), h('div', { class: 'words', title: note(job) }, note(job))),
      keys.map((key) => h('td', { class: 'num' }, job.labels[key] ?? '–')),
      h('td', {}, badge(job)),
      h('td', { class: 'wide' }, h('div', { class: 'done' }, progress(job)), h('small', {}, `${number(job.step)} of ${number(job.steps)} steps`)),
      h('td', { class: 'sparkcell' }, sparkLine(job.spark)),
      h('td', { class: 'num' }, lossText(job.loss, job.nonfinite)),
      h('td', { class: place === 0 && validated(job) ? 'num best' : 'num' }, number(job.val_loss), job.val_step > 0 && h('div', {}, h('small', {}, `step ${number(job.val_step)}`))));
  }

  function showTable() {
    update(columns, h('th', { class: 'num' }, '#'), h('th', {}, 'Job'), keys.map((key) => h('th', { class: 'num' }, h('code', {}, key))), h('th', {}, 'State'), h('th', { class: 'wide' }, 'Progress'),
      h('th', {}, h('span', { class: 'hidden' }, 'Loss curve')), h('th', { class: 'num' }, 'Loss'), h('th', { class: 'num' }, 'Validation'));
    update(body, jobs.map(row));
  }

  function showCurves() {
    replace(axis, MODES.map(([word, text]) => h('button', { type: 'button', class: 'chip', 'aria-pressed': String(mode === word), onclick: () => setMode(word) }, text)));
    const drawn = jobs.slice(0, DRAWN).map((job, i) => [job, curves.get(job.id), COLORS[i]]).filter(([, one]) => one?.data);
    for (const [key, title] of [['val', 'Validation loss'], ['loss', 'Training loss']]) {
      if (!charts[key]) {
        charts[key] = new Chart(group, { title, note: `nats a token; the best ${DRAWN} jobs`, height: 260, format: number });
        grid.append(charts[key].element);
      }
      charts[key].show({ mode, curves: drawn.map(([job, one, colour]) => {
        if (key === 'loss') return { name: job.name, color: colour, x: one.x(mode), y: one.data.values.loss.mean };
        const evals = Object.values(one.data.evals)[0] || { step: [], loss: [] };
        return { name: job.name, color: colour, x: evals.step.map((step) => one.at(step, mode)), y: evals.loss, dots: true };
      }) });
    }
  }

  function show() {
    showCurves();
    showTable();
    replace(dots, keys.map((key) => lossByKey(key, jobs)).filter(Boolean));
  }

  async function readJobs() {
    const found = new Map();  // by id: a job may move to another page of the list meanwhile
    let cursor = 0;
    for (let offset = 0, matching = 1; offset < matching;) {
      const page = await get('fleet', { label: `sweep=${name}`, rows: 1000, offset: offset || '' });
      if (offset === 0) cursor = page.cursor;
      matching = page.matching;
      if (page.jobs.length === 0) break;
      offset += page.jobs.length;
      for (const job of page.jobs) if (job.sweep?.name === name) found.set(job.id, job);
    }
    return [[...found.values()], cursor];
  }

  async function readCurves() {
    const known = curves;
    curves = new Map(jobs.slice(0, DRAWN).map((job) => [job.id, known.get(job.id) || new Curves(job.id, 600)]));
    await Promise.all(jobs.slice(0, DRAWN).filter((job) => isActive(job) || !known.get(job.id)?.complete).map(async (job) => {
      const one = curves.get(job.id);
      await one.refresh();
      one.complete = !isActive(job);
    }));
  }

  async function load() {
    try {
      const [all, cursor] = await readJobs();
      if (closed) return;
      const owners = [...new Set(all.map((job) => job.owner))].sort();
      if (!owners.includes(owner)) owner = owners[0] ?? '';
      jobs = all.filter((job) => job.owner === owner).sort(rank);
      if (jobs.length === 0) {
        replace(main, h('div', { class: 'blank' }, h('p', {}, `There is no sweep ${name}.`), h('p', {}, h('a', { href: '#/' }, 'All jobs'))));
        return;
      }
      keys = sweptKeys(jobs);
      showHead(owners);
      showTable();
      await readCurves();
      if (closed) return;
      show();
      stop ??= follow(cursor, { label: `sweep=${name}`, rows: 1000 }, handlers);
    } catch (error) {
      if (closed) return;
      toast(error.message, true);
      setTimeout(() => { if (!closed && jobs.length === 0) load(); }, 2000);
    }
  }

  // Rows come often; the page is read again at most every three seconds.
  let later = 0;
  const soon = () => { if (!later) later = setTimeout(() => { later = 0; if (!closed) load(); }, 3000); };
  const handlers = {
    reconnected: soon,
    rows: (rows) => {
      showLive('live');
      if (rows.some((job) => job.sweep?.name === name)) soon();
    },
  };

  const recolour = () => { for (const one of Object.values(charts)) one.layout = ''; if (jobs.length) show(); };
  document.addEventListener('theme', recolour);
  document.title = `Sweep ${name}`;
  load();
  return {
    close: () => { closed = true; stop?.(); clearTimeout(later); document.removeEventListener('theme', recolour); for (const one of Object.values(charts)) one.close(); },
    key: (event) => { if (event.key >= '1' && event.key <= '3') setMode(MODES[Number(event.key) - 1][0]); },
  };
}

const WIDTH = 560;
const HEIGHT = 230;
const EDGE = { left: 52, right: 12, top: 10, bottom: 24 };

// Where values lie on an axis from `from` to `to`: words side by side; numbers by size, or by their logarithm if they differ tenfold.
function scale(texts, from, to) {
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

// One dot for each job with a validation: its loss by the value of this key. Jobs that stopped early are pale, because their losses are of an earlier step.
function lossByKey(key, jobs) {
  const seen = jobs.map((job, i) => [job, i]).filter(([job]) => validated(job) && job.labels[key] !== undefined);
  if (seen.length < 2 || new Set(seen.map(([job]) => job.labels[key])).size < 2) return null;
  const x = scale(seen.map(([job]) => job.labels[key]), EDGE.left, WIDTH - EDGE.right);
  const losses = seen.map(([job]) => job.val_loss);
  const low = Math.min(...losses);
  const high = Math.max(...losses);
  const y = (loss) => EDGE.top + (high === low ? 0.5 : (high - loss) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const furthest = Math.max(...seen.map(([job]) => job.val_step));
  const text = (words, attributes) => svg('text', attributes, words);
  const picture = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': `validation loss by ${key}` },
    ...[low, high].map((loss) => text(number(loss), { x: EDGE.left - 8, y: y(loss) + 4, class: 'tick end' })),
    ...[low, high].map((loss) => svg('line', { x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(loss), y2: y(loss), class: 'grid' })),
    ...x.ticks.map((value) => text(Number.isFinite(Number(value)) && value.length > 7 ? short(Number(value)) : value, { x: x.place(value), y: HEIGHT - 6, class: 'tick middle' })),
    ...seen.map(([job, i]) => {
      const dot = svg('circle', { cx: x.place(job.labels[key]), cy: y(job.val_loss), r: i === 0 ? 5 : 4, class: `${i < DRAWN ? COLORS[i].slice(2) : 'other'}${job.val_step < furthest ? ' early' : ''}` },
        svg('title', {}, `${job.name}: ${key}=${job.labels[key]}, ${number(job.val_loss)} at step ${job.val_step}`));
      return dot;
    }));
  return h('figure', { class: 'chart dots', 'aria-label': `Validation loss by ${key}` }, h('figcaption', {}, h('span', { class: 'title' }, h('code', {}, key)), h('span', { class: 'note' }, 'nats a token; pale: stopped earlier')), picture);
}
