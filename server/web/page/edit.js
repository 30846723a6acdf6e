// What people write about a job, and a new job like it: notes, labels, clones. `send` posts a change of the job.
import { get, post, requestId } from './api.js';
import { change, show } from './dialogs.js';
import { h, toast } from './dom.js';
import { number } from './format.js';
import { isActive } from './rows.js';

export function askStop(job, send) {
  const step = h('input', { name: 'at_step', type: 'number', min: String(Math.min(job.step + 1, job.steps)), max: String(job.steps), value: String(Math.min(job.steps, Math.ceil((job.step + 1) / 100) * 100)), 'aria-label': 'last step' });
  const choice = (value, text, more) => h('label', { class: 'choice' }, h('input', { type: 'radio', name: 'mode', value, checked: value === 'graceful' }), h('span', {}, text, more));
  const lost = Math.max(job.step - job.checkpoint_step, 0);
  const loses = lost > 0 ? `lose ${number(lost)} step${lost === 1 ? '' : 's'}` : 'lose nothing';
  const fields = [choice('graceful', 'After the step in progress, with a checkpoint'), choice('at_step', 'After step ', step), choice('now', `At once, without a checkpoint: ${loses}`)];
  const agree = (form) => {
    const mode = form.elements.mode.value;
    if (mode === 'at_step') return `Stop after step ${Number(step.value).toLocaleString('en-US')}`;
    return mode === 'now' ? `Stop now, ${loses}` : 'Stop the job';
  };
  // Typing a step chooses it.
  const chooseStep = () => {
    step.form.elements.mode.value = 'at_step';
    step.form.dispatchEvent(new Event('change'));
  };
  step.addEventListener('click', chooseStep);
  step.addEventListener('input', chooseStep);
  change({
    title: `Stop ${job.name}?`, text: 'A stopped job can be resumed from its newest checkpoint.', danger: true, agree, fields,
    send: (data) => send('stop', data.get('mode') === 'at_step' ? { mode: 'at_step', at_step: Number(data.get('at_step')) } : { mode: data.get('mode') }),
  }, 'The job was asked to stop.');
}

export const canResume = (job) => ['STOPPED', 'FAILED'].includes(job.state);

export function askResume(job, send) {
  const request = requestId();
  change({ title: `Resume ${job.name}?`, text: job.checkpoint_step ? `It continues from the checkpoint of step ${job.checkpoint_step}.` : 'It has no checkpoint and begins anew.', agree: 'Resume the job',
    send: () => send('resume', { request_id: request }) }, 'The job is in the queue.');
}

// Stops or resumes those of the jobs that can be. What one of them answers does not keep the others from it.
export function askMany(verb, jobs) {
  const wanted = jobs.filter(verb === 'stop' ? isActive : canResume);
  const requests = new Map(wanted.map((job) => [job.id, requestId()]));
  const body = (job) => (verb === 'stop' ? { mode: 'graceful' } : { request_id: requests.get(job.id) });
  const many = `${wanted.length} job${wanted.length === 1 ? '' : 's'}`;
  return change({ title: verb === 'stop' ? `Stop ${many}?` : `Resume ${many}?`, danger: verb === 'stop', agree: verb === 'stop' ? `Stop ${many}` : `Resume ${many}`,
    text: verb === 'stop' ? 'Each stops after the step in progress, with a checkpoint.' : 'Each continues from its newest checkpoint; one without any begins anew.',
    fields: [h('ul', { class: 'findings' }, wanted.map((job) => h('li', {}, job.name)))],
    send: async () => {
      const done = await Promise.allSettled(wanted.map((job) => post(`jobs/${job.id}/${verb}`, body(job))));
      const wrong = done.map(({ reason }, i) => reason && `${wanted[i].name}: ${reason.message}`).filter(Boolean);
      if (wrong.length > 0) throw new Error(wrong.join('\n'));
    } }, verb === 'stop' ? `${many} asked to stop.` : `${many} in the queue.`);
}

export function askStacks(send) {
  return change({ title: 'Dump the stacks of all ranks?', text: 'They are taken from outside the processes: training goes on. The coordinator keeps the newest 20 dumps of a job.', agree: 'Dump stacks',
    send: () => send('stacks') }, 'The stacks are saved; see Stacks on the job\'s page.');
}

