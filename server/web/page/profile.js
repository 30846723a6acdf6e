// Traces of a job: asks for one, shows how far it is, and what was recorded as a file and as a picture.
import { get, getFile, hasToken, postLines } from './api.js';
import { askToken, change } from './dialogs.js';
import { h, replace, save, toast, update } from './dom.js';
import { bytes, clock } from './format.js';
import { Timeline, topTable } from './timeline.js';
import { readTrace } from './trace.js';

const MOST_STEPS = 100;
const LARGEST_PICTURE = 32 * 2 ** 20;  // compressed; what is larger is for Perfetto only

export function traceSection(id, current) {
  const path = `jobs/${encodeURIComponent(id)}`;
  const status = h('div', { class: 'recording' });
  const list = h('ul', { class: 'trace-files' });
  const picture = h('div', { class: 'trace-picture' });
  const element = h('section', { class: 'traces', hidden: true }, h('h2', {}, 'Traces'), status, list, picture);
  let recording = null;  // aborts it
  let timeline = null;
  let shown = null;
  let file = null;  // the trace that was fetched last
  let known = [];
  let closed = false;

  function appear() {
    element.hidden = !recording && known.length === 0 && status.childElementCount === 0;
  }

  function showProgress(steps, ranks) {
    const state = (one) => (one.error ? 'failed' : one.size > 0 ? `${bytes(one.received)} of ${bytes(one.size)}` : 'recording');
    update(status, h('p', { role: 'status' }, `Recording ${steps} step${steps > 1 ? 's' : ''} of ${ranks.length || 'all'} rank${ranks.length === 1 ? '' : 's'}; training goes on.`),
      h('button', { type: 'button', data: { act: 'cancel-trace' }, onclick: () => recording?.abort() }, 'Cancel'),
      h('ul', { class: 'runs' }, ranks.map((one) => h('li', { class: one.error ? 'bad' : 'muted', title: one.error }, `rank ${one.rank}: ${state(one)}`))));
    appear();
  }

  function say(text, bad = false) {
    replace(status, text ? h('p', { class: bad ? 'bad' : 'muted', role: 'status' }, text) : null);
    appear();
  }

  // Until the coordinator has the trace. What went wrong stays on the page.
  async function wait(steps, messages) {
    showProgress(steps, []);
    element.scrollIntoView({ block: 'nearest' });
    try {
      let last = {};
      for await (last of messages) if (last.ranks && !closed) showProgress(steps, last.ranks);
      if (last.error) throw new Error(last.error);
      if (!last.trace) throw new Error('the coordinator ended before the trace was there; record another');
      recording = null;
      if (closed) return;
      say(last.problems.length > 0 ? `Some ranks gave no trace: ${last.problems.join('; ')}` : '', true);
      await refresh();
      await show(last.trace);
    } catch (error) {
      const left = recording?.signal.aborted;
      recording = null;
      if (!closed) say(left ? '' : `No trace: ${error.message}`, true);
    }
  }

  function ask() {
    const job = current();
    const abort = new AbortController();
    let messages;
    let steps;
    const field = h('input', { name: 'steps', type: 'number', min: '1', max: String(MOST_STEPS), value: '3', required: true });
    change({ title: `Record a trace of ${job.name}?`, text: 'All ranks record the same whole steps: phases, layers, kernels and collectives. Training goes on and computes the same bits.',
      fields: [h('label', {}, `Steps (1 to ${MOST_STEPS})`, field)], agree: 'Record',
      send: async (data) => { steps = Number(data.get('steps')); messages = await postLines(`${path}/profile`, { steps }, abort.signal); } }, 'Recording; see Traces below.').then((done) => {
      if (!done) return;
      recording = abort;
      wait(steps, messages);
    });
  }

  // The file, which needs the token; null when nobody gives it.
  async function fetched(trace) {
    if (file?.id === trace.id) return file.blob;
    if (!hasToken() && !(await askToken())) return null;
    const blob = await getFile(`${path}/traces/${trace.id}`);
    file = { id: trace.id, blob };
    return blob;
  }

  async function download(trace) {
    try {
      const blob = await fetched(trace);
      if (!blob) return;
      save(blob, trace.name);
    } catch (error) {
      toast(error.message, true);
    }
  }

  async function show(trace) {
    try {
      const blob = trace.bytes > LARGEST_PICTURE ? null : await fetched(trace);
      if (closed || (!blob && trace.bytes <= LARGEST_PICTURE)) return;
      if (timeline) timeline.close();
      timeline = null;
      shown = trace.id;
      if (!blob) {
        replace(picture, h('p', { class: 'muted' }, `${bytes(trace.bytes)} are too much for a picture here (${bytes(LARGEST_PICTURE)}); open the file in Perfetto.`));
      } else {
        replace(picture, h('p', { class: 'muted' }, 'Reading the trace…'));
        const read = await readTrace(blob);
        if (closed) return;
        timeline = new Timeline(read);
        replace(picture, h('h3', {}, `Steps ${read.first_step} to ${read.last_step}`), read.notes.length > 0 && h('p', { class: 'muted' }, read.notes.join('; ')), timeline.element,
          h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'What takes the most time' }, topTable(read)));
      }
      showList();
    } catch (error) {
      replace(picture);
      toast(error.message, true);
    }
  }

  function showList() {
    replace(list, known.map((trace) => h('li', {}, h('b', {}, trace.name), h('span', { class: 'muted' }, `${bytes(trace.bytes)}, ${clock(trace.time)}`),
      h('button', { type: 'button', data: { act: 'download' }, onclick: () => download(trace) }, 'Download'),
      h('button', { type: 'button', data: { act: 'show-trace' }, 'aria-pressed': String(shown === trace.id), onclick: () => show(trace) }, 'Show'))),
      known.length > 0 && h('li', { class: 'muted' }, 'ui.perfetto.dev opens the same file. The coordinator keeps the newest four traces until it ends.'));
    appear();
  }

  async function refresh() {
    const found = await get(`${path}/traces`).catch(() => null);
    if (!found || closed || JSON.stringify(found.traces) === JSON.stringify(known)) return;
    known = found.traces;
    showList();
  }

  return { element, ask, refresh, redraw: () => timeline?.draw(),
    close: () => { closed = true; recording?.abort(); timeline?.close(); } };
}
