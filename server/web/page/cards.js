// What needs somebody: at most three cards, the worst first, with the buttons that mend it.
import { get, post, requestId } from './api.js';
import { change } from './dialogs.js';
import { askClone, askResume, askStacks, askStop, showLog } from './edit.js';
import { copyText, h, toast, update } from './dom.js';
import { ago, capital, number } from './format.js';
import { isActive, markSeen, needsYou } from './rows.js';

const MOST = 3;

// A coordinator without verdicts sends rows only.
function cardOf(job) {
  const problem = job.problems?.find((one) => one.level !== 'note' && !one.muted);
  const actions = job.state === 'FAILED' ? [{ action: 'resume', text: job.checkpoint_step ? `Resume from ${number(job.checkpoint_step)}` : 'Resume' }, { action: 'log', text: 'Log, last 20 lines', rank: 0 }]
    : isActive(job) && job.health.level === 'bad' ? [{ action: 'stop', text: 'Stop' }, { action: 'clone', text: 'Clone' }] : [];
  return { id: job.id, name: job.name, level: job.health.level, cause: capital(job.health.why || job.health.words), evidence: job.health.why ? capital(job.health.state) : '',
    since: job.ended, since_step: null, actions, ...problem, state: job.state, more: Math.max(0, (job.problems?.length || 1) - 1) };
}

async function askMute(card, send) {
  const request = requestId();
  await change({ title: `Mute this of ${card.name}?`, text: `${card.cause}: it no longer asks for anybody, until the job ends. The events still have it.`, agree: 'Mute until it ends',
    send: () => send('mute', { mute: [card.word], unmute: [], request_id: request }) }, 'It is muted.');
}

async function act(card, action) {
  const send = (verb, body) => post(`jobs/${card.id}/${verb}`, body);
  const whole = () => get(`jobs/${encodeURIComponent(card.id)}`);
  if (action.action === 'stop') askStop(await whole(), send);
  else if (action.action === 'resume') askResume(await whole(), send);
  else if (action.action === 'clone') askClone(await whole(), send, action.set);
  else if (action.action === 'log') showLog(await whole(), action.rank ?? 0);
  else if (action.action === 'stacks') askStacks(send);
  else if (action.action === 'mute') askMute(card, send);
  else if (action.action === 'nodes') document.querySelector('.machines').scrollIntoView({ behavior: 'smooth' });
  else if (['checkpoints', 'events'].includes(action.action) || !action.command) location.hash = `#/job/${card.id}`;
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

// `seen` is called when a failure was looked at and no longer asks for anybody in this browser.
export function showCards(element, fleet, jobs, seen) {
  const own = (card) => jobs.get(card.id);
  const cards = (fleet.verdict?.cards || [...jobs.values()].filter(needsYou).map(cardOf)).filter((card) => !own(card) || needsYou(own(card))).slice(0, MOST);
  element.hidden = cards.length === 0;
  update(element, cards.map((card) => h('article', { class: `card ${card.level}`, data: { act: `card ${card.id} ${card.word} ${JSON.stringify(card.actions)}` } },
    h('header', {}, h('b', { class: card.level }, card.cause), h('a', { href: `#/job/${card.id}`, title: card.name }, card.name), h('span', { class: 'grow' }), h('small', {}, sinceText(card))),
    card.evidence && h('p', { title: card.evidence }, capital(card.evidence)), card.more > 0 && h('p', {}, `and ${card.more} more`),
    h('div', { class: 'actions' }, card.actions.map((action, i) => button(card, action, i === 0)),
      card.state === 'FAILED' && own(card) && h('button', { type: 'button', class: 'quiet', data: { act: 'seen' }, onclick: () => { markSeen(own(card)); seen(); } }, 'Seen')))));
}
