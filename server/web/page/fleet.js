// The workspace: what needs somebody, the list of all jobs or of a sweep, and the curves of those that are ticked. All that is chosen stands in the address.
import { follow, get } from './api.js';
import { showCards } from './cards.js';
import { ticked } from './compare.js';
import { setTokenFile } from './dialogs.js';
import { h, morph, replace, toast, update } from './dom.js';
import { askMany, canResume } from './edit.js';
import { Configs, differentData, parse } from './filter.js';
import { brief, clock, dayOr, number, short, span } from './format.js';
import { showMachines } from './machines.js';
import { Happened, badge, bestOf, isActive, isSettled, labels, lossText, needsYou, progress, sparkLine, sparkScale, sweepLink, waitsForSweep, words } from './rows.js';
import { parallelPicture } from './parallel.js';
import { keyPictures, note, rank, sweepHead, sweptKeys, validated } from './sweep.js';
import { linkButtons } from './views.js';

const FILTERS = [['', 'all'], ['look', 'needs you'], ['active'], ...['RUNNING', 'QUEUED', 'FAILED', 'STOPPED', 'SUCCEEDED'].map((state) => [state])];
const GROUPS = [['need', 'Needs you'], ['training', 'Training'], ['waiting', 'Waiting'], ['tonight', 'Ended in the last 12 hours'], ['ended', 'Ended before']];
const TONIGHT = 12 * 3600 * 1000;
const ROWS = 200;
const MOST_ROWS = 1000;
const BEST = 8;  // so many jobs of a sweep are ticked at first

const ends = (job) => (isActive(job) ? (job.eta_seconds === null ? null : Date.now() + job.eta_seconds * 1000) : job.ended);

// Columns of the list, and by what each sorts.
const COLUMNS = [['name', 'Run', '', (job) => job.name], ['state', 'State', 'more', (job) => job.state], ['progress', 'Progress', 'wide more', (job) => job.step / job.steps],
  ['loss', 'Loss', 'sparkcell', (job) => job.loss], ['number', '', 'num more', null], ['val', 'Best val', 'num', bestOf], ['delta', 'vs ★', 'num', bestOf], ['ends', 'Ends', 'ends', ends],
  ['speed', 'Tok/s', 'num more', (job) => job.tokens_per_second], ['submitted', 'Submitted', 'num submitted more', (job) => job.submitted]];

// The object that there is, if the other one says the same: its row stays as it is.
const unchanged = (old, fresh) => (old && JSON.stringify(old) === JSON.stringify(fresh) ? old : fresh);

function groupOf(job) {
  if (needsYou(job)) return 'need';
  if (job.state === 'QUEUED' || waitsForSweep(job)) return 'waiting';
  if (isActive(job)) return 'training';
  return Date.now() - job.ended < TONIGHT ? 'tonight' : 'ended';
}

