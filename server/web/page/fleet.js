// All jobs, all machines, and what happened lately.
import { follow, get } from './api.js';
import { setTokenFile } from './dialogs.js';
import { h, morph, replace, toast, update } from './dom.js';
import { ago, bytes, number, percent, short, span } from './format.js';
import { ACTIVE, Happened, badge, isActive, labels, lossText, progress, sparkLine, wasSeen, words } from './rows.js';

const FILTERS = [['', 'all'], ['look', 'needs a look'], ['active', 'active'], ['RUNNING', 'training'], ['QUEUED', 'waiting'], ['FAILED', 'failed'], ['STOPPED', 'stopped'], ['SUCCEEDED', 'finished']];

const ROWS = 200;
const MOST_ROWS = 1000;

export function fleetPage(main, parameters) {
  let fleet = null;
  let rows = ROWS;  // how many the list may have
  let jobs = new Map();
  let order = [];
  let stop = () => {};
  let closed = false;
  let current = -1;
  const chosen = new Set();
  const wanted = { state: parameters.get('state') || '', name: parameters.get('name') || '', label: parameters.get('label') || '' };

  const summary = h('h1', { class: 'sentence' }, '…');
  const states = h('div', { class: 'chips', role: 'group', 'aria-label': 'Filter by state' });
  const nameField = h('input', { type: 'search', placeholder: 'Name or id', 'aria-label': 'Filter by name or id', value: wanted.name });
  const labelField = h('input', { type: 'search', placeholder: 'Label: team=nlp', 'aria-label': 'Filter by label', value: wanted.label });
  const compare = h('button', { type: 'button', class: 'primary', hidden: true, onclick: () => openCompare() });
  const body = h('tbody');
  const more = h('button', { type: 'button', class: 'quiet', hidden: true, onclick: () => { rows = Math.min(rows + ROWS, MOST_ROWS); load(); } }, 'More');
  const rest = h('p', { class: 'muted', hidden: true });
  const empty = h('div', { class: 'blank', hidden: true });
  const machines = h('div', { class: 'machines' });
  const events = h('ol', { class: 'events' });
  const happened = new Happened(events, { most: 40, named: true });
  const table = h('table', { class: 'jobs' }, h('thead', {}, h('tr', {},
    h('th', { class: 'pick' }, h('span', { class: 'hidden' }, 'Choose')), h('th', {}, 'Job'), h('th', {}, 'State'), h('th', { class: 'wide' }, 'Progress'), h('th', { class: 'num' }, 'Ends in'),
    h('th', {}, 'Loss'), h('th', { class: 'num' }, h('span', { class: 'hidden' }, 'Loss')), h('th', { class: 'num' }, 'Validation'), h('th', { class: 'num' }, 'Tok/s'), h('th', { class: 'num submitted' }, 'Submitted'))), body);
  main.append(
    h('section', { class: 'top' }, summary),
    h('section', { 'aria-label': 'Jobs' }, h('div', { class: 'filters' }, states, nameField, labelField, h('span', { class: 'grow' }), compare), h('div', { class: 'scroll' }, table), empty, more, rest),
    h('div', { class: 'columns' }, h('section', {}, h('h2', {}, 'Machines'), machines), h('section', {}, h('h2', {}, 'What happened'), events)));

  function openCompare() {
    location.hash = `#/compare?jobs=${[...chosen].join(',')}`;
  }

  function showChosen() {
    compare.hidden = chosen.size === 0;
    compare.textContent = chosen.size === 1 ? 'Compare 1 job' : `Compare ${chosen.size} jobs`;
  }

  function choose(id, on) {
    if (on) chosen.add(id);
    else chosen.delete(id);
    showChosen();
  }

  // What a narrow window has no columns for.
  function brief(job) {
    const end = isActive(job) && job.eta_seconds !== null && new Date(Date.now() + job.eta_seconds * 1000).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });
    return [['val ', job.val_step > 0 && lossText(job.val_loss, job.val_nonfinite)], ['loss ', job.step > 0 && lossText(job.loss, job.nonfinite)],
      ['', job.tokens_per_second > 0 && isActive(job) && `${short(job.tokens_per_second)} tok/s`], ['', end && `ends ${end}`]].filter(([, value]) => value)
      .flatMap(([word, value], i) => [i > 0 && ' · ', h('span', {}, word, value)]);
  }

  function row(job) {
    const pick = h('input', { type: 'checkbox', 'aria-label': `Choose ${job.name}`, checked: chosen.has(job.id), onchange: (event) => choose(job.id, event.target.checked) });
    const share = job.steps > 0 ? Math.floor(100 * Math.min(job.step / job.steps, 1)) : 0;
    const restarts = job.restarts > 0 && h('span', { class: 'label warn', title: 'restarts so far' }, `${job.restarts}×`);
    return h('tr', { data: { id: job.id }, onclick: (event) => { if (!event.target.closest('a, input')) location.hash = `#/job/${job.id}`; } },
      h('td', { class: 'pick' }, pick),
      h('td', { class: 'name' }, h('a', { href: `#/job/${job.id}` }, job.name || job.id), restarts, labels(job), h('div', { class: job.health.why && ['warning', 'bad'].includes(job.health.level) ? `words ${job.health.level}` : 'words', title: job.health.words }, words(job)), h('div', { class: 'brief' }, brief(job))),
      h('td', {}, badge(job)),
      h('td', { class: 'wide' }, h('div', { class: 'done' }, progress(job), h('span', {}, `${share} %`)), h('small', {}, `${number(job.step)} of ${number(job.steps)} steps`)),
      h('td', { class: 'num' }, isActive(job) && job.eta_seconds !== null ? span(job.eta_seconds) : '–'),
      h('td', { class: 'sparkcell' }, sparkLine(job.spark)),
      h('td', { class: 'num' }, lossText(job.loss, job.nonfinite)), h('td', { class: 'num' }, lossText(job.val_loss, job.val_nonfinite)),
      h('td', { class: 'num' }, job.tokens_per_second ? short(job.tokens_per_second) : '–'), h('td', { class: 'num submitted' }, ago(job.submitted)));
  }

  function show(state) {
    wanted.state = state;
    rows = ROWS;
    load();
  }

  const isFresh = (job) => job.state === 'FAILED' && Date.now() - job.ended < 24 * 3600 * 1000;

  function showSummary() {
    const count = fleet.counts;
    const of = (name) => count[name] || 0;
    const failed = of('FAILED');
    const known = [...jobs.values()];
    // A failure that was looked at here needs no more looks.
    const looks = Math.max(0, fleet.look - known.filter((job) => isFresh(job) && wasSeen(job)).length);
    const red = known.some((job) => job.health.level === 'bad' && (isActive(job) || isFresh(job)) && !wasSeen(job));
    const parts = [[of('RUNNING'), 'training'], [of('STARTING') + of('PREFLIGHT') + of('RESTARTING'), 'starting'], [of('QUEUED'), 'waiting'], [of('STOPPING'), 'stopping']]
      .filter(([n]) => n > 0).map(([n, word]) => `${n} ${word}`);
    const total = Object.values(count).reduce((sum, n) => sum + n, 0);
    const calm = looks === 0 ? (parts.length ? 'all healthy' : '') : `${looks} ${looks === 1 ? 'needs' : 'need'} a look`;
    const head = parts.length ? parts.join(', ') : total === 0 ? 'No job yet' : 'Nothing is running';
    update(summary, h('i', { class: `dot ${red ? 'bad' : looks ? 'warning' : parts.length ? 'good' : 'waiting'}`, 'aria-hidden': 'true' }),
      h('span', {}, looks === 0 ? [head, calm].filter(Boolean).join('; ') : [`${head}; `, h('button', { type: 'button', class: 'looks', data: { act: 'look' }, onclick: () => show('look') }, calm)], failed > 0 && h('a', { class: 'aside bad', href: '#/?state=FAILED' }, `${failed} failed`)));
    update(states, FILTERS.map(([state, word]) => {
      const n = state === '' ? total : state === 'look' ? fleet.look : state === 'active' ? ACTIVE.reduce((sum, one) => sum + of(one), 0) : of(state);
      return h('button', { type: 'button', class: 'chip', 'aria-pressed': String(wanted.state === state), onclick: () => show(state) }, word, h('small', {}, String(n)));
    }));
  }

  function showJobs() {
    replace(body, order.map((id) => row(jobs.get(id))));
    mark();
    table.hidden = order.length === 0;
    empty.hidden = order.length > 0;
    const filtered = wanted.state || wanted.name || wanted.label;
    replace(empty, filtered ? h('p', {}, 'No job matches. ', h('button', { type: 'button', class: 'quiet', onclick: () => { Object.assign(wanted, { state: '', name: '', label: '' }); nameField.value = labelField.value = ''; load(); } }, 'Show all'))
      : [h('p', {}, 'No job yet. Submit one:'), h('pre', {}, 'nsactl submit configs/jobs/demo.yaml')]);
    showRest();
  }

  function showRest() {
    const left = fleet.matching - order.length;
    more.hidden = left <= 0 || rows >= MOST_ROWS;
    more.textContent = `${left} more`;
    rest.hidden = left <= 0 || rows < MOST_ROWS;
    rest.textContent = `${left} more; the filters above find any of them.`;
  }

  function bar(share, words) {
    const fill = h('i');
    fill.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
    return h('div', { class: 'meter', title: words }, fill);
  }

  // What the driver does not report is left out.
  function gpuText(gpu, named) {
    return [gpu.use !== null && `${percent(gpu.use)} busy`, gpu.celsius !== null && `${Math.round(gpu.celsius)} °C`, `${bytes(gpu.used_bytes)} of ${bytes(gpu.memory_bytes)}`,
      gpu.watts !== null && `${Math.round(gpu.watts)} W`, named && gpu.name].filter(Boolean).join(' · ');
  }

  // How many of its slots are in use; GPUs that are all alike are named here, once.
  function slots(node) {
    if (node.gpus.length === 0) return `${node.cpu_slots_used} of ${node.cpu_slots} CPU slots`;
    return `${node.gpus_used} of ${node.gpus.length} ${alike(node) ? node.gpus[0].name : 'GPUs'}`;
  }

  function alike(node) {
    return node.gpus.every((gpu) => gpu.name === node.gpus[0].name);
  }

  function showNodes() {
    update(machines, fleet.nodes.length === 0 && h('p', { class: 'muted' }, 'No machine reports yet; its agent may be starting.'), fleet.nodes.map((node) => h('article', { class: 'machine' },
      h('header', {}, h('i', { class: `dot ${node.state === 'READY' ? 'good' : 'bad'}`, 'aria-hidden': 'true' }), h('b', {}, node.name), node.state !== 'READY' && h('span', { class: 'bad' }, node.state.toLowerCase()), node.cordon && h('span', { class: 'label warn', title: node.cordon_text }, node.cordon.toLowerCase()),
        h('span', { class: 'grow' }), h('span', { class: 'muted' }, slots(node))),
      h('dl', { class: 'meters' },
        h('dt', {}, 'Memory'), h('dd', {}, bar(node.used_memory_bytes / node.memory_bytes, 'memory in use'), `${bytes(node.used_memory_bytes)} of ${bytes(node.memory_bytes)}`),
        node.gpus.flatMap((gpu, i) => [h('dt', {}, `GPU ${i}`), h('dd', { title: gpu.name }, bar(gpu.use === null ? gpu.used_bytes / gpu.memory_bytes : gpu.use, gpu.use === null ? 'memory in use' : 'share of the time in which a kernel ran'), gpuText(gpu, !alike(node)))])),
      h('div', { class: 'runs' }, node.jobs.length === 0 ? h('span', { class: 'muted' }, 'idle') : node.jobs.map(({ id, name }) => h('a', { href: `#/job/${id}` }, name))),
      node.cordon && h('p', { class: 'muted' }, `No rank is placed here: ${node.cordon_text}`),
      node.problem && h('p', { class: 'muted' }, node.problem))));
  }

  async function load() {
    clearTimeout(reload);
    reload = 0;
    const asked = ++loads;
    try {
      const found = await get('fleet', { ...wanted, rows });
      if (closed || asked !== loads) return;
      fleet = found;
      setTokenFile(found.token_file);
      jobs = new Map(found.jobs.map((job) => [job.id, job]));
      order = [...jobs.keys()];
      showSummary();
      showJobs();
      showNodes();
      happened.show(found.events);
      stop();
      stop = follow(found.cursor, { ...wanted, rows }, handlers);
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

  const handlers = {
    reconnected: () => later(),
    rows: (changed) => {
      for (const job of changed) {
        const before = jobs.get(job.id);
        job.spark = before?.spark;  // means of many steps, which come with the list
        jobs.set(job.id, job);
        const old = body.querySelector(`tr[data-id="${CSS.escape(job.id)}"]`);
        if (old) morph(old, row(job));
      }
      mark();
      showSummary();
    },
    // New rows have come before this.
    list: ({ ids, matching, look, counts }) => {
      Object.assign(fleet, { matching, look, counts });
      const same = ids.length === order.length && ids.every((id, i) => id === order[i]);
      if (!same && !ids.every((id) => jobs.has(id))) { later(); return; }
      if (!same) {
        const here = order[current];
        order = ids;
        current = order.indexOf(here);
        jobs = new Map(ids.map((id) => [id, jobs.get(id)]));
        showJobs();
        later(2000);  // for the curves of the new rows
      }
      showRest();
      showSummary();
    },
    nodes: (nodes) => { fleet.nodes = nodes; showNodes(); },
    event: (event) => happened.add(event),
  };

  function mark() {
    [...body.rows].forEach((one, i) => one.classList.toggle('current', i === current));
  }

  let typing = 0;
  const typed = () => {
    wanted.name = nameField.value.trim();
    wanted.label = labelField.value.trim();
    rows = ROWS;
    clearTimeout(typing);
    typing = setTimeout(load, 150);
  };
  nameField.addEventListener('input', typed);
  labelField.addEventListener('input', typed);
  const sparks = setInterval(() => { if (!document.hidden && [...jobs.values()].some(isActive)) load(); }, 15000);
  document.title = 'NSA training';
  load();

  return {
    close: () => { closed = true; stop(); clearInterval(sparks); clearTimeout(reload); },
    key: (event) => {
      const id = order[current];
      if (event.key === '/') { nameField.focus(); event.preventDefault(); }
      else if (event.key === 'j' || event.key === 'k') {
        current = Math.max(0, Math.min(order.length - 1, current + (event.key === 'j' ? 1 : -1)));
        mark();
        if (body.rows[current]) body.rows[current].scrollIntoView({ block: 'nearest' });
      } else if (event.key === 'Enter' && id && event.target === document.body) location.hash = `#/job/${id}`;
      else if (event.key === 'x' && id) { choose(id, !chosen.has(id)); showJobs(); }
      else if (event.key === 'c' && chosen.size > 0) openCompare();
    },
  };
}

