// The filter of the list. A word is a part of a name or an id, `team=lm` a label, `state=failed` a state, `train.lr>1e-3` a key of the job file, and `val<1.7` a figure. All must hold.
import { get } from './api.js';
import { bestOf, runSeconds } from './rows.js';

export const FIGURES = { loss: (job) => job.loss, val: (job) => job.val_loss, best: bestOf, step: (job) => job.step, steps: (job) => job.steps, progress: (job) => job.step / job.steps, speed: (job) => job.tokens_per_second,
  tokens: (job) => job.total_tokens, left: (job) => job.eta_seconds, ran: runSeconds, restarts: (job) => job.restarts, ranks: (job) => job.ranks };

const TERM = /^([^=<>!]+)(<=|>=|!=|=|<|>)(.*)$/;

function holds(actual, operator, wanted) {
  const [one, other] = [Number(actual), Number(wanted)];
  const known = actual !== null && actual !== undefined && actual !== '' && Number.isFinite(one) && Number.isFinite(other);
  if (operator === '=') return known ? one === other : String(actual ?? '') === wanted;
  if (operator === '!=') return !holds(actual, '=', wanted);
  if (!known) return false;
  return { '<': one < other, '>': one > other, '<=': one <= other, '>=': one >= other }[operator];
}

// `asked`: what the coordinator looks for, among all jobs; `tests`: what else must hold, of (job, configuration); `keys`: the tests need configurations.
export function parse(text) {
  const asked = { state: '', name: '', label: '' };
  const tests = [];
  let keys = false;
  for (const term of text.split(/\s+/).filter(Boolean)) {
    const [, key, operator, value] = TERM.exec(term) || [];
    if (key === undefined) {
      if (!asked.name) asked.name = term;
      else tests.push((job) => job.name.toLowerCase().includes(term.toLowerCase()) || job.id.includes(term));
    } else if (value === '') {
      continue;  // it is being typed
    } else if (key === 'state' && operator === '=') {
      asked.state = value;
    } else if (key === 'state') {
      tests.push((job) => operator !== '!=' || ![job.state, job.title].some((word) => word.toLowerCase().startsWith(value.toLowerCase())));
    } else if (key === 'owner') {
      const begins = (job) => (job.owner || '').toLowerCase().startsWith(value.toLowerCase());
      tests.push((job) => (operator === '!=' ? !begins(job) : operator === '=' && begins(job)));
    } else if (key in FIGURES) {
      tests.push((job) => holds(FIGURES[key](job), operator, value));
    } else if (operator === '=' && !key.includes('.') && !asked.label) {
      asked.label = term;
    } else {
      keys ||= key.includes('.');
      const part = (label) => operator === '=' && !key.includes('.') && label?.startsWith(value);
      tests.push((job, config) => part(job.labels[key]) || holds(job.labels[key] ?? config?.[key], operator, value));
    }
  }
  return { asked, tests, keys };
}

// A value as a job file has it: 'BRANCH_CMP' of nsa.branches is 'cmp', 'DATA_SOURCE_TEXT' of data.source is 'text'. Names and labels are anybody's words.
function word(path, value) {
  const text = value !== null && typeof value === 'object' ? JSON.stringify(value) : String(value);
  if (path.startsWith('labels') || path === 'name' || text !== text.toUpperCase()) return text;
  const whole = path.toUpperCase().replaceAll('.', '_');
  const key = path.split('.').pop().toUpperCase();
  const prefix = [whole, key, key.replace(/S$/, ''), key.replace(/ES$/, ''), key.split('_').pop()].find((one) => text.startsWith(`${one}_`));
  return prefix ? text.slice(prefix.length + 1).toLowerCase() : text;
}

// Maps of a job whose values JSON wraps in an object with one key, which a job file does not have: data.where.source is {value: ['a']}.
const opened = (map, key, then = (one) => one) => Object.fromEntries(Object.entries(map).map(([name, one]) => [name, then(one[key] ?? [])]));
const fields = (map) => opened(map, 'value');
const sets = (map) => opened(map, 'field', fields);
const WRAPPED = { 'data.where': fields, 'data.except': fields, 'data.val_where': sets, 'data.val_except': sets };

// {a: {b: 1}} → {'a.b': '1'}
export function flatten(value, path = '', into = {}) {
  if (WRAPPED[path]) value = WRAPPED[path](value ?? {});
  if (value !== null && typeof value === 'object' && !Array.isArray(value)) {
    for (const [name, inner] of Object.entries(value)) flatten(inner, path ? `${path}.${name}` : name, into);
  } else {
    into[path] = [].concat(value).map((one) => word(path, one)).join(', ');
  }
  return into;
}

// The keys in which the data of these flat configurations differ; losses are compared only where there is none.
export function differentData(flat) {
  const keys = [...new Set(flat.flatMap(Object.keys))].filter((key) => key.startsWith('data.') || key === 'train.seq_len');
  return keys.filter((key) => flat.some((one) => one[key] !== flat[0][key])).sort();
}

// Flat configurations by the ids of jobs. They never change, so each is read once.
export class Configs {
  constructor() {
    this.known = new Map();
  }

  of(id) {
    return this.known.get(id);
  }

  // True when something was read.
  async need(ids) {
    const missing = ids.filter((id) => !this.known.has(id));
    let some = false;
    const next = async () => {
      for (let id = missing.pop(); id !== undefined; id = missing.pop()) {
        // It may have been deleted; after another error it is asked for again.
        const job = await get(`jobs/${encodeURIComponent(id)}`).catch((error) => (error.status === 404 ? { config: {} } : null));
        if (!job) continue;
        this.known.set(id, flatten(job.config));
        some = true;
      }
    };
    await Promise.all([next(), next(), next(), next()]);
    return some;
  }
}