export function askUnmute(job, send) {
  const request = requestId();
  change({ title: `Unmute ${job.name}?`, text: 'These problems will count as needing someone again.', fields: [h('ul', { class: 'findings' }, job.mutes.map(({ problem, who }) => h('li', {}, h('code', {}, problem), `by ${who}`)))], agree: 'Unmute all of them',
    send: () => send('mute', { mute: [], unmute: job.mutes.map(({ problem }) => problem), request_id: request }) }, 'Nothing is muted for this job.');
}

const LOG_LINES = 20;
const MOST_LOGS = 8;

// The end of the log of a rank; -1: of each.
export async function showLog(job, rank) {
  const ranks = rank >= 0 ? [rank] : Array.from({ length: Math.min(job.ranks, MOST_LOGS) }, (_, i) => i);
  const logs = await Promise.all(ranks.map((one) => get(`jobs/${job.id}/log`, { rank: String(one), lines: LOG_LINES })));
  show(`Log of ${job.name}`, { wide: true }, logs.flatMap((log, i) => [h('p', {}, `Rank ${ranks[i]}, the last ${LOG_LINES} lines`), h('pre', { class: 'log', tabindex: '0' }, log.text || 'Nothing was logged.')]),
    h('p', {}, h('a', { href: `#/job/${job.id}` }, 'Open the job')));
}

export function askNote(job, send) {
  const request = requestId();
  const text = h('textarea', { name: 'text', rows: '3', maxlength: '400', required: true, placeholder: 'What you changed, tried or saw' });
  change({ title: `Note on ${job.name}`, text: 'It stays among the events of the job, with your name and the time.', fields: [h('label', {}, 'Note', text)], agree: 'Add note',
    send: (data) => send('note', { text: data.get('text'), request_id: request }) }, 'Note added.');
}

// The labels of a text with one a line. Throws for a line that is none.
function labelsIn(text) {
  const labels = {};
  for (const line of text.split('\n').map((one) => one.trim()).filter((one) => one)) {
    const cut = line.indexOf('=');
    if (cut < 1) throw new Error(`'${line}' is not a label; write key=value`);
    labels[line.slice(0, cut).trim()] = line.slice(cut + 1).trim();
  }
  return labels;
}

// All labels are shown, one a line, and changed together. One that does not fit on a line stays as it is.
export function askLabels(job, send) {
  const request = requestId();
  const had = Object.fromEntries(Object.entries(job.labels).filter(([key, value]) => !`${key}${value}`.includes('\n')));
  const text = h('textarea', { name: 'labels', rows: '6', spellcheck: 'false', placeholder: 'team=vision' });
  text.value = Object.entries(had).map(([key, value]) => `${key}=${value}`).join('\n');
  let back = null;  // the change that takes this one back
  const undo = () => send('label', { ...back, request_id: requestId() }).then(() => toast('Change undone.'), (error) => toast(error.message, true));
  change({ title: `Labels of ${job.name}`, text: 'One a line, as key=value. Labels choose jobs: in the filter of this page, and with nsactl list --label.', fields: [h('label', {}, 'Labels', text)], agree: 'Change the labels',
    send: async (data) => {
      const now = labelsIn(data.get('labels'));
      const set = Object.fromEntries(Object.entries(now).filter(([key, value]) => had[key] !== value));
      const remove = Object.keys(had).filter((key) => !(key in now));
      if (Object.keys(set).length + remove.length === 0) return;
      await send('label', { set, remove, request_id: request });
      back = { set: Object.fromEntries([...remove, ...Object.keys(set)].filter((key) => key in had).map((key) => [key, had[key]])), remove: Object.keys(set).filter((key) => !(key in had)) };
    } }, () => toast('Labels changed.', false, back && { text: 'Undo', act: undo }));
}

