// One job: how it is, its curves, its attention, and what can be done about it.
import { follow, get, post } from './api.js';
import { COLORS, Chart, Group, smooth } from './chart.js';
import { zoomText, zoomValue } from './chart_files.js';
import { Curves } from './curves.js';
import { setTokenFile } from './dialogs.js';
import { h, painted, replace, toast, update } from './dom.js';
import { ago, brief, bytes, capital, number, percent, seconds, short, span } from './format.js';
import { heatSection } from './attention.js';
import { problemsOf, showProblems } from './cards.js';
import { detailSection } from './details.js';
import { askClone, askLabels, askNote, askResume, askStacks, askStop, askUnmute, canResume } from './edit.js';
import { traceSection } from './profile.js';
import { chartOf, family, quantity, readQuantities, withCurve } from './quantities.js';
import { badge, isActive, labels, lossText, markSeen, progress, runSeconds } from './rows.js';
import { samplesSection } from './samples.js';
import { linkButtons } from './views.js';

const MODES = [['step', 'Step'], ['tokens', 'Tokens'], ['time', 'Time']];
const POINTS = 1024;  // as many as a chart has pixels; early.js asks for them, too
const PHASES = 'nsa_job_phase_seconds_total';  // the family of the parts of a step, which are drawn in the chart of the whole
const LINES = ['--c1', '--c1', '--c5', '--c3', '--c4', '--c8'];  // of the charts with one line, by turns

