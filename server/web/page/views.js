// Links to what the page shows: everything that is chosen stands in the address, so a link is copied, or kept in this browser under a name.
import { show } from './dialogs.js';
import { copyText, h, replace, toast } from './dom.js';

const KEY = 'views';
const MOST = 50;

const known = () => JSON.parse(localStorage.getItem(KEY) || '[]');  // [{name, address}], the newest first
const keep = (views) => localStorage.setItem(KEY, JSON.stringify(views.slice(0, MOST)));

async function copyLink() {
  if (await copyText(location.href)) toast('The link to what you see is copied.');
  else show('Link to what you see', { wide: true }, h('pre', { class: 'path' }, location.href));
}

export function showViews() {
  const list = h('ul', { class: 'findings' });
  const name = h('input', { type: 'text', maxlength: '60', placeholder: 'For example: my team tonight', 'aria-label': 'Name of this view', onkeydown: (event) => { if (event.key === 'Enter') { event.preventDefault(); add(); } } });
  const draw = () => replace(list, known().length === 0 && h('li', { class: 'muted' }, 'No saved views yet.'), known().map((view) => h('li', {}, h('a', { href: view.address }, view.name), h('span', { class: 'grow' }),
    h('button', { type: 'button', class: 'quiet', 'aria-label': `Forget ${view.name}`, onclick: () => { keep(known().filter((one) => one.name !== view.name)); draw(); } }, '×'))));
  function add() {
    const wanted = name.value.trim();
    if (!wanted) { name.focus(); return; }
    keep([{ name: wanted, address: location.hash || '#/' }, ...known().filter((one) => one.name !== wanted)]);
    name.value = '';
    draw();
  }
  draw();
  show('Views', {}, h('p', {}, 'A view is what is chosen: filter, order, ticked jobs, axis, zoom. Views stay in this browser.'), list, h('div', { class: 'filters' }, name, h('button', { type: 'button', data: { act: 'keep-view' }, onclick: add }, 'Keep this view')));
  name.focus();
}

export function linkButtons() {
  return h('span', { class: 'bulk' }, h('button', { type: 'button', data: { act: 'views' }, onclick: showViews }, 'Views…'), h('button', { type: 'button', data: { act: 'link' }, onclick: copyLink }, 'Copy link'));
}
