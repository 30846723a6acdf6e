// Several jobs over each other: curves, final figures, and what differs in their configurations.
import { get, showLive } from './api.js';
import { COLORS, Chart, Group, smooth } from './chart.js';
import { Curves } from './curves.js';
import { h, replace, toast } from './dom.js';
import { middle, number, short, span } from './format.js';
import { badge, isActive, lossText, runSeconds } from './rows.js';

const MODES = [['step', 'Step'], ['tokens', 'Tokens'], ['elapsed', 'Time']];
const MOST = 8;
const CHARTS = [['loss', 'Training loss', 'nats a token', 'loss'], ['val', 'Validation loss', 'nats a token', null], ['speed', 'Throughput', 'tokens a second', 'tokens_per_second'], ['norm', 'Gradient norm', 'before clipping', 'grad_norm']];

// A value as a job file has it: 'BRANCH_CMP' of nsa.branches is 'cmp', 'DATA_SOURCE_TEXT' of data.source is 'text'. Names and labels are anybody's words.
function word(path, value) {
  const text = value !== null && typeof value === 'object' ? JSON.stringify(value) : String(value);
  if (path.startsWith('labels') || path === 'name' || text !== text.toUpperCase()) return text;
  const whole = path.toUpperCase().replaceAll('.', '_');
  const key = path.split('.').pop().toUpperCase();
  const prefix = [whole, key, key.replace(/S$/, ''), key.replace(/ES$/, ''), key.split('_').pop()].find((one) => text.startsWith(`${one}_`));
  return prefix ? text.slice(prefix.length + 1).toLowerCase() : text;
}

// {a: {b: 1}} → {'a.b': '1'}
function flatten(value, path = '', into = {}) {
  if (value !== null && typeof value === 'object' && !Array.isArray(value)) {
    for (const [name, inner] of Object.entries(value)) flatten(inner, path ? `${path}.${name}` : name, into);
  } else {
    into[path] = [].concat(value).map((one) => word(path, one)).join(', ');
  }
  return into;
}

