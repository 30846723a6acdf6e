// The ticked jobs over each other: curves, what happened to them, final figures, and what differs in their configurations.
import { get } from './api.js';
import { Chart, Group, MANY, RUNS, smooth, swatch } from './chart.js';
import { zoomText, zoomValue } from './chart_files.js';
import { Curves } from './curves.js';
import { h, replace, toast } from './dom.js';
import { differentData, flatten } from './filter.js';
import { middle, number, short, span } from './format.js';
import { chartOf, compared, quantity, readQuantities } from './quantities.js';
import { Folded, badge, isActive, lossText, runSeconds } from './rows.js';

const MODES = [['step', 'Step'], ['tokens', 'Tokens'], ['elapsed', 'Since start'], ['time', 'Clock']];
const POINTS = 1000;
const POINTS_OF_MANY = 300;
const AGAIN = 3000;   // milliseconds until a job that trains is read again
const SELDOM = 15000;  // until its events are, and until any of many jobs is
const DASHES = [undefined, [7, 3], [2, 3]];  // of the first four, the next four, and those after them
const OWN = (key) => key === 'name' || key === 'train.out_dir' || key.startsWith('labels');  // differs between any two jobs

const same = (values) => values.every((value) => value === values[0]);

// `view` is the address: x, s, y, r and zoom are of these charts. `write` writes it; `untick` takes a job away; `point` says which job is pointed at.
export function ticked(view, { write, untick, point }) {
  const group = new Group((zoom) => zoomed(zoom), (name) => point(jobs.find((one, i) => names()[i] === name)?.job.id ?? ''));
  const charts = {};
  const known = new Map();  // what was read of jobs, by id: {job, curves, happened}
  let jobs = [];
  let all = false;
  let closed = false;
  let asked = 0;
  group.zoom = view.zoom ? view.zoom.split('..').map(Number) : null;
  const mode = () => (MODES.some(([name]) => name === view.x) ? view.x : 'step');
  const weight = () => Math.min(Math.max(Number(view.s || localStorage.getItem('smooth') || 0), 0), 0.99);

  const chosen = h('div', { class: 'chosen' });
  const axis = h('div', { class: 'chips', role: 'group', 'aria-label': 'Horizontal axis' });
  const scale = h('div', { class: 'chips', role: 'group', 'aria-label': 'Scale of the loss' });
  const reach = h('div', { class: 'chips', role: 'group', 'aria-label': 'Values that are much higher than the others' });
  const slider = h('input', { type: 'range', min: '0', max: '0.99', step: '0.01', 'aria-label': 'Smoothing', oninput: (event) => { view.s = event.target.value; localStorage.setItem('smooth', view.s); write(); draw(); } });
  slider.value = String(weight());
  const zoomChip = h('button', { type: 'button', class: 'chip', hidden: true, title: 'Show all', data: { act: 'zoom' }, onclick: () => group.zoomTo(null) });
  const grid = h('div', { class: 'charts' });
  const finals = h('div', { class: 'scroll', role: 'region', tabindex: '0', 'aria-label': 'Figures' });
  const differences = h('div', { class: 'scroll', role: 'region', tabindex: '0', 'aria-label': 'Configuration' });
  const element = h('section', { class: 'ticked', 'aria-label': 'Ticked jobs', hidden: true }, h('div', { class: 'filters' }, axis, h('label', { class: 'inline' }, 'Smoothing', slider), scale, reach, zoomChip), chosen, grid,
    h('section', {}, h('h2', {}, 'Configuration'), differences), h('section', {}, h('h2', {}, 'Figures'), finals));

  function colour(i) {
    return view.on.length > MANY ? '--c8' : RUNS[i % RUNS.length];
  }

  function zoomed(zoom) {
    view.zoom = zoom ? zoomValue(zoom) : '';
    write();
    showBar();
    // A closer look shows more than there is room for in the whole curve.
    if (zoom) Promise.all(jobs.map((one) => one.curves.refine())).then(draw, (error) => toast(error.message, true));
  }

  function setMode(next) {
    view.x = next === 'step' ? '' : next;
    if (group.zoom) group.zoomTo(null);
    write();
    draw();
  }

  function names() {
    const count = {};
    for (const { job } of jobs) count[middle(job.name)] = (count[middle(job.name)] || 0) + 1;
    return jobs.map(({ job }) => (count[middle(job.name)] > 1 ? `${middle(job.name)} ${job.id.slice(0, 5)}` : middle(job.name)));
  }

  function showBar() {
    const chip = (on, act, word, onclick) => h('button', { type: 'button', class: 'chip', data: { act }, 'aria-pressed': String(on), onclick }, word);
    replace(axis, MODES.map(([name, word]) => chip(mode() === name, `axis ${name}`, word, () => setMode(name))));
    replace(scale, [['', 'Linear'], ['log', 'Log']].map(([name, word]) => chip(view.y === name, `scale ${name}`, word, () => { view.y = name; write(); draw(); })));
    zoomChip.hidden = !group.zoom;
    replace(reach, [['', 'Usual range'], ['all', 'All']].map(([name, word]) => chip(view.r === name, `range ${name}`, word, () => { view.r = name; write(); draw(); })));
    if (group.zoom) zoomChip.textContent = zoomText(mode(), group.zoom);
  }

  const mark = (i) => swatch({ color: colour(view.on.indexOf(jobs[i].job.id)), dash: dashOf(i) });

  function dashOf(i) {
    return jobs.length > MANY ? undefined : DASHES[Math.min(Math.floor(i / 4), DASHES.length - 1)];
  }

  function draw() {
    if (closed || jobs.length === 0) return;
    const title = names();
    showBar();
    replace(chosen, jobs.length <= MANY && jobs.map(({ job }, i) => h('span', { class: 'chosen-job' }, mark(i), h('a', { href: `#/job/${job.id}`, title: job.name }, title[i]), badge(job),
      h('button', { type: 'button', class: 'quiet', 'aria-label': `Remove ${title[i]}`, onclick: () => untick(job.id) }, '×'))));
    const look = (i) => ({ name: title[i], color: RUNS[view.on.indexOf(jobs[i].job.id) % RUNS.length], dash: dashOf(i) });
    const lanes = jobs.length <= MANY ? jobs.map(({ curves, happened }, i) => ({ color: look(i).color, marks: curves.marks(happened.groups, mode()) })) : [];
    const marks = lanes.flatMap((lane, i) => lane.marks.map((one) => ({ ...one, text: jobs.length > 1 ? `${title[i]}: ${one.text}` : one.text })));
    const broken = jobs.flatMap(({ curves }, i) => curves.broken(mode()).map((one) => ({ ...one, name: title[i] })));
    for (const one of compared()) {
      const { name, must_be_finite: breaks } = one;
      if (!charts[name]) {
        charts[name] = new Chart(group, chartOf(one, name === 'loss' ? { note: 'nats a token; dots: validation', height: 300, big: true, named: true } : {}));
        grid.append(charts[name].element);
      }
      charts[name].spikes = view.r === 'all' ? false : 'runs';
      const lines = jobs.map(({ curves }, i) => {
        const value = curves.data.values[name];
        const band = jobs.length <= 4 && weight() === 0;
        return { ...look(i), x: curves.x(mode()), y: smooth(value.mean, weight()), raw: weight() > 0 && name !== 'learning_rate' ? value.mean : undefined, min: band ? value.min : undefined, max: band ? value.max : undefined, breaks };
      });
      const dots = name !== 'loss' ? [] : jobs.map(({ curves }, i) => {
        const evals = Object.values(curves.data.evals)[0] || { step: [], loss: [], time: [] };
        return { ...look(i), part: 'val', x: evals.step.map((step, k) => (mode() === 'time' ? evals.time[k] / 1000 : curves.at(step, mode()))), y: evals.loss, dots: 'only' };
      });
      charts[name].show({ curves: [...lines, ...dots], mode: mode(), log: view.y === 'log' && breaks, broken: breaks ? broken : [], lanes: name === 'loss' ? lanes : [], marks });
    }
    showFinals(title);
    showDifferences(title);
  }

  function best(evals) {
    const losses = evals ? evals.loss.filter((value) => value !== null) : [];
    return losses.length ? Math.min(...losses) : null;
  }

  const isLost = (name, job) => (name === 'Mean loss' && job.nonfinite) || (name === 'Validation' && job.val_nonfinite);

  function heads(title, first) {
    return h('thead', {}, h('tr', {}, h('th', {}, first), title.map((name, i) => h('th', { class: 'num' }, mark(i), name))));
  }

  function showFinals(title) {
    const other = differentData(jobs.map((one) => one.flat));
    const low = other.length === 0 && 'low';
    // Nor is a loss at another step.
    const lowAt = (step) => same(jobs.map(step)) && low;
    const sets = [...new Set(jobs.flatMap(({ job }) => (job.val_sets || []).map((set) => set.name)))].sort();
    const figures = [
      ['Mean loss', (one) => one.job.loss, number, lowAt(({ job }) => job.step)],
      ['Validation', (one) => one.job.val_loss, number, lowAt(({ job }) => job.val_step)],
      ['Best validation', (one) => best(Object.values(one.curves.data.evals)[0]), number, low],
      ...sets.flatMap((name) => [
        [`Validation: ${name}`, ({ job }) => (job.val_sets || []).find((set) => set.name === name)?.loss, number, lowAt(({ job }) => job.val_step)],
        [`Best validation: ${name}`, ({ curves }) => best((curves.data.val_sets || {})[name]), number, low],
      ]),
      ['Steps', (one) => one.job.step, (value) => value.toLocaleString('en-US')],
      ['Tokens', (one) => one.job.total_tokens, short],
      ['Throughput, tok/s', (one) => one.job.tokens_per_second, short, 'high'],
      ['Run time', (one) => runSeconds(one.job), span],
      ['Ranks', (one) => one.job.ranks, String],
      ['Restarts', (one) => one.job.restarts, String],
    ];
    replace(finals, jobs.length > 1 && other.length > 0 && h('p', { class: 'apart' }, 'These runs use different data (', h('code', {}, other.slice(0, 4).join(', ')), other.length > 4 && ' …', '), so their losses are not comparable.'),
      h('table', { class: 'figures-table' }, heads(title, ''),
      h('tbody', {}, figures.map(([name, of, format, wins]) => {
        const values = jobs.map(of);
        const finite = values.filter((value) => Number.isFinite(value) && value > 0);
        const winner = wins && finite.length > 1 ? (wins === 'low' ? Math.min(...finite) : Math.max(...finite)) : null;
        const single = winner !== null && values.filter((value) => value === winner).length === 1;
        return h('tr', {}, h('th', { scope: 'row' }, name), values.map((value, i) => h('td', { class: single && value === winner ? 'num best' : 'num' }, value === null || value === undefined ? lossText(value, isLost(name, jobs[i].job)) : format(value))));
      }))));
  }

  // The keys that differ; what differs from most is tinted.
  function showDifferences(title) {
    const keys = [...new Set(jobs.flatMap((one) => Object.keys(one.flat)))].sort();
    const rows = keys.map((key) => [key, jobs.map((one) => one.flat[key] ?? '–')]);
    const shown = rows.filter(([key, values]) => all || (!OWN(key) && !same(values)));
    const odd = (values, value) => jobs.length > 2 && 2 * values.filter((one) => one === value).length < jobs.length;
    replace(differences,
      h('label', { class: 'inline' }, h('input', { type: 'checkbox', checked: all, onchange: (event) => { all = event.target.checked; showDifferences(title); } }), `All ${rows.length} keys`),
      shown.length === 0 ? h('p', { class: 'muted' }, jobs.length > 1 ? 'The configurations are identical except for names and folders.' : 'Tick a second job to see what differs.')
        : h('table', { class: 'differences' }, heads(title, 'Key'),
          h('tbody', {}, shown.map(([key, values]) => h('tr', { class: same(values) ? '' : 'differs' }, h('th', { scope: 'row' }, h('code', {}, key)), values.map((value) => h('td', { class: odd(values, value) ? 'num odd' : 'num', title: value.length > 40 ? value : null }, value)))))));
  }

  async function read(id) {
    const one = known.get(id) || { curves: new Curves(id, view.on.length > MANY ? POINTS_OF_MANY : POINTS), happened: new Folded(), read: 0 };
    const path = `jobs/${encodeURIComponent(id)}`;
    const old = Date.now() - one.read > SELDOM;
    const [job, events] = await Promise.all([get(path), old && get(`${path}/events`), one.curves.refresh()]);
    if (old) {
      one.read = Date.now();
      one.happened = new Folded();
      for (const event of events.events) one.happened.add(event);
    }
    known.set(id, Object.assign(one, { job, flat: flatten(job.config) }));
  }

  async function show(ids) {
    const turn = ++asked;
    element.hidden = ids.length === 0;
    const failed = [];
    await Promise.all([readQuantities().catch((error) => failed.push(['quantities', error])), ...ids.filter((id) => !known.has(id)).map((id) => read(id).catch((error) => failed.push([id, error])))]);
    if (closed || turn !== asked) return;
    jobs = ids.map((id) => known.get(id)).filter(Boolean);
    if (failed.length > 0) toast(`${failed[0][0]}: ${failed[0][1].message}`, true);
    element.hidden = jobs.length === 0 || !quantity('loss');
    if (!element.hidden) draw();
  }

  // Jobs that still train are read again.
  let last = Date.now();
  const timer = setInterval(async () => {
    const active = jobs.filter(({ job }) => isActive(job));
    if (document.hidden || active.length === 0 || (active.length > MANY && Date.now() - last < SELDOM)) return;
    last = Date.now();
    await Promise.allSettled(active.map(({ job }) => read(job.id))).then(draw);  // one that cannot be read holds up no other
  }, AGAIN);

  const recolour = () => { for (const one of Object.values(charts)) one.layout = ''; draw(); };
  document.addEventListener('theme', recolour);
  return {
    element, show, colour,
    point: (id) => { if (jobs.length > MANY) group.point(names()[jobs.findIndex(({ job }) => job.id === id)] ?? ''); },
    close: () => { closed = true; clearInterval(timer); document.removeEventListener('theme', recolour); for (const one of Object.values(charts)) one.close(); },
    key: (event) => { if (event.key >= '1' && event.key <= String(MODES.length)) setMode(MODES[Number(event.key) - 1][0]); },
  };
}