export function fleetPage(main, parameters, sweep = null) {
  let fleet = null;
  let rows = sweep ? MOST_ROWS : ROWS;  // how many the list may have
  let limit = ROWS;    // how many of them are drawn
  let undrawn = 0;     // how many are not
  let jobs = new Map();
  let order = [];
  let keys = [];       // in which the jobs of a sweep differ
  let owners = [];     // who have sweeps of this name
  let scale = null;    // of the spark lines
  let stop = () => {};
  let closed = false;
  let current = '';    // the job that the keyboard is at
  const configs = new Configs();
  const made = new Map();  // rows by the ids of their jobs
  const view = { q: parameters.get('q') || [parameters.get('name'), parameters.get('label')].filter(Boolean).join(' '), state: parameters.get('state') || '', on: (parameters.get('on') ?? '').split(',').filter(Boolean),
    star: parameters.get('star') || '', sort: parameters.get('sort') || '', owner: parameters.get('owner') || '', x: parameters.get('x') || '', s: parameters.get('s') || '', y: parameters.get('y') || '', r: parameters.get('r') || '', zoom: parameters.get('zoom') || '', open: parameters.get('open') || '' };
  const unfolded = new Set(view.open.split(',').filter(Boolean));
  let filter = parse(view.q);

  // The address says what is shown; going back to it shows the same.
  function address(changes = {}) {
    const found = new URLSearchParams(Object.entries({ ...view, on: view.on.join(','), ...changes }).filter(([, value]) => value !== ''));
    const query = found.toString().replaceAll('%2C', ',').replaceAll('%3D', '=').replaceAll('%2F', '/');
    return `#/${sweep ? `sweep/${encodeURIComponent(sweep)}` : ''}${query ? `?${query}` : ''}`;
  }

  const write = () => history.replaceState(null, '', address());

  const head = h('section', { class: 'top' });
  const cards = h('section', { class: 'cards', 'aria-label': 'What needs you', hidden: true });
  const states = h('div', { class: 'chips', role: 'group', 'aria-label': 'Filter by state', hidden: sweep !== null });
  const field = h('input', { type: 'search', placeholder: 'Filter: name, team=lm, val<1.7, train.lr>1e-3', 'aria-label': 'Filter', value: view.q, oninput: () => typed() });
  const bulk = h('span', { class: 'bulk' });
  const columns = h('tr');
  const body = h('tbody');
  const more = h('button', { type: 'button', class: 'quiet', hidden: true, onclick: () => showMore() }, 'More');
  const rest = h('p', { class: 'muted', hidden: true });
  const empty = h('div', { class: 'blank', hidden: true });
  const machines = h('div', { class: 'machines' });
  const events = h('ol', { class: 'events', tabindex: '0', 'aria-label': 'What happened' });
  const happened = new Happened(events, { most: 40, named: true });
  const table = h('table', { class: 'jobs' }, h('thead', {}, columns), body);
  const pictures = h('div', { class: 'charts' });
  const panel = ticked(view, { write, untick: (id) => choose(id, false), point: (id) => mark(id) });
  const split = h('div', { class: 'split' }, h('section', { 'aria-label': 'Jobs' }, h('div', { class: 'scroll' }, table), empty, more, rest), panel.element);
  main.append(head, cards,
    h('div', { class: 'filters' }, states, field, bulk, h('span', { class: 'grow' }), linkButtons()), split,
    sweep ? h('section', {}, h('h2', {}, 'Validation loss by key'), pictures) : h('div', { class: 'columns' }, h('section', {}, h('h2', {}, 'Machines'), machines), h('section', {}, h('h2', {}, 'What happened'), events)));

  function choose(id, on) {
    view.on = on ? [...view.on, id] : view.on.filter((one) => one !== id);
    write();
    showChosen();
    showJobs();
  }

  function showChosen() {
    const known = view.on.map((id) => jobs.get(id)).filter(Boolean);
    const act = (word, verb, fits) => known.some(fits) && h('button', { type: 'button', data: { act: `bulk-${verb}` }, onclick: () => askMany(verb, view.on.map((id) => jobs.get(id)).filter(Boolean)) }, `${word} ${known.filter(fits).length}…`);
    replace(bulk, view.on.length > 0 && h('span', { class: 'muted' }, `${view.on.length} ticked`), act('Stop', 'stop', isActive), act('Resume', 'resume', canResume),
      view.on.length > 0 && h('button', { type: 'button', class: 'quiet', onclick: () => { view.on = []; write(); showChosen(); showJobs(); } }, 'Untick'));
    split.classList.toggle('on', view.on.length > 0);
    if (sweep) showPictures();
    panel.show(view.on, keys);
  }

  // What a narrow window has no columns for.
  function briefly(job) {
    const end = isActive(job) && ends(job);
    return [['val ', job.val_step > 0 && lossText(job.val_loss, job.val_nonfinite)], ['loss ', job.step > 0 && lossText(job.loss, job.nonfinite)],
      ['', job.tokens_per_second > 0 && isActive(job) && `${short(job.tokens_per_second)} tok/s`], ['', end && `ends ${brief(end)}`]].filter(([, value]) => value)
      .flatMap(([word, value], i) => [i > 0 && ' · ', h('span', {}, word, value)]);
  }

  // The button that makes a job the baseline; of others it shows how much lower or higher they are.
  function delta(job) {
    const star = jobs.get(view.star);
    const mine = bestOf(job);
    const other = star && bestOf(star);
    const flat = [configs.of(view.star), configs.of(job.id)];
    const apart = flat.every(Boolean) && differentData(flat).length > 0;
    const known = star && star !== job && Number.isFinite(mine) && Number.isFinite(other);
    const less = mine - other;
    const text = view.star === job.id ? '★' : known && apart ? '≠ data' : known ? `${less < 0 ? '−' : '+'}${Math.abs(less).toFixed(3)}` : '☆';
    const look = known && !apart ? (less < 0 ? 'lower' : 'higher') : '';
    return h('button', { type: 'button', class: `quiet delta ${look}`, data: { act: `star ${job.id}` }, 'aria-pressed': String(view.star === job.id), 'aria-label': `Baseline ${job.name}${known ? `; ${text} to it` : ''}`,
      title: known && apart ? 'Other data than the baseline: not comparable' : 'The baseline, to which others are compared', onclick: () => setStar(job.id) }, text);
  }

  function starCell(job) {
    const button = job && delta(job);
    return h('td', { class: 'num', data: { title: button?.textContent.replace('☆', '') ?? '' } }, button);
  }

  async function setStar(id) {
    view.star = view.star === id ? '' : id;
    write();
    showJobs();
    await compareData();
  }

  // Losses are compared only where the data is the same.
  async function compareData() {
    if (!view.star) return;
    const wanted = shown().filter((job) => bestOf(job) !== null).map((job) => job.id).slice(0, ROWS);
    if (await configs.need([view.star, ...wanted]) && !closed) showJobs();
  }

  function endCell(job) {
    const end = ends(job);
    return [h('span', { title: end ? clock(end) : null }, end ? dayOr(end) : '–'), isActive(job) && job.eta_seconds !== null && h('small', {}, ` in ${span(job.eta_seconds)}`)];
  }

  function row(job, place = 0) {
    const colour = view.on.indexOf(job.id);
    const pick = h('input', { type: 'checkbox', 'aria-label': `Tick ${job.name}`, checked: colour >= 0, onchange: (event) => choose(job.id, event.target.checked) });
    if (colour >= 0) pick.style.accentColor = `var(${panel.colour(colour)})`;
    const share = job.steps > 0 ? Math.floor(100 * Math.min(job.step / job.steps, 1)) : 0;
    const restarts = job.restarts > 0 && h('span', { class: 'label warn', title: 'restarts so far' }, `${job.restarts}×`);
    const level = needsYou(job) || ['warning', 'bad'].includes(job.health.level) ? job.health.level : '';
    const said = sweep ? note(job) : words(job);
    return h('tr', { class: [colour >= 0 && 'picked', current === job.id && 'current'].filter(Boolean).join(' '), data: { id: job.id, act: job.id },
      onclick: (event) => { if (!event.target.closest('a, input, button')) location.hash = `#/job/${job.id}`; }, onpointerenter: () => panel.point(job.id), onpointerleave: () => panel.point('') },
      h('td', { class: 'pick' }, pick),
      h('td', { class: 'name' }, level && h('i', { class: `dot ${level}`, 'aria-hidden': 'true' }), h('a', { href: `#/job/${job.id}` }, job.name || job.id), restarts, !sweep && labels(job), h('div', { class: level && job.health.why ? `words ${level}` : 'words', title: said || job.health.words }, said), h('div', { class: 'brief' }, briefly(job))),
      keys.map((key) => h('td', { class: 'num key', title: job.labels[key] ?? null }, job.labels[key] ?? '–')),
      h('td', { class: 'more' }, badge(job)),
      h('td', { class: 'wide more' }, h('div', { class: 'done' }, progress(job), h('span', {}, `${share} %`)), h('small', {}, `${number(job.step)} of ${number(job.steps)} steps`)),
      h('td', { class: 'sparkcell' }, sparkLine(job.spark, scale)),
      h('td', { class: 'num more' }, lossText(job.loss, job.nonfinite)),
      h('td', { class: sweep && place === 0 && validated(job) ? 'num best' : 'num' }, h('span', { title: job.val_step > 0 ? `last ${number(job.val_loss)} at step ${number(job.val_step)}` : null }, lossText(sweep ? job.val_loss : bestOf(job), job.val_nonfinite)), sweep && job.val_step > 0 && h('div', {}, h('small', {}, `step ${number(job.val_step)}`))),
      starCell(job),
      h('td', { class: 'ends' }, endCell(job), h('div', { class: 'under' }, progress(job))),
      h('td', { class: 'num more' }, job.tokens_per_second ? short(job.tokens_per_second) : '–'), h('td', { class: 'num submitted more' }, brief(job.submitted)));
  }

  // What a row shows beside its job.
  function beside(job, place) {
    const colour = view.on.indexOf(job.id);
    const star = jobs.get(view.star);
    return [sweep && place === 0, colour, colour >= 0 && panel.colour(colour), needsYou(job), scale?.low, scale?.high, keys, view.star, star && bestOf(star), !!configs.of(view.star) && !!configs.of(job.id)].join(' ');
  }

  // The row of a job; the one that there is, if it would be the same. A job that has changed is another object.
  function rowOf(job, place = 0) {
    const shows = beside(job, place);
    const known = made.get(job.id);
    if (known?.job === job && known.shows === shows) {
      known.line.classList.toggle('current', current === job.id);
      return known.line;
    }
    const line = row(job, place);
    made.set(job.id, { job, shows, line, place });
    return line;
  }

  // Writes the row of a job that has changed anew, in its place; false when there is none.
  function rewrite(job) {
    const known = made.get(job.id);
    if (!known?.line.isConnected) return false;
    morph(known.line, row(job, known.place));
    made.set(job.id, { ...known, job, shows: beside(job, known.place) });
    return true;
  }

  // Jobs of a sweep are one row until it is unfolded; those that need somebody stand alone.
  function folds(all) {
    const of = new Map();
    if (view.sort || sweep || !fleet) return of;
    const add = (fold) => { if (fold.ids.length > 1) for (const id of fold.ids) of.set(id, fold); };
    const known = new Map(all.map((job) => [job.id, job]));
    const keyOf = (kind, name, job) => (kind === 'sweep' ? `${name}/${job?.owner}` : `waiting/${name}`).replaceAll(',', ';');
    if (fleet.groups) {
      for (const group of fleet.groups) add({ ...group, key: keyOf(group.kind, group.name, known.get(group.ids[0])), ids: group.ids.filter((id) => known.has(id) && !needsYou(known.get(id))) });
      return of;
    }
    const bySweep = new Map();
    for (const job of all) {
      if (!job.sweep || needsYou(job)) continue;
      const key = keyOf('sweep', job.sweep.name, job);
      if (!bySweep.has(key)) bySweep.set(key, { key, kind: 'sweep', name: job.sweep.name, jobs: job.sweep.jobs, ids: [] });
      bySweep.get(key).ids.push(job.id);
    }
    bySweep.forEach(add);
    return of;
  }

  function unfold(key) {
    if (!unfolded.delete(key)) unfolded.add(key);
    view.open = [...unfolded].join(',');
    write();
    showJobs();
  }

  function foldRow(fold) {
    const inside = fold.ids.map((id) => jobs.get(id)).filter(Boolean);
    const best = jobs.get(fold.best?.id) || inside.filter(validated).sort((a, b) => bestOf(a) - bestOf(b))[0];
    const open = unfolded.has(fold.key);
    const count = {};
    for (const job of inside) { const word = badge(job).textContent; count[word] = (count[word] || 0) + 1; }
    const said = [`${fold.jobs} jobs`, ...Object.entries(count).map(([word, n]) => `${n} ${word}`), best && `best ${best.name}`].filter(Boolean).join(' · ');
    const end = Math.max(0, ...inside.map((job) => ends(job) || 0));
    return h('tr', { class: 'fold', data: { fold: fold.key, act: fold.key }, onclick: (event) => { if (!event.target.closest('a, .delta')) unfold(fold.key); } },
      h('td', { class: 'pick' }, h('button', { type: 'button', class: 'quiet', 'aria-expanded': String(open), 'aria-label': `Jobs of ${fold.name}` }, open ? '▾' : '▸')),
      h('td', { class: 'name' }, fold.kind === 'sweep' ? h('a', { href: sweepLink(inside[0]) }, fold.name) : h('b', {}, `${fold.jobs} jobs waiting`), h('div', { class: 'words', title: said }, fold.kind === 'sweep' ? said : fold.name)),
      h('td', { class: 'more' }), h('td', { class: 'wide more' }), h('td', { class: 'sparkcell' }, best && sparkLine(best.spark, scale)), h('td', { class: 'num more' }),
      h('td', { class: 'num' }, best ? number(bestOf(best)) : '–'), starCell(best), h('td', { class: 'ends' }, end ? dayOr(end) : '–'), h('td', { class: 'more' }), h('td', { class: 'submitted more' }));
  }

  const passes = (job) => filter.tests.every((test) => test(job, configs.of(job.id)));

  // The jobs that the filter lets through, in the order of the list.
  function shown() {
    const all = order.map((id) => jobs.get(id)).filter(passes);
    const name = view.sort.replace('-', '');
    const value = COLUMNS.find(([one]) => one === name)?.[3] || (keys.includes(name) && ((job) => (Number.isFinite(Number(job.labels[name])) ? Number(job.labels[name]) : job.labels[name])));
    if (!value) return all;
    const down = view.sort.startsWith('-') ? -1 : 1;
    const lost = (one) => one === null || one === undefined || Number.isNaN(one);
    return all.map((job) => [value(job), job]).sort(([a], [b]) => Number(lost(a)) - Number(lost(b)) || (a < b ? -down : a > b ? down : 0)).map(([, job]) => job);
  }

  function showColumns() {
    const sorter = (name, title) => h('button', { type: 'button', class: 'quiet', data: { act: `sort ${name}` }, onclick: () => { view.sort = view.sort === name ? `-${name}` : view.sort === `-${name}` ? '' : name; write(); showJobs(); } },
      title, view.sort.replace('-', '') === name && (view.sort.startsWith('-') ? ' ▼' : ' ▲'));
    const sorted = (name) => (view.sort === name ? 'ascending' : view.sort === `-${name}` ? 'descending' : null);
    const column = ([name, title, look, value]) => h('th', { class: look || null, data: { title }, 'aria-sort': sorted(name) }, value ? sorter(name, title) : h('span', { class: 'hidden' }, 'Loss'));
    update(columns, h('th', { class: 'pick' }, h('span', { class: 'hidden' }, 'Tick')), column(COLUMNS[0]), keys.map((key) => column([key, key, 'num key', true])), COLUMNS.slice(1).map(column));
  }

  function showJobs() {
    if (!fleet) return;
    const all = shown();
    showColumns();
    const fold = folds(all);
    const done = new Set();
    const list = (job) => {
      const one = fold.get(job.id);
      if (!one) return [line(job)];
      if (done.has(one)) return [];
      done.add(one);
      return [() => foldRow(one), ...(unfolded.has(one.key) ? one.ids.map((id) => jobs.get(id)).filter(Boolean).map((inner) => line(inner)) : [])];
    };
    // What makes each line of the list; those of jobs are counted.
    const line = (job, i) => Object.assign(() => rowOf(job, i), { counts: true });
    const flat = view.sort || sweep;
    const focused = body.contains(document.activeElement) && document.activeElement;
    const place = focused && [focused.closest('tr').dataset.act, [...focused.closest('tr').querySelectorAll('a, input, button')].indexOf(focused)];
    const title = (word, count) => h('tr', { class: 'group' }, h('th', { colspan: String(COLUMNS.length + 1), scope: 'rowgroup' }, word, h('small', {}, ` ${count}`)));
    const whole = flat ? all.map(line) : GROUPS.flatMap(([name, word]) => {
      const inside = all.filter((job) => groupOf(job) === name);
      const lines = inside.flatMap(list);
      return lines.length > 0 ? [() => title(word, inside.length), ...lines] : [];
    });
    let drawn = 0;
    const next = whole.filter((make) => (make.counts ? ++drawn <= limit : drawn < limit)).map((make) => make());
    undrawn = Math.max(0, drawn - limit);
    const before = [...body.rows];
    const same = next.length === before.length && next.every((one, i) => one === before[i] || (!one.dataset.id && one.isEqualNode(before[i])));
    if (!same) replace(body, next);
    if (place && !same) [...body.rows].find((one) => one.dataset.act === place[0])?.querySelectorAll('a, input, button')[place[1]]?.focus({ preventScroll: true });
    table.hidden = all.length === 0;
    empty.hidden = all.length > 0;
    replace(empty, view.q || view.state ? h('p', {}, 'No jobs match. ', h('button', { type: 'button', class: 'quiet', onclick: () => { Object.assign(view, { state: '', q: '' }); field.value = ''; typed(); } }, 'Show all'))
      : [h('p', {}, 'No job yet. Submit one:'), h('pre', {}, 'nsactl submit configs/jobs/demo.yaml')]);
    showRest();
  }

  function showRest() {
    const left = undrawn + (sweep ? 0 : fleet.matching - order.length);
    const all = undrawn === 0 && rows >= MOST_ROWS;
    more.hidden = left <= 0 || all;
    more.textContent = `${left} more`;
    rest.hidden = left <= 0 || !all;
    rest.textContent = `${left} more; a name, label or state in the filter finds any of them.`;
  }

  function showMore() {
    limit += ROWS;
    if (limit <= rows) return showJobs();
    rows = Math.min(rows + ROWS, MOST_ROWS);
    return load();
  }

  function showState(state) {
    view.state = state;
    rows = limit = ROWS;
    write();
    load();
  }

  // What comes next, in words beside the verdict.
  function aside(of) {
    const next = fleet.verdict ? fleet.verdict.next_end : [...jobs.values()].filter((job) => job.state === 'RUNNING' && job.eta_seconds !== null).sort((a, b) => a.eta_seconds - b.eta_seconds)[0];
    const slots = fleet.nodes.reduce(([used, all], node) => (node.gpus.length ? [used + node.gpus_used, all + node.gpus.length] : [used + node.cpu_slots_used, all + node.cpu_slots]), [0, 0]);
    return [next && ['next to end: ', h('a', { href: `#/job/${next.id}` }, next.name), ` at ${brief(next.ends ?? Date.now() + next.eta_seconds * 1000)}`], of('QUEUED') > 0 ? [`${of('QUEUED')} waiting`] : ['queue empty'],
      slots[1] > 0 && [`${slots[0]} of ${slots[1]} slots in use`], fleet.verdict?.muted > 0 && [`${fleet.verdict.muted} muted`]].filter(Boolean).flatMap((part, i) => (i > 0 ? [' · ', ...part] : part));
  }

  function showSummary() {
    const of = (name) => fleet.counts[name] || 0;
    const total = Object.values(fleet.counts).reduce((sum, n) => sum + n, 0);
    const active = total - of('SUCCEEDED') - of('FAILED') - of('STOPPED');
    const wanted = filter.asked.state || view.state;
    update(states, FILTERS.map(([state, said]) => {
      const word = said || fleet.titles[state] || state;
      const n = state === '' ? total : state === 'look' ? fleet.look : state === 'active' ? active : of(state);
      return h('button', { type: 'button', class: 'chip', title: state in fleet.titles ? state : null, data: { act: `state ${state}` }, 'aria-pressed': String([state.toLowerCase(), word].includes(wanted.toLowerCase())), onclick: () => showState(state) }, word, h('small', {}, String(n)));
    }));
    if (sweep) {
      update(head, sweepHead(sweep, shown(), keys, owners, view.owner));
      return;
    }
    const known = [...jobs.values()];
    // A failure that was looked at here needs nobody any more.
    const seen = known.filter(isSettled).length;
    const need = Math.max(0, (fleet.verdict?.need ?? fleet.look) - seen);
    const running = fleet.verdict?.running ?? active - of('QUEUED');
    const fine = fleet.verdict?.fine ?? Math.max(0, running - known.filter((job) => needsYou(job) && isActive(job)).length);
    document.title = need > 0 ? `(${need}) NSA training` : 'NSA training';
    const red = known.some((job) => needsYou(job) && job.health.level === 'bad');
    const calm = running === 0 || fine === 0 ? '' : fine === running ? (running === 1 ? 'The one that runs is fine.' : `All ${running} that run are fine.`) : `${fine} of ${running} ${fine === 1 ? 'is' : 'are'} fine.`;
    const word = total === 0 ? 'No job yet.' : need === 0 ? (running ? 'Nothing needs you.' : 'Nothing needs you; nothing runs.') : `${need} ${need === 1 ? 'needs' : 'need'} you.`;
    // The coordinator's sentence, unless something was looked at here.
    const [, first, others] = /^(.*? needs? you\.)(.*)$/.exec(fleet.verdict && seen === 0 ? fleet.verdict.words : '') || ['', word, calm && ` ${calm}`];
    update(head, h('h1', { class: 'sentence' }, h('i', { class: `dot ${red ? 'bad' : need ? 'warning' : running ? 'good' : 'waiting'}`, 'aria-hidden': 'true' }),
      h('span', {}, need > 0 ? h('a', { class: 'looks', data: { act: 'look' }, href: address({ state: 'look' }) }, first) : first, others, h('span', { class: 'aside' }, aside(of)),
        of('FAILED') > 0 && h('a', { class: 'aside bad', href: '#/?state=FAILED' }, `${of('FAILED')} failed`))));
    showCards(cards, fleet, jobs);
  }

  const wanted = () => (sweep ? { label: `sweep=${sweep}` } : { ...filter.asked, state: filter.asked.state || view.state });

  // The jobs of a sweep are on as many pages as it takes.
  async function ask() {
    rows = filter.tests.length > 0 || sweep ? MOST_ROWS : rows;
    const first = await get('fleet', { ...wanted(), rows });
    for (let offset = first.jobs.length; sweep && offset < first.matching;) {
      const next = await get('fleet', { ...wanted(), rows, offset });
      if (next.jobs.length === 0) break;
      offset += next.jobs.length;
      first.jobs.push(...next.jobs);
    }
    return first;
  }

  // From best to worst, of one owner; the best are ticked unless the address says otherwise.
  function takeSweep(all) {
    const mine = all.filter((job) => job.sweep?.name === sweep);
    owners = [...new Set(mine.map((job) => job.owner))].sort();
    if (!owners.includes(view.owner)) view.owner = owners[0] ?? '';
    const ranked = mine.filter((job) => job.owner === view.owner).sort(rank);
    keys = sweptKeys(ranked);
    if (!parameters.has('on') && ranked.length > 0) {
      view.on = ranked.slice(0, BEST).map((job) => job.id);
      write();
      parameters.set('on', '');
    }
    return ranked;
  }

  function showPictures() {
    const ranked = [...jobs.values()];
    const place = (id) => view.on.indexOf(id);
    replace(pictures, parallelPicture(keys, ranked, place, choose, main.clientWidth - 60), keyPictures(keys, ranked, place));
  }

  async function load() {
    clearTimeout(reload);
    reload = 0;
    const asked = ++loads;
    try {
      const found = await ask();
      if (closed || asked !== loads) return;
      fleet = found;
      setTokenFile(found.token_file);
      const list = sweep ? takeSweep(found.jobs) : found.jobs;
      if (sweep && list.length === 0) {
        replace(main, h('div', { class: 'blank' }, h('p', {}, `There is no sweep ${sweep}.`), h('p', {}, h('a', { href: '#/' }, 'All jobs'))));
        return;
      }
      jobs = new Map(list.map((job) => [job.id, unchanged(jobs.get(job.id), job)]));
      order = [...jobs.keys()];
      scale = sparkScale(list.map((job) => job.spark));
      for (const id of made.keys()) if (!jobs.has(id)) made.delete(id);
      showSummary();
      showJobs();
      showChosen();
      showMachines(machines, fleet.nodes);
      happened.show(found.events);
      stop();
      stop = follow(found.cursor, { ...wanted(), rows }, handlers);
      if (filter.keys && await configs.need(order) && !closed) showJobs();
      compareData();
      // The coordinator reads curves for a short time only; it has more of them next time.
      if (found.jobs.some((job) => job.spark === null)) later();
    } catch (error) {
      toast(error.message, true);
      if (!closed && !fleet) setTimeout(load, 2000);
    }
  }

  let loads = 0;
  let reload = 0;
  function later(milliseconds = 400) {
    reload ||= setTimeout(() => { if (!closed) load(); }, milliseconds);
  }

  let redraw = 0;
  function redrawSoon() {
    redraw ||= setTimeout(() => { redraw = 0; if (!closed) showJobs(); }, 1000);
  }

  const handlers = {
    reconnected: () => later(),
    rows: (changed) => {
      for (const fresh of changed) {
        const before = jobs.get(fresh.id);
        if (sweep && !before) continue;
        const job = { spark: null, best_val: null, ...before, ...fresh };  // the first two come with the list
        jobs.set(job.id, job);
        if (!rewrite(job) || view.sort || passes(before) !== passes(job) || groupOf(before) !== groupOf(job)) redrawSoon();
      }
      showSummary();
      if (sweep && changed.some((job) => jobs.has(job.id))) later(3000);
    },
    // New rows have come before this.
    list: ({ ids, ...told }) => {
      Object.assign(fleet, told);
      const same = ids.length === order.length && ids.every((id, i) => id === order[i]);
      if (sweep) return;
      redrawSoon();  // what is folded may be more
      if (!same && !ids.every((id) => jobs.has(id))) { later(); return; }
      if (!same) {
        order = ids;
        jobs = new Map(ids.map((id) => [id, jobs.get(id)]));
        showJobs();
        later(2000);  // for the curves of the new rows
      }
      showRest();
      showSummary();
    },
    verdict: (verdict) => { fleet.verdict = verdict; showSummary(); },
    nodes: (nodes) => { fleet.nodes = nodes; showMachines(machines, nodes); },
    event: (event) => happened.add(event),
  };

  const lines = () => [...body.rows].filter((one) => one.dataset.id);

  function mark(id) {
    current = id;
    for (const one of lines()) one.classList.toggle('current', one.dataset.id === id);
  }

  let typing = 0;
  function typed() {
    view.q = field.value.trim();
    filter = parse(view.q);
    rows = limit = ROWS;
    write();
    clearTimeout(typing);
    typing = setTimeout(load, 150);
  }

  const sparks = setInterval(() => { if (!document.hidden && [...jobs.values()].some(isActive)) load(); }, 15000);
  document.title = sweep ? `Sweep ${sweep}` : 'NSA training';
  load();

  return {
    close: () => { closed = true; stop(); clearInterval(sparks); clearTimeout(reload); clearTimeout(redraw); panel.close(); },
    key: (event) => {
      const all = lines();
      const here = all.findIndex((one) => one.dataset.id === current);
      if (event.key === '/') { field.focus(); event.preventDefault(); }
      else if (event.key === 'j' || event.key === 'k') {
        const next = all[Math.max(0, Math.min(all.length - 1, here + (event.key === 'j' ? 1 : -1)))];
        if (!next) return;
        mark(next.dataset.id);
        next.scrollIntoView({ block: 'nearest' });
      } else if (event.key === 'Enter' && here >= 0 && event.target === document.body) location.hash = `#/job/${current}`;
      else if (event.key === 'x' && here >= 0) choose(current, !view.on.includes(current));
      else if (event.key === 'b' && here >= 0) setStar(current);
      else if (event.key === 'c' && view.on.length > 0) panel.element.scrollIntoView({ behavior: 'smooth' });
      else panel.key(event);
    },
  };
}