export function comparePage(main, parameters) {
  const group = new Group();
  const charts = {};
  let jobs = [];
  let mode = 'step';
  let weight = Number(localStorage.getItem('smooth') || 0);
  let all = false;
  let closed = false;
  const ids = (parameters.get('jobs') || '').split(',').filter(Boolean).slice(0, MOST);

  const chosen = h('div', { class: 'chosen' });
  const list = h('datalist', { id: 'known' });
  const field = h('input', { type: 'search', list: 'known', placeholder: 'Add a job: name or id', 'aria-label': 'Add a job by name or id', oninput: () => typed(), onchange: (event) => add(event.target.value) });
  const axis = h('div', { class: 'chips', role: 'group', 'aria-label': 'Horizontal axis' });
  const slider = h('input', { type: 'range', min: '0', max: '0.99', step: '0.01', value: String(weight), 'aria-label': 'Smoothing', oninput: (event) => { weight = Number(event.target.value); show(); } });
  const grid = h('div', { class: 'charts' });
  const finals = h('div', { class: 'scroll', role: 'region', tabindex: '0', 'aria-label': 'Figures' });
  const differences = h('div', { class: 'scroll', role: 'region', tabindex: '0', 'aria-label': 'Configuration' });
  const content = h('div', { hidden: true }, h('div', { class: 'filters sticky' }, axis, h('label', { class: 'inline' }, 'Smoothing', slider)), grid,
    h('section', {}, h('h2', {}, 'Figures'), finals), h('section', {}, h('h2', {}, 'Configuration'), differences));
  const blank = h('div', { class: 'blank' }, h('p', {}, 'Choose jobs to lay over each other: type a name above, or tick them on the ', h('a', { href: '#/' }, 'fleet page'), '.'));
  main.append(h('section', { class: 'top' }, h('h1', { class: 'sentence' }, 'Compare'), h('div', { class: 'filters' }, chosen, field, list)), blank, content);

  function go(next) {
    location.hash = `#/compare${next.length ? `?jobs=${next.map(encodeURIComponent).join(',')}` : ''}`;
  }

  function add(text) {
    const name = text.trim().split(' ')[0];
    if (!name || ids.includes(name)) return;
    if (ids.length >= MOST) toast(`At most ${MOST} jobs.`, true);
    else go([...ids, name]);
  }

  // The coordinator looks among all jobs for what is typed.
  async function suggest() {
    const found = await get('fleet', { name: field.value.trim().split(' ')[0], rows: 50 });
    replace(list, found.jobs.map((job) => h('option', { value: `${job.id} ${job.name}` })));
  }

  let typing = 0;
  function typed() {
    clearTimeout(typing);
    typing = setTimeout(() => suggest().catch((error) => toast(error.message, true)), 150);
  }

  function setMode(next) {
    mode = next;
    group.zoom = null;
    show();
  }

  function names() {
    const count = {};
    for (const { job } of jobs) count[job.name] = (count[job.name] || 0) + 1;
    return jobs.map(({ job }) => (count[job.name] > 1 ? `${middle(job.name)} ${job.id.slice(0, 5)}` : middle(job.name)));
  }

  function show() {
    const title = names();
    replace(axis, MODES.map(([name, word]) => h('button', { type: 'button', class: 'chip', 'aria-pressed': String(mode === name), onclick: () => setMode(name) }, word)));
    replace(chosen, jobs.map(({ job }, i) => h('span', { class: 'chosen-job' }, h('i', { class: `swatch ${COLORS[i].slice(2)}` }), h('a', { href: `#/job/${job.id}`, title: job.name }, title[i]), badge(job),
      h('button', { type: 'button', class: 'quiet', 'aria-label': `Remove ${title[i]}`, onclick: () => go(ids.filter((_, k) => k !== i)) }, '×'))));
    for (const [name, heading, note, key] of CHARTS) {
      if (!charts[name]) {
        charts[name] = new Chart(group, { title: heading, note, height: name === 'loss' || name === 'val' ? 260 : 190, format: name === 'speed' ? short : number, zero: name === 'speed' || name === 'norm', spikes: 'runs' });
        grid.append(charts[name].element);
      }
      const curves = jobs.map(({ curves: one }, i) => {
        if (key) {
          const value = one.data.values[key];
          return { name: title[i], color: COLORS[i], x: one.x(mode), y: smooth(value.mean, weight), min: value.min, max: value.max };
        }
        const evals = Object.values(one.data.evals)[0] || { step: [], loss: [] };
        return { name: title[i], color: COLORS[i], x: evals.step.map((step) => one.at(step, mode)), y: evals.loss, dots: true };
      });
      charts[name].show({ curves, mode });
    }
    showFinals(title);
    showDifferences(title);
  }

  function best(evals) {
    const losses = evals ? evals.loss.filter((value) => value !== null) : [];
    return losses.length ? Math.min(...losses) : null;
  }

  const isLost = (name, job) => (name === 'Final loss' && job.nonfinite) || (name === 'Last validation' && job.val_nonfinite);
  const same = (values) => values.every((value) => value === values[0]);

  // Losses are compared only where they are of the same data and tokens; empty if they are.
  function differentData() {
    const flat = jobs.map(({ job }) => flatten(job.config));
    const keys = [...new Set(flat.flatMap(Object.keys))].filter((key) => key.startsWith('data.') || key === 'train.seq_len');
    return keys.filter((key) => !same(flat.map((one) => one[key]))).sort();
  }

  function showFinals(title) {
    const other = differentData();
    const low = other.length === 0 && 'low';
    // Nor is a loss at another step.
    const lowAt = (step) => same(jobs.map(step)) && low;
    const figures = [
      ['Final loss', (one) => one.job.loss, number, lowAt(({ job }) => job.step)],
      ['Last validation', (one) => one.job.val_loss, number, lowAt(({ job }) => job.val_step)],
      ['Best validation', (one) => best(Object.values(one.curves.data.evals)[0]), number, low],
      ['Steps', (one) => one.job.step, (value) => value.toLocaleString('en-US')],
      ['Tokens', (one) => one.job.total_tokens, short],
      ['Tokens a second', (one) => one.job.tokens_per_second, short, 'high'],
      ['Ran for', (one) => runSeconds(one.job), span],
      ['Ranks', (one) => one.job.ranks, String],
      ['Restarts', (one) => one.job.restarts, String],
    ];
    replace(finals, jobs.length > 1 && other.length > 0 && h('p', { class: 'apart' }, 'The losses are of different data (', h('code', {}, other.slice(0, 4).join(', ')), other.length > 4 && ' …', '): not comparable.'),
      h('table', { class: 'figures-table' }, h('thead', {}, h('tr', {}, h('th'), title.map((name, i) => h('th', { class: 'num' }, h('i', { class: `swatch ${COLORS[i].slice(2)}` }), name)))),
      h('tbody', {}, figures.map(([name, of, format, wins]) => {
        const values = jobs.map(of);
        const known = values.filter((value) => Number.isFinite(value) && value > 0);
        const winner = wins && known.length > 1 ? (wins === 'low' ? Math.min(...known) : Math.max(...known)) : null;
        const single = winner !== null && values.filter((value) => value === winner).length === 1;
        return h('tr', {}, h('th', { scope: 'row' }, name), values.map((value, i) => h('td', { class: single && value === winner ? 'num best' : 'num' }, value === null || value === undefined ? lossText(value, isLost(name, jobs[i].job)) : format(value))));
      }))));
  }

  function showDifferences(title) {
    const flat = jobs.map(({ job }) => flatten(job.config));
    const keys = [...new Set(flat.flatMap(Object.keys))].sort();
    const rows = keys.map((key) => [key, flat.map((one) => one[key] ?? '–')]);
    const differing = rows.filter(([, values]) => values.some((value) => value !== values[0]));
    const shown = all ? rows : differing;
    replace(differences,
      h('label', { class: 'inline' }, h('input', { type: 'checkbox', checked: all, onchange: (event) => { all = event.target.checked; showDifferences(title); } }), `All ${rows.length} keys`),
      shown.length === 0 ? h('p', { class: 'muted' }, jobs.length > 1 ? 'The configurations are equal.' : 'Add a second job to see what differs.')
        : h('table', { class: 'differences' }, h('thead', {}, h('tr', {}, h('th', {}, 'Key'), title.map((name, i) => h('th', {}, h('i', { class: `swatch ${COLORS[i].slice(2)}` }), name)))),
          h('tbody', {}, shown.map(([key, values]) => h('tr', { class: values.some((value) => value !== values[0]) ? 'differs' : '' }, h('th', { scope: 'row' }, h('code', {}, key)), values.map((value) => h('td', {}, value)))))));
  }

  async function load() {
    try {
      await suggest();
      showLive('live');
      if (ids.length === 0 || closed) return;
      jobs = await Promise.all(ids.map(async (id) => {
        const curves = new Curves(id, 1000);
        const [job] = await Promise.all([get(`jobs/${encodeURIComponent(id)}`), curves.refresh()]);
        return { job, curves };
      }));
      if (closed) return;
      blank.hidden = true;
      content.hidden = false;
      show();
    } catch (error) {
      toast(error.message, true);
    }
  }

  // Jobs that still train are read again every few seconds.
  const timer = setInterval(async () => {
    if (document.hidden || !jobs.some(({ job }) => isActive(job))) return;
    try {
      await Promise.all(jobs.filter(({ job }) => isActive(job)).map(async (one) => {
        one.job = await get(`jobs/${one.job.id}`);
        await one.curves.refresh();
      }));
      showLive('live');
      if (!closed) show();
    } catch {
      showLive('reconnecting');
    }
  }, 3000);

  const recolour = () => { for (const one of Object.values(charts)) one.layout = ''; if (jobs.length) show(); };
  document.addEventListener('theme', recolour);
  document.title = 'Compare – NSA training';
  load();
  return {
    close: () => { closed = true; clearInterval(timer); document.removeEventListener('theme', recolour); for (const one of Object.values(charts)) one.close(); },
    key: (event) => { if (event.key >= '1' && event.key <= '3') setMode(MODES[Number(event.key) - 1][0]); },
  };
}
