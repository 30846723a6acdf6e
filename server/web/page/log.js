// The log of a job: of a rank or of all of them, with search, the newest lines as they come, and all of it as a file.
import { get } from './api.js';
import { h, replace } from './dom.js';
import { isActive } from './rows.js';

const LINES = 1000;      // of one rank
const MOST_RANKS = 16;   // that are read together; of each, fewer lines
const AGAIN = 2000;      // milliseconds
const TIME = /^\d{4}-\d\d-\d\dT[0-9:.]+Z/;
const LEVELS = { W: 'warning', E: 'bad', C: 'bad' };

// Lines of several ranks by their times. One without a time belongs to the one before it.
function merged(logs) {
  const lines = logs.flatMap(({ rank, text }) => {
    let time = '';
    return text.split('\n').filter((line) => line).map((line) => {
      time = TIME.exec(line)?.[0] || time;
      return { time, line: `rank ${rank}  ${line}`, plain: line };
    });
  });
  return lines.map((one, i) => ({ ...one, i })).sort((a, b) => (a.time < b.time ? -1 : Number(a.time > b.time)) || a.i - b.i);
}

// A line with what was looked for marked.
function lineElement({ line, plain }, wanted) {
  const level = LEVELS[TIME.test(plain) && plain.replace(TIME, '').trimStart()[0]];
  const at = wanted ? line.toLowerCase().indexOf(wanted) : -1;
  const text = at < 0 ? [line] : [line.slice(0, at), h('mark', {}, line.slice(at, at + wanted.length)), line.slice(at + wanted.length)];
  return h('div', { class: level || null }, text);
}

export function logSection(id, current) {
  const path = `jobs/${encodeURIComponent(id)}/log`;
  const rank = h('select', { 'aria-label': 'Rank', onchange: () => read() });
  const search = h('input', { type: 'search', placeholder: 'Search', 'aria-label': 'Search the log', oninput: () => draw() });
  const follow = h('input', { type: 'checkbox', checked: true, onchange: () => read() });
  const count = h('output', { class: 'muted' });
  const file = h('a', { class: 'button', data: { act: 'log-file' } }, 'Download');
  const box = h('div', { class: 'log', role: 'log', tabindex: '0', 'aria-label': 'Log' });
  const element = h('details', { ontoggle: () => read() }, h('summary', {}, 'Log'),
    h('div', { class: 'filters' }, h('label', { class: 'inline' }, 'Rank', rank), search, h('label', { class: 'inline' }, follow, 'Follow'), count, h('span', { class: 'grow' }), h('span', { class: 'muted' }, 'times are UTC'), file), box);
  let lines = [];
  let shown = '';
  let asked = 0;  // the latest request; answers of earlier ones are dropped

  function draw() {
    const wanted = search.value.trim().toLowerCase();
    const found = wanted ? lines.filter(({ line }) => line.toLowerCase().includes(wanted)) : lines;
    count.textContent = wanted ? `${found.length} of ${lines.length} lines` : `the last ${lines.length} lines`;
    const atEnd = follow.checked || box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
    replace(box, found.length === 0 && h('span', { class: 'muted' }, lines.length > 0 ? 'No matching lines.' : 'Nothing was logged.'), found.map((line) => lineElement(line, wanted)));
    if (atEnd) box.scrollTop = box.scrollHeight;
  }

  async function read() {
    const job = current();
    if (!job) return;
    const { ranks } = job;
    if (rank.options.length !== ranks + (ranks > 1 ? 1 : 0)) {
      replace(rank, ranks > 1 && h('option', { value: 'all' }, ranks > MOST_RANKS ? `0–${MOST_RANKS - 1}` : 'all'), Array.from({ length: ranks }, (_, i) => h('option', { value: String(i) }, String(i))));
      rank.value = '0';
    }
    if (!element.open) return;
    const all = rank.value === 'all';
    const wanted = all ? Array.from({ length: Math.min(ranks, MOST_RANKS) }, (_, i) => i) : [Number(rank.value || 0)];
    file.hidden = all;
    file.href = `api/v1/${path}?rank=${wanted[0]}&file=1`;
    file.download = `${job.name || id}.rank-${wanted[0]}.log`;
    const mine = ++asked;
    const logs = await Promise.all(wanted.map((one) => get(path, { rank: one, lines: Math.ceil(LINES / wanted.length) }).catch((error) => ({ rank: one, text: error.message }))));
    if (mine !== asked) return;
    const text = JSON.stringify([rank.value, logs.map((log) => log.text)]);
    if (text === shown) return;
    shown = text;
    lines = all ? merged(logs.map((log, i) => ({ ...log, rank: wanted[i] }))) : logs[0].text.split('\n').filter((line) => line).map((line) => ({ line, plain: line }));
    draw();
  }

  const timer = setInterval(() => { if (element.open && follow.checked && !document.hidden && current() && isActive(current())) read(); }, AGAIN);
  return { element, refresh: read, close: () => clearInterval(timer) };
}
