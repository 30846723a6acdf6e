// What the page asks the coordinator, and the stream that keeps it current.

import { clock, span } from './format.js';

const BASE = 'api/v1/';
let token = sessionStorage.getItem('token') || '';

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function answer(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    if (response.ok) throw new ApiError(response.status, 'the answer is not complete');
  }
  if (!response.ok) throw new ApiError(response.status, body.error || response.statusText);
  return body;
}

export async function get(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== '' && value !== undefined));
  const url = `${BASE}${path}${query.size ? `?${query}` : ''}`;
  const asked = window.early.get(url);  // once, by early.js
  window.early.delete(url);
  return answer(await (asked || fetch(url)));
}

function headers(more = {}) {
  return { Authorization: `Bearer ${token}`, ...more };
}

function send(path, body, signal) {
  return fetch(BASE + path, { method: 'POST', headers: headers({ 'Content-Type': 'application/json' }), body: JSON.stringify(body), signal });
}

export async function post(path, body = {}) {
  return answer(await send(path, body));
}

// The lines of a stream of bytes, as they come.
export async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split('\n');
      rest = parts.pop();
      yield* parts;
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Posts, and gives the messages of the answer, one a line of JSON, as they come. Resolves when the coordinator has begun to answer.
export async function postLines(path, body, signal) {
  const response = await send(path, body, signal);
  if (!response.ok) await answer(response);
  return (async function* messages() {
    for await (const line of lines(response.body)) yield JSON.parse(line);
  })();
}

// A file that only those with the token may have.
export async function getFile(path) {
  const response = await fetch(BASE + path, { headers: headers() });
  if (!response.ok) await answer(response);
  return response.blob();
}

export function hasToken() {
  return token !== '';
}

// The token stays in this tab: it is sent as a header only, and never as a cookie.
export async function setToken(text) {
  const before = token;
  token = text.trim();
  try {
    if (token) await post('token');
  } catch (error) {
    token = before;
    throw error;
  }
  if (token) sessionStorage.setItem('token', token);
  else sessionStorage.removeItem('token');
  document.dispatchEvent(new Event('token'));
}

export function requestId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

// A page that nobody sees has no stream; it reads again when it is seen. Messages since `after`, a sequence of events, about {job}, or about the list of {state, name, label, rows}. The browser reconnects by itself and then sends the last sequence that it saw.
// `handlers` has a function for each kind of message; `reconnected` is called when the stream is there again.
export function follow(after, subject, handlers) {
  const parameters = new URLSearchParams(Object.entries({ ...subject, changes: '1' }).filter(([, value]) => value !== ''));  // of rows, only the members that have changed
  let source;
  let last = after;
  let lost = false;
  let closed = false;
  let timer;
  let opened = 0;
  const open = () => {
    opened = Date.now();
    parameters.set('after', String(last));
    source = new EventSource(`${BASE}stream?${parameters}`);
    source.onopen = () => {
      heard();
      showLive('live');
      showWarning('');
      if (lost && handlers.reconnected) handlers.reconnected();
      lost = false;
    };
    source.onerror = () => {
      lost = true;
      showLive('reconnecting');
      // A refused connection is retried by the browser; an answer that is not a stream is not.
      if (source.readyState === EventSource.CLOSED && !closed) timer = setTimeout(open, 2000);
    };
    source.addEventListener('beat', heard);
    source.addEventListener('warning', (message) => showWarning(JSON.parse(message.data).text));
    for (const kind of ['event', 'rows', 'list', 'verdict', 'job', 'nodes']) {
      source.addEventListener(kind, (message) => {
        heard();
        last = Number(message.lastEventId) || last;
        if (handlers[kind]) handlers[kind](JSON.parse(message.data));
      });
    }
  };
  const paused = () => document.hidden;
  const seen = () => {
    clearTimeout(timer);
    source?.close();
    if (paused()) {
      lost = true;
      news = 0;
      showSilence();
      showLive('paused');
    } else {
      open();
      heard();
    }
  };
  document.addEventListener('visibilitychange', seen);
  seen();
  // A connection that was cut off without a word never fails by itself.
  const watch = setInterval(() => {
    showSilence();
    if (paused() || Date.now() - news < 2 * SILENCE || Date.now() - opened < 2 * SILENCE) return;
    lost = true;
    source.close();
    open();
  }, 1000);
  return () => {
    closed = true;
    clearInterval(watch);
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', seen);
    news = 0;
    showSilence();
    source?.close();
  };
}

// The stream has a beat every two seconds or so. After this time without any, the page says that its figures are old.
const SILENCE = 12_000;  // milliseconds
let news = 0;  // when the stream said something; 0: there is none

function heard() {
  news = Date.now();
  showSilence();
}

function showSilence() {
  const silent = news > 0 && Date.now() - news > SILENCE;
  const strip = document.getElementById('stale');
  document.body.classList.toggle('stale', silent);
  strip.hidden = !silent;
  if (!silent) return;
  showLive('reconnecting');
  strip.textContent = `No news for ${span((Date.now() - news) / 1000)}: showing figures from ${clock(news)}; reconnecting…`;
}

// What the coordinator warns of, below the top of the page.
function showWarning(text) {
  const strip = document.getElementById('warning');
  strip.textContent = text;
  strip.hidden = text === '';
}

// Says at the top of the page whether it is current.
export function showLive(state) {
  const live = document.getElementById('live');
  live.textContent = state;
  live.className = `live ${state}`;
}