// The text of a job file with another value of a key; null if the key is not in it.
function withOwnKey(text, path, value) {
  const keys = path.split('.');
  const lines = text.split('\n');
  let depth = 0;
  let indent = -1;  // of the key that the next one is in
  let inner = 0;    // of the keys in it
  for (let i = 0; i < lines.length; ++i) {
    const [, space, key] = /^( *)([^ :#]+):/.exec(lines[i]) || [];
    if (key === undefined) continue;
    if (space.length <= indent) return null;  // the part of the file that may have it is over
    if (inner < 0) inner = space.length;
    if (space.length !== inner || key !== keys[depth]) continue;
    indent = space.length;
    inner = -1;
    if (++depth < keys.length) continue;
    lines[i] = `${space}${key}: ${value}`;
    return lines.join('\n');
  }
  return null;
}

// The same; a key that the file does not have is added to its part.
export function withKey(text, path, value) {
  const changed = withOwnKey(text, path, value);
  if (changed !== null) return changed;
  const [part, key] = path.split('.');
  if (key === undefined) return `${path}: ${value}\n${text}`;
  const head = new RegExp(`^${part}:[ ]*$`, 'm');
  return head.test(text) ? text.replace(head, `${part}:\n  ${key}: ${value}`) : `${text.trimEnd()}\n${part}:\n  ${key}: ${value}\n`;
}

// The job file of a job with `end` added to its name and folder. What this job waited for is over.
function renamed(job, end) {
  return job.config_text.replace(/^(?:after|not_before):.*\n(?:[ -].*\n)*/gm, '').replace(/^name: .*$/m, `name: ${job.name}${end}`)
    .replace(/^( +out_dir: ).*$/m, (_, key) => `${key}${JSON.stringify(`${job.out_dir}${end}`)}`);
}

// The lines that one text has and the other has not.
function differences(before, after) {
  const [old, fresh] = [before, after].map((text) => text.split('\n').filter((line) => line.trim()));
  return [...old.filter((line) => !fresh.includes(line)).map((line) => `− ${line.trim()}`), ...fresh.filter((line) => !old.includes(line)).map((line) => `+ ${line.trim()}`)];
}

// Chooses the line that an error names, as in job.yaml:55:3.
function goTo(file, error) {
  const line = Number(/:(\d+):\d+:/.exec(error.message)?.[1]);
  const lines = file.value.split('\n');
  if (!(line > 0 && line <= lines.length)) return;
  const from = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  file.focus();
  file.setSelectionRange(from, from + lines[line - 1].length);
  file.scrollTop = file.scrollHeight * (line - 5) / lines.length;
}

// Goes to the job that is made of this text once it is changed.
function submit(job, send, title, text, value) {
  const request = requestId();
  const changed = h('pre', { class: 'changed', tabindex: '0', role: 'region', 'aria-label': 'What is changed' });
  const file = h('textarea', { name: 'text', rows: '18', required: true, spellcheck: 'false', oninput: () => { changed.textContent = differences(job.config_text, file.value).join('\n'); } });
  file.value = value;
  file.dispatchEvent(new Event('input'));
  let made = '';
  change({ title, text, wide: true, fields: [h('label', {}, 'Job file', file), changed], agree: 'Submit the new job',
    send: async (data) => {
      made = (await send('clone', { text: data.get('text'), request_id: request }).catch((error) => { goTo(file, error); throw error; })).id;
    } }, 'The new job is in the queue.').then((done) => { if (done) location.hash = `#/job/${made}`; });
}

function said(changes) {
  const all = Object.entries(changes).map(([key, value]) => `${key}: ${value}`).join(', ');
  return all && `Changed already: ${all}.`;
}

// The settings of this job as a job file, with another name and folder, and with `changes`: {key: value}.
export function askClone(job, send, changes = {}) {
  const own = renamed(job, '-clone');
  submit(job, send, `A new job like ${job.name}`, [said(changes), 'Change what you want. The new job begins at step 0 and preflight checks it; this job is not affected.'].filter(Boolean),
    Object.entries(changes).reduce((text, [key, value]) => withKey(text, key, value), own));
}

// A new job that goes on at a checkpoint of this one, with `changes`, as nsactl fork makes it.
export function askFork(job, send, { step, path }, changes = {}) {
  const own = Object.entries({ ...(job.config.restart?.init && { 'restart.init': '""' }), 'restart.resume': JSON.stringify(path), ...changes });
  submit(job, send, `A fork of ${job.name} at step ${number(step)}`, [said(changes), 'The new job continues from this checkpoint with what you change here, and preflight checks it; this job is not affected.'].filter(Boolean),
    own.reduce((text, [key, value]) => withKey(text, key, value), renamed(job, `-at-${step}`)));
}
