// What people write about a job, and a new job like it: notes, labels, clones. `send` posts a change of the job.
import { requestId } from './api.js';
import { change } from './dialogs.js';
import { h } from './dom.js';

export function askNote(job, send) {
  const request = requestId();
  const text = h('textarea', { name: 'text', rows: '3', maxlength: '400', required: true, placeholder: 'What you changed, tried or saw' });
  change({ title: `Note on ${job.name}`, text: 'It stays among the events of the job, with your name and the time.', fields: [h('label', {}, 'Note', text)], agree: 'Write it',
    send: (data) => send('note', { text: data.get('text'), request_id: request }) }, 'The note is written.');
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
  change({ title: `Labels of ${job.name}`, text: 'One a line, as key=value. Labels choose jobs: in the filter of this page, and with nsactl list --label.', fields: [h('label', {}, 'Labels', text)], agree: 'Change the labels',
    send: async (data) => {
      const now = labelsIn(data.get('labels'));
      const set = Object.fromEntries(Object.entries(now).filter(([key, value]) => had[key] !== value));
      const remove = Object.keys(had).filter((key) => !(key in now));
      if (Object.keys(set).length + remove.length > 0) await send('label', { set, remove, request_id: request });
    } }, 'The labels are as you wrote them.');
}

// The settings of this job as a job file, with another name and folder.
export function askClone(job, send) {
  const request = requestId();
  const file = h('textarea', { name: 'text', rows: '20', required: true, spellcheck: 'false' });
  file.value = job.config_text.replace(/^name: .*$/m, `name: ${job.name}-clone`).replace(/^( +out_dir: ).*$/m, (_, key) => `${key}${JSON.stringify(`${job.out_dir}-clone`)}`);
  let made = '';
  change({ title: `A new job like ${job.name}`, text: 'Change what you want. It begins at step 0 and is checked by preflight; this job goes on.', wide: true, fields: [h('label', {}, 'Job file', file)], agree: 'Submit the new job',
    send: async (data) => { made = (await send('clone', { text: data.get('text'), request_id: request })).id; } }, 'The new job is in the queue.').then((done) => { if (done) location.hash = `#/job/${made}`; });
}
