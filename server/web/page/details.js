// The lower half of a job's page: events, ranks, checkpoints, log, stacks, configuration.
import { get, post } from './api.js';
import { change } from './dialogs.js';
import { askFork } from './edit.js';
import { logSection } from './log.js';
import { h, replace, update } from './dom.js';
import { ago, bytes, clock, number, percent, short } from './format.js';
import { Happened, isActive } from './rows.js';

export function detailSection(id, current) {
  const path = `jobs/${encodeURIComponent(id)}`;
  const events = h('ol', { class: 'events', tabindex: '0', 'aria-label': 'What happened' });
  const ranks = h('div', { class: 'lanes' });
  const checkpoints = h('div', { class: 'scroll checkpoints', tabindex: '0', role: 'region', 'aria-label': 'Checkpoints' });
  const data = h('section', { hidden: true });
  const stacks = h('div');
  const log = logSection(id, current);
  const config = h('div');
  const element = h('div', {},
    h('div', { class: 'columns' },
      h('section', {}, h('h2', {}, 'What happened'), events),
      h('div', {}, h('section', {}, h('h2', {}, 'Ranks'), ranks), h('section', {}, h('h2', {}, 'Checkpoints'), checkpoints), h('section', { class: 'stacks', hidden: true }, h('h2', {}, 'Stacks'), stacks))),
    data, h('section', {}, log.element), h('section', {}, config));
  const happened = new Happened(events);
  let shown = '';
  let written = '';

  function showRanks(job) {
    const status = job.rank_status || [];
    update(ranks, status.length === 0 && h('p', { class: 'muted' }, isActive(job) ? 'No rank runs yet.' : 'No rank runs: the job has ended.'), status.map((one) => {
      const level = one.note || one.error || one.state === 'UNKNOWN' ? 'warning' : one.state === 'RUNNING' ? 'good' : 'waiting';
      const behind = h('i');
      behind.style.width = `${100 * Math.min(one.step / Math.max(job.steps, 1), 1)}%`;
      return h('div', { class: `lane ${level}` }, h('b', {}, `rank ${one.rank}`), h('span', { class: 'muted' }, one.node), h('div', { class: `progress ${level}` }, behind),
        h('span', {}, `step ${number(one.step)}`), h('span', { class: 'phase' }, one.note || one.error || one.phase || one.state.toLowerCase()));
    }));
  }

  function files(one) {
    return h('td', { title: one.paths.join('\n') }, h('code', {}, one.paths[0] || ''), one.paths.length > 1 && ` and ${one.paths.length - 1} more`);
  }

  function table(titles, rows) {
    return h('table', {}, h('thead', {}, h('tr', {}, titles.map((title, i) => h('th', { class: i > 0 && i < titles.length - 1 ? 'num' : null }, title)))), h('tbody', {}, rows));
  }

  // What data.mix asks for and what came of it, and the named validation sets.
  function showData(job) {
    const sources = job.sources || [];
    const sets = job.val_sets || [];
    const nulls = job.null_rows || 0;
    const empty = job.empty_files || 0;
    const warnings = job.data_warnings || [];
    data.hidden = sources.length + sets.length + nulls + empty + warnings.length === 0;
    const rows = sources.reduce((sum, one) => sum + one.rows, 0);
    update(data, h('h2', {}, 'Data'),
      nulls > 0 && h('p', { class: 'muted' }, `${nulls.toLocaleString('en-US')} lines and rows of the files without a text (null) were skipped.`),
      empty > 0 && h('p', { class: 'muted' }, `${empty.toLocaleString('en-US')} empty ${empty === 1 ? 'file was' : 'files were'} skipped.`),
      warnings.length > 0 && h('ul', { class: 'findings' }, warnings.map((text) => h('li', {}, h('b', { class: 'label warn' }, 'warning'), text))),
      sources.length > 0 && h('div', { class: 'scroll sources', tabindex: '0', role: 'region', 'aria-label': 'Sources' }, table(['Source', 'Weight', 'Share', 'Epoch', 'Loss', 'Files'], sources.map((one) => h('tr', {}, h('td', {}, one.name),
        h('td', { class: 'num' }, number(one.weight)), h('td', { class: 'num' }, rows > 0 ? percent(one.rows / rows, 1) : '–'), h('td', { class: 'num' }, rows > 0 ? String(one.epoch) : '–'), h('td', { class: 'num' }, number(one.loss)), files(one))))),
      sets.length > 0 && h('div', { class: 'scroll sets', tabindex: '0', role: 'region', 'aria-label': 'Validation sets' }, table(['Validation set', 'Loss', 'Tokens', 'Files'], sets.map((one) => h('tr', {}, h('td', {}, one.name),
        h('td', { class: 'num' }, number(one.loss)), h('td', { class: 'num' }, short(one.tokens)), files(one))))));
  }

  function showConfig(job) {
    if (shown === job.config_text) return;
    shown = job.config_text;
    const waived = Object.entries(job.waivers);
    replace(config,
      h('details', { open: true }, h('summary', {}, 'Preflight'),
        waived.length + job.warnings.length === 0 && h('p', { class: 'muted' }, 'No waivers and no warnings.'),
        h('ul', { class: 'findings' }, waived.map(([rule, reason]) => h('li', {}, h('b', { class: 'label warn' }, 'waived'), h('code', {}, rule), reason)),
          job.warnings.map((finding) => h('li', {}, h('b', { class: 'label warn' }, 'warning'), h('code', {}, finding.field), `${finding.problem}; ${finding.fix}`)))),
      h('details', {}, h('summary', {}, 'Configuration'), h('p', { class: 'muted' }, `hash ${job.config_hash}; files in `, h('code', {}, job.out_dir)), h('pre', { class: 'log' }, job.config_text)));
  }

  function show(job) {
    showRanks(job);
    showData(job);
    showConfig(job);
  }

  function askPin(checkpoint) {
    const pinned = !checkpoint.pinned;
    change({ title: pinned ? `Keep the checkpoint of step ${checkpoint.step}?` : `No longer keep the checkpoint of step ${checkpoint.step}?`,
      text: pinned ? 'A pinned checkpoint is never deleted by train.keep_checkpoints.' : 'It is deleted once there are train.keep_checkpoints newer ones.', agree: pinned ? 'Pin it' : 'Unpin it',
      send: () => post(`${path}/pin`, { step: checkpoint.step, pinned }) }, pinned ? 'The checkpoint is pinned.' : 'The checkpoint is no longer pinned.').then((done) => { if (done) readCheckpoints(); });
  }

  async function readCheckpoints() {
    const found = await get(`${path}/checkpoints`).catch(() => null);
    if (!found) return;
    const list = found.checkpoints.slice().reverse();
    if (JSON.stringify(list) === written) return;
    written = JSON.stringify(list);
    replace(checkpoints, list.length === 0 ? h('p', { class: 'muted' }, 'No checkpoint yet.') : h('table', {}, h('thead', {}, h('tr', {}, h('th', { class: 'num' }, 'Step'), h('th', { class: 'num' }, 'Validation'), h('th', { class: 'num' }, 'Size'), h('th', { class: 'num' }, 'Written'), h('th', {}, 'Kept'), h('th', {}, h('span', { class: 'hidden' }, 'Fork')))),
      h('tbody', {}, list.map((one) => h('tr', { title: one.path }, h('td', { class: 'num' }, one.step.toLocaleString('en-US')), h('td', { class: 'num' }, number(one.val_loss)), h('td', { class: 'num' }, bytes(one.bytes)), h('td', { class: 'num' }, ago(one.time)),
        h('td', {}, one.error ? h('span', { class: 'bad' }, one.error) : h('button', { type: 'button', class: 'quiet', data: { act: 'pin', step: String(one.step) }, onclick: () => askPin(one) }, one.pinned ? 'pinned' : 'pin…')),
        h('td', {}, !one.error && h('button', { type: 'button', class: 'quiet', title: 'A new job that continues from this checkpoint', data: { act: 'fork', step: String(one.step) }, onclick: () => askFork(current(), (verb, body) => post(`${path}/${verb}`, body), one) }, 'fork…')))))));
  }

  async function readStacks() {
    const found = await get(`${path}/stacks`).catch(() => null);
    if (!found) return;
    stacks.parentElement.hidden = found.stacks.length === 0;
    replace(stacks, h('ul', { class: 'findings' }, found.stacks.slice().reverse().map((one) => h('li', {}, h('a', { href: `api/v1/${path}/stacks/${one.id}`, target: '_blank', rel: 'noopener' }, `${clock(one.time)}`), one.why))));
  }

  function refresh(all = true) {
    log.refresh();
    readStacks();
    if (all || current().state !== 'RUNNING') readCheckpoints();
  }

  return { element, happened, show, refresh, close: () => log.close() };
}
