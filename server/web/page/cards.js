// What needs someone: at most three cards, the worst first, with the buttons that mend it. They stand in the list of jobs and on the job's page.
import { get, post, requestId } from './api.js';
import { change } from './dialogs.js';
import { askClone, askFork, askResume, askStacks, askStop, showLog } from './edit.js';
import { copyText, h, toast, update } from './dom.js';
import { ago, capital, number } from './format.js';
import { isActive, needsYou } from './rows.js';

const MOST = 3;

// Those that count, the worst first.
export function problemsOf(job) {
  return (job.problems || []).filter((one) => one.level !== 'note' && !one.muted);
}

// A coordinator without verdicts sends rows only.
function cardOf(job) {
  const [problem] = problemsOf(job);
  const actions = job.state === 'FAILED' ? [{ action: 'resume', text: job.checkpoint_step ? `Resume from ${number(job.checkpoint_step)}` : 'Resume' }, { action: 'log', text: 'Log, last 20 lines', rank: 0 }]
    : isActive(job) && job.health.level === 'bad' ? [{ action: 'stop', text: 'Stop' }, { action: 'clone', text: 'Clone' }] : [];
  return { id: job.id, name: job.name, level: job.health.level, cause: capital(job.health.why || job.health.words), evidence: job.health.why ? capital(job.health.state) : '',
    since: job.ended, since_step: null, actions, ...problem, state: job.state, more: Math.max(0, (job.problems?.length || 1) - 1) };
}

async function askMute(card, send) {
  const request = requestId();
  const ended = !isActive(card);
  await change({ title: ended ? `Mark as seen: ${card.name}` : `Mute this problem of ${card.name}?`, agree: ended ? 'Mark as seen' : 'Mute until it ends',
    text: `${card.cause}. ${ended ? 'It no longer counts as needing someone, unless the job is resumed.' : 'It does not count as needing someone until the job ends.'} Its events are still recorded.`,
    send: () => send('mute', { mute: [card.word], unmute: [], request_id: request }) }, ended ? 'Marked as seen.' : 'Muted.');
}

// To a part of this page, or to the page that has it.
function goTo(part, address) {
  const there = document.querySelector(part);
  if (there) there.scrollIntoView({ behavior: 'smooth' });
  else location.hash = address;
}

async function act(card, action) {
  const send = (verb, body) => post(`jobs/${card.id}/${verb}`, body);
  const whole = () => get(`jobs/${encodeURIComponent(card.id)}`);
  if (action.action === 'stop') askStop(await whole(), send);
  else if (action.action === 'resume') askResume(await whole(), send);
  else if (action.action === 'clone') {
    const { 'restart.resume': path, ...changes } = action.set || {};
    if (path) askFork(await whole(), send, { step: Number(/\d+$/.exec(path)), path }, changes);
    else askClone(await whole(), send, changes);
  }
  else if (action.action === 'log') showLog(await whole(), action.rank ?? 0);
  else if (action.action === 'stacks') askStacks(send);
  else if (action.action === 'mute') askMute(card, send);
  else if (action.action === 'nodes') goTo('.machines', '#/');
  else if (['checkpoints', 'events'].includes(action.action)) goTo(`.job .${action.action}`, `#/job/${card.id}`);
  else if (!action.command) location.hash = `#/job/${card.id}`;
  else if (await copyText(action.command)) toast(`Copied: ${action.command}`);
  else toast(action.command);
}

const ASKS = ['stop', 'resume', 'clone', 'stacks', 'mute'];

function button(card, action, first) {
  const look = action.action === 'stop' ? 'stop' : first ? 'primary' : null;
  return h('button', { type: 'button', class: look, data: { act: `card-${action.action}` }, title: action.command || null, onclick: () => act(card, action).catch((error) => toast(error.message, true)) },
    ASKS.includes(action.action) ? `${action.text}…` : action.text);
}

function sinceText(card) {
  return [card.since_step && `since step ${number(card.since_step)}`, card.since && ago(card.since)].filter(Boolean).join(', ');
}

// `head`: what stands above the evidence; `more`: below it.
function cardElement(card, head, more = []) {
  return h('article', { class: `card ${card.level}`, data: { act: `card ${card.id} ${card.word} ${JSON.stringify(card.actions)}` } }, h('header', {}, head, h('span', { class: 'grow' }), h('small', {}, sinceText(card))),
    more, h('div', { class: 'actions' }, card.actions.map((action, i) => button(card, action, i === 0))));
}

const evidence = (card) => card.evidence && h('p', { title: card.evidence }, capital(card.evidence));
const cause = (card) => h('b', { class: card.level }, card.cause);

// On the job's page, whose headline is the cause of the first.
export function showProblems(element, job) {
  const problems = problemsOf(job).slice(0, MOST);
  element.hidden = problems.length === 0;
  update(element, problems.map((one, i) => cardElement({ ...one, id: job.id, name: job.name, state: job.state }, i > 0 ? cause(one) : evidence(one), i > 0 && evidence(one))));
}

export function showCards(element, fleet, jobs) {
  const own = (card) => jobs.get(card.id);
  const cards = (fleet.verdict?.cards || [...jobs.values()].filter(needsYou).map(cardOf)).filter((card) => !own(card) || needsYou(own(card))).slice(0, MOST);
  element.hidden = cards.length === 0;
  update(element, cards.map((card) => cardElement(card, [cause(card), h('a', { href: `#/job/${card.id}`, title: card.name }, card.name)], [evidence(card), card.more > 0 && h('p', {}, `and ${card.more} more`)])));
}