// `parameters` are those of the address: axis x, smoothing s, scale y and zoom. Without any, axis and smoothing are those of the page before.
export function jobPage(main, id, parameters) {
  const curves = new Curves(id, POINTS);
  // A closer look shows more than there is room for in the whole curve.
  const group = new Group((zoom) => { write(); showZoom(); if (zoom) refine(); });
  const charts = {};
  let job = null;
  let arrived = [];  // events that are not shown yet
  let newest = 0;    // sequence of the newest that is
  let parents = [];  // what a fork continues: [{name, step, curves}], the nearest first
  let gpus = null;   // what was measured of its GPUs, if anything
  let stop = () => {};
  let closed = false;
  const told = ['x', 's', 'y', 'zoom'].some((one) => parameters.has(one));
  let mode = (told ? parameters.get('x') : localStorage.getItem('axis')) || 'step';
  if (!MODES.some(([name]) => name === mode)) mode = 'step';
  let weight = Math.min(Math.max(Number((told ? parameters.get('s') : localStorage.getItem('smooth')) || 0), 0), 0.99) || 0;
  let log = parameters.get('y') === 'log';
  group.zoom = parameters.get('zoom')?.split('..').map(Number) ?? null;

  const head = h('section', { class: 'top' });
  const problems = h('section', { class: 'cards', 'aria-label': 'What is wrong', hidden: true });
  const figures = h('dl', { class: 'figures' });
  const grid = h('div', { class: 'charts' });
  const blank = h('p', { class: 'blank', hidden: true }, 'Curves and figures come with the first step.');
  const attention = heatSection(id);
  const details = detailSection(id, () => job);
  const traces = traceSection(id, () => job);
  const samples = samplesSection(id);
  const axis = h('div', { class: 'chips', role: 'group', 'aria-label': 'Horizontal axis' });
  const slider = h('input', { type: 'range', min: '0', max: '0.99', step: '0.01', value: String(weight), 'aria-label': 'Smoothing',
    oninput: (event) => { weight = Number(event.target.value); localStorage.setItem('smooth', String(weight)); write(); showCurves(); } });
  const logBox = h('input', { type: 'checkbox', checked: log, onchange: (event) => { log = event.target.checked; write(); showCurves(); } });
  const zoomChip = h('button', { type: 'button', class: 'chip', hidden: true, title: 'Show all', data: { act: 'zoom' }, onclick: () => group.zoomTo(null) });
  const compareLink = h('a', { class: 'button', href: `#/?on=${encodeURIComponent(id)}` }, 'Compare with…');
  const bar = h('div', { class: 'filters sticky' }, axis, h('label', { class: 'inline' }, 'Smoothing', slider), h('label', { class: 'inline' }, logBox, 'Log loss'), zoomChip, h('span', { class: 'grow' }), compareLink, linkButtons());
  main.append(head, problems, figures, traces.element, bar,
    blank, grid, samples.element, attention.element, details.element);

  // The address says what is shown.
  function write() {
    const said = new URLSearchParams(Object.entries({ x: mode === 'step' ? '' : mode, s: weight > 0 ? String(weight) : '', y: log ? 'log' : '', zoom: group.zoom ? zoomValue(group.zoom) : '' }).filter(([, value]) => value !== ''));
    history.replaceState(null, '', `#/job/${encodeURIComponent(id)}${said.size > 0 ? `?${said}` : ''}`);
  }

  function showZoom() {
    zoomChip.hidden = !group.zoom;
    if (group.zoom) zoomChip.textContent = zoomText(mode, group.zoom);
  }

  // A closer look shows more than there is room for in the whole curve.
  function refine() {
    curves.refine().then(() => { if (!closed) showCurves(); }, (error) => toast(error.message, true));
  }

  function setMode(next) {
    mode = next;
    localStorage.setItem('axis', mode);
    group.zoom = null;
    write();
    showZoom();
    showAxis();
    showCurves();
  }

  function showAxis() {
    replace(axis, MODES.map(([name, word]) => h('button', { type: 'button', class: 'chip', 'aria-pressed': String(mode === name), onclick: () => setMode(name) }, word)));
  }

  function chart(one, options = {}) {
    const name = options.of || one.name;
    if (!charts[name]) {
      charts[name] = new Chart(group, chartOf(one, options));
      grid.append(charts[name].element);
    }
    return charts[name];
  }

  // The quantities of a step that have a chart of their own, in the order of the table; a phase has none.
  function shownUnasked() {
    return withCurve('step').filter((one) => one.chart > 0 && one.family !== PHASES).sort((a, b) => a.chart - b.chart);
  }

  function curve(name, key, colour, scale = 1) {
    const value = curves.data.values[key];
    const times = (column) => (scale === 1 ? column : column.map((one) => (one === null ? null : one * scale)));
    return { name, color: colour, x: curves.x(mode), y: smooth(times(value.mean), weight), min: times(value.min), max: times(value.max) };
  }

  // The curves of the jobs that this one continues, up to the checkpoints where they part.
  function before(key) {
    return parents.map((parent) => {
      const data = parent.curves.data;
      const count = data.step.filter((step) => step <= parent.step).length;
      return { name: `${parent.name} to step ${number(parent.step)}`, color: '--c8', dash: [5, 4], x: parent.curves.x(mode).slice(0, count), y: smooth(data.values[key].mean.slice(0, count), weight) };
    });
  }

  async function readParents() {
    const found = [];
    for (let one = job; one.parent && found.length < 4;) {
      const { id: older, name, step } = one.parent;
      const read = new Curves(older, 1000);
      [one] = await Promise.all([get(`jobs/${encodeURIComponent(older)}`), read.refresh()]);
      found.push({ name, step, curves: read });
    }
    parents = found;
    if (!closed && parents.length > 0) showCurves();
  }

  // Of a run that diverges, a few values are so high that nothing else is seen beside them.
  function isWide(values) {
    const known = values.filter(Number.isFinite).sort((a, b) => a - b);
    return known.length > 0 && known[0] > 0 && known[known.length - 1] > 100 * known[known.length >> 1];
  }

  function showCurves() {
    if (!curves.data || !job || !quantity('loss')) return;
    blank.hidden = curves.data.step.length > 0;
    for (const one of [figures, bar, grid]) one.hidden = !blank.hidden;
    if (!blank.hidden) return;
    const shared = { mode, marks: curves.marks(details.happened.groups, mode) };
    const lost = curves.broken(mode);
    const evals = Object.entries(curves.data.evals).map(([name, one], i) => ({ name, color: ['--c2', '--c3', '--c5', '--c7'][i % 4], dots: true,
      x: one.step.map((step, k) => (mode === 'time' ? one.time[k] / 1000 : curves.at(step, mode))), y: one.loss }));
    shownUnasked().forEach((one, i) => {
      if (one.name === 'loss') {
        chart(one, { height: 260, big: true }).show({ ...shared, lanes: [{ color: '--c1', marks: shared.marks }], broken: lost, log, curves: [{ ...curve('training', 'loss', '--c1'), breaks: true }, ...evals, ...before('loss')] });
        return;
      }
      // The phases of a step, or what else is measured of its kind: memory has a part that is reserved.
      const parts = one.name === 'step_seconds' ? family(PHASES) : family(one.family).filter((other) => other !== one && other.member);
      const colour = LINES[i % LINES.length];
      const main = curve(one.member || (parts.length > 0 ? 'whole' : one.brief), one.name, colour);
      const lines = parts.filter(({ name }) => curves.data.values[name].max.some((value) => value > 0))
        .map((other, k) => ({ ...curve(other.member, other.name, COLORS.filter((mine) => mine !== colour)[k]), min: undefined, max: undefined }));
      chart(one, { tokens_per_second: { height: 260 }, step_seconds: { big: true } }[one.name]).show({ ...shared, broken: one.must_be_finite ? lost : [],
        log: one.spikes && parts.length === 0 && isWide(curves.data.values[one.name].max), curves: [main, ...lines, ...(one.compared ? before(one.name) : [])] });
    });
    const sets = Object.entries(curves.data.val_sets || {}).slice(0, COLORS.length).map(([name, one], i) => ({ name, color: COLORS[i], dots: true,
      x: one.step.map((step, k) => (mode === 'time' ? one.time[k] / 1000 : curves.at(step, mode))), y: one.loss }));
    if (sets.length > 0) {
      // Its first validation may come after the other charts.
      if (!charts.sets) charts.tokens_per_second.element.after(chart(quantity('val_loss'), { of: 'sets', title: 'Validation sets' }).element);
      charts.sets.show({ ...shared, log, curves: sets });
    }
    if (job.peak_flops > 0) {
      chart({ ...quantity('tokens_per_second'), name: 'mfu' }, { of: 'mfu', title: 'MFU', note: 'of the data sheet\'s dense bf16 rate', about: null, format: (value) => percent(value, 1), axis: percent })
        .show({ ...shared, curves: [curve('all GPUs', 'tokens_per_second', '--c3', job.flops_per_token / job.peak_flops)] });
    }
    if (gpus) showGpus(shared);
  }

  // Of all GPUs of the job: the mean, and a band from the least to the greatest.
  function showGpus(shared) {
    const x = { step: gpus.step, tokens: gpus.tokens, time: gpus.time.map((time) => time / 1000) }[mode];
    withCurve('gpu').forEach((one, i) => {
      const { mean, min, max } = gpus.values[one.name];
      const or = (column) => column.map((value, k) => (value === null ? mean[k] : value));
      chart(one).show({ ...shared, curves: [{ name: one.name, color: COLORS[(2 * i + 2) % COLORS.length], x, y: smooth(mean, weight), min: or(min), max: or(max) }] });
    });
  }

  async function refreshGpus() {
    const found = await get(`jobs/${encodeURIComponent(id)}/gpus`);
    if (closed || !found.step) return;
    gpus = found;
    showCurves();
  }

  function figure(name, value, note) {
    return h('div', {}, h('dt', {}, name), h('dd', {}, value, note && h('small', {}, note)));
  }

  function showFigures() {
    const mfu = job.peak_flops > 0 && job.tokens_per_second ? percent(job.tokens_per_second * job.flops_per_token / job.peak_flops, 1) : null;
    const running = runSeconds(job);
    update(figures,
      figure('Loss', lossText(job.loss, job.nonfinite)),
      figure('Validation', lossText(job.val_loss, job.val_nonfinite), job.val_step ? ` step ${number(job.val_step)}` : ''),
      figure('Throughput', job.tokens_per_second ? short(job.tokens_per_second) : '–', job.tokens_per_second ? ' tok/s' : ''),
      mfu && figure('MFU', mfu),
      figure('Step time', seconds(curves.data ? curves.last('step_seconds') : null)),
      figure('Tokens', short(job.total_tokens)),
      figure('Memory', bytes(curves.data ? curves.last('memory_bytes') : null)),
      figure('Run time', running === null ? '–' : span(running), job.restarts ? ` ${job.restarts} restart${job.restarts > 1 ? 's' : ''}` : ''),
      figure('Checkpoint', job.checkpoint_step ? `step ${number(job.checkpoint_step)}` : '–', job.checkpoint_time ? ` ${ago(job.checkpoint_time)}` : ''));
  }

  function ending() {
    if (!job.health.state.includes('ends in')) return '';
    return brief(Date.now() + job.eta_seconds * 1000);
  }

  function buttons() {
    const hasRanks = ['STARTING', 'RUNNING', 'STOPPING'].includes(job.state);
    const resumable = canResume(job);
    return h('div', { class: 'actions' },  // without a checkpoint a job would fail in the same way again: a clone comes first
      isActive(job) && h('button', { type: 'button', data: { act: 'stop' }, onclick: () => askStop(job, send) }, 'Stop…'),
      resumable && h('button', { type: 'button', class: job.checkpoint_step ? 'primary' : null, data: { act: 'resume' }, onclick: () => askResume(job, send) }, 'Resume…'),
      hasRanks && h('button', { type: 'button', data: { act: 'stacks' }, onclick: () => askStacks(send).then((done) => { if (done) details.refresh(); }) }, 'Dump stacks…'),
      job.state === 'RUNNING' && h('button', { type: 'button', data: { act: 'profile' }, onclick: () => traces.ask() }, 'Record trace…'),
      h('button', { type: 'button', data: { act: 'note' }, onclick: () => askNote(job, send) }, 'Note…'),
      h('button', { type: 'button', data: { act: 'label' }, onclick: () => askLabels(job, send) }, 'Labels…'),
      job.mutes?.length > 0 && h('button', { type: 'button', data: { act: 'unmute' }, onclick: () => askUnmute(job, send) }, 'Unmute…'),
      h('button', { type: 'button', class: resumable && !job.checkpoint_step ? 'primary' : null, data: { act: 'clone' }, onclick: () => askClone(job, send) }, 'Clone…'));
  }

  // What changed last, so that nobody has to look for it.
  function latest() {
    const { groups } = details.happened;
    const event = groups.length > 0 && groups[groups.length - 1].last;
    const said = [job.health.why, ...problemsOf(job).map(({ evidence }) => evidence)].filter(Boolean);
    if (event && said.some((one) => event.text.includes(one) || one.includes(event.text))) return false;  // it stands there already
    return event && h('p', { class: `latest ${event.severity}` }, h('time', { datetime: new Date(event.time).toISOString() }, ago(event.time)), h('b', {}, event.reason), h('span', {}, event.text));
  }

  // The problem first, in one line; what else there is to say stands below.
  function sentence() {
    const end = ending();
    const { level, state, why: said, words } = job.health;
    const why = problemsOf(job)[0]?.cause || said;
    const wrong = why && ['warning', 'bad'].includes(level);
    const at = end && h('span', { class: 'aside' }, `at ${end}`);
    return [h('h1', { class: 'sentence' }, h('i', { class: `dot ${level}`, 'aria-hidden': 'true' }), h('span', { title: wrong && why }, capital(wrong ? why : words), !wrong && at)),
      wrong && h('p', { class: 'second' }, capital(state), at)];
  }

  function showHead() {
    showProblems(problems, job);
    update(head,
      h('div', { class: 'names' }, h('a', { href: '#/' }, 'All jobs'), h('span', { class: 'muted' }, '/'), h('b', {}, job.name), h('code', {}, job.id), labels(job), badge(job)),
      buttons(),
      sentence(),
      latest(),
      h('div', { class: 'done' }, progress(job), h('span', {}, `${number(job.step)} of ${number(job.steps)} steps`)));
    document.title = `${job.steps > 0 ? Math.floor(100 * job.step / job.steps) : 0} % ${job.name}`;
  }

  const send = (verb, body) => post(`jobs/${job.id}/${verb}`, body);

  async function refreshCurves() {
    try {
      await curves.refresh();
      if (closed) return;
      showCurves();
      showFigures();
    } catch (error) {
      toast(error.message, true);
    }
  }

  function showJob() {
    showHead();
    showFigures();
    details.show(job);
  }

  function readSamples() {
    if (job.config.sample?.prompts?.length > 0) samples.refresh();
  }

  async function load() {
    try {
      const reading = Promise.all([curves.refresh(true), readQuantities()]);
      reading.catch(() => {});  // reported below
      const [found, list] = await Promise.all([get(`jobs/${encodeURIComponent(id)}`), get(`jobs/${encodeURIComponent(id)}/events`)]);
      if (closed) return;
      job = found;
      arrived = [];
      details.happened.show(list.events);
      newest = Math.max(0, ...list.events.map((event) => event.sequence));
      markSeen(job);
      setTokenFile(found.token_file);
      showHead();
      showFigures();
      await reading;
      if (closed) return;
      showCurves();
      showFigures();
      if (group.zoom) refine();
      await painted();  // the rest of the page may be later than the curves
      if (closed) return;
      details.show(job);
      readParents().catch(() => {});  // they may have been deleted meanwhile
      refreshGpus().catch((error) => toast(error.message, true));
      attention.refresh();
      details.refresh();
      traces.refresh();
      readSamples();
      stop();
      stop = follow(found.cursor, { job: id }, handlers);
    } catch (error) {
      if (closed) return;
      if (error.status === 404) replace(main, h('div', { class: 'blank' }, h('p', {}, `There is no job ${id}.`), h('p', {}, h('a', { href: '#/' }, 'All jobs'))));
      else {
        toast(error.message, true);
        setTimeout(() => { if (!closed) load(); }, 2000);
      }
    }
  }

  // All events of a frame at once: a job may have many.
  function showArrived() {
    const fresh = arrived.filter((event) => event.sequence > newest);
    arrived = [];
    if (closed || fresh.length === 0) return;
    for (const event of fresh) details.happened.add(event);
    newest = fresh[fresh.length - 1].sequence;
    showHead();
    if (fresh.some((event) => event.reason === 'PROFILED')) traces.refresh();
  }

  let slow = 0;
  const handlers = {
    reconnected: load,
    event: (event) => {
      arrived.push(event);
      if (arrived.length === 1) (document.hidden ? setTimeout : requestAnimationFrame)(showArrived);
    },
    job: (fresh) => {
      const next = { ...job, ...fresh };  // a message has what has changed
      const validated = next.val_step !== job.val_step || next.state !== job.state;
      const stepped = next.step !== job.step || validated;
      const saved = next.checkpoint_step !== job.checkpoint_step;
      const over = isActive(job) && !isActive(next);
      job = next;
      markSeen(job);
      showJob();
      if (stepped) refreshCurves();
      if (validated) readSamples();
      // Nothing follows the end of a job but what agents still send: the end of its log, and its stacks.
      if (over) setTimeout(() => { if (!closed) { details.refresh(); readSamples(); } }, 3000);
      if (saved || over || Date.now() - slow > 5000) {
        slow = Date.now();
        attention.refresh();
        details.refresh(saved);
        readSamples();  // they come after their validation
        refreshGpus().catch(() => {});  // the next time, perhaps
      }
    },
  };

  const recolour = () => { attention.redraw(); traces.redraw(); for (const one of Object.values(charts)) one.layout = ''; showCurves(); };
  document.addEventListener('theme', recolour);
  showAxis();
  showZoom();
  write();
  load();
  return {
    close: () => { closed = true; stop(); document.removeEventListener('theme', recolour); for (const one of Object.values(charts)) one.close(); details.close(); traces.close(); },
    key: (event) => { if (event.key >= '1' && event.key <= '3') setMode(MODES[Number(event.key) - 1][0]); },
  };
}
