// The frame around the pages: routes, colours, token, keyboard.
import { hasToken, setToken } from './api.js';
import { drawWaiting } from './chart.js';
import { replace, toast } from './dom.js';
import { isUtc, setUtc, zoneName } from './format.js';
import { ask, askToken, showHelp } from './dialogs.js';
import { fleetPage } from './fleet.js';
import { jobPage } from './job.js';
import { showViews } from './views.js';

const main = document.getElementById('main');
let page = null;

function route() {
  const [path, query = ''] = location.hash.slice(1).split('?');
  const parameters = new URLSearchParams(query);
  const parts = path.split('/').filter(Boolean).map(decodeURIComponent);
  if (parts[0] === 'job' && parts[1]) return { name: 'job', make: (at) => jobPage(at, parts[1], parameters) };
  if (parts[0] === 'sweep' && parts[1]) return { name: 'sweep', make: (at) => fleetPage(at, parameters, parts[1]) };
  // Addresses of the page that compared jobs.
  if (parts[0] === 'compare' && parameters.has('jobs')) parameters.set('on', parameters.get('jobs'));
  return { name: 'fleet', make: (at) => fleetPage(at, parameters) };
}

function show() {
  if (page) page.close();
  const { name, make } = route();
  replace(main);
  main.className = name;
  scrollTo(0, 0);
  page = make(main);
}

function showToken() {
  const button = document.getElementById('token');
  button.textContent = hasToken() ? 'Can steer' : 'Read only';
  button.classList.toggle('on', hasToken());
}

document.getElementById('token').addEventListener('click', async () => {
  if (hasToken()) {
    if (await ask({ title: 'Forget the token?', text: 'This tab will then be read-only.', agree: 'Forget it', send: () => setToken('') })) toast('The token is forgotten; the page is read only.');
  } else {
    await askToken();
  }
});

document.getElementById('theme').addEventListener('click', () => {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === 'dark' ? 'light' : 'dark';
  localStorage.setItem('theme', root.dataset.theme);
  document.dispatchEvent(new Event('theme'));
});

// Times are those of the browser's zone or of UTC, as the button says.
function showZone() {
  const button = document.getElementById('zone');
  button.textContent = isUtc() ? 'UTC' : zoneName();
  button.title = isUtc() ? 'Times are in UTC; click for those of this machine' : `Times are in ${Intl.DateTimeFormat().resolvedOptions().timeZone}; click for UTC`;
}

document.getElementById('zone').addEventListener('click', () => {
  setUtc(!isUtc());
  showZone();
  show();
});

// Paper is white: charts are drawn again in light colours while the page is printed.
let colours = '';
function showIn(theme) {
  document.documentElement.dataset.theme = theme;
  document.dispatchEvent(new Event('theme'));
}
addEventListener('beforeprint', () => {
  colours = document.documentElement.dataset.theme;
  if (colours !== 'light') showIn('light');
  drawWaiting();
});
addEventListener('afterprint', () => { if (colours && colours !== 'light') showIn(colours); });

document.getElementById('help').addEventListener('click', showHelp);
document.addEventListener('token', showToken);
document.addEventListener('keydown', (event) => {
  // Letters mean nothing to a box that is ticked or to a slider.
  const typing = event.target.matches?.('textarea, select, input:not([type=checkbox]):not([type=radio]):not([type=range])') || event.ctrlKey || event.metaKey || event.altKey;
  if (document.querySelector('dialog[open]')) return;
  if (typing) {
    if (event.key === 'Escape') {
      event.preventDefault();  // a browser would empty the field too
      event.target.blur();
    }
    return;
  }
  if (event.key === '?') showHelp();
  else if (event.key === 'g') location.hash = '#/';
  else if (event.key === 'v') showViews();
  else if (event.key === 't') document.getElementById('theme').click();
  else if (page && page.key) page.key(event);
});
addEventListener('hashchange', show);
// The address's hash is the route.
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
showToken();
showZone();
show();
