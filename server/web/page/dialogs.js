// Questions: every change asks first, and says what will happen.
import { hasToken, setToken } from './api.js';
import { h, toast } from './dom.js';

let tokenFile = 'the file token in the coordinator\'s state folder';
export function setTokenFile(path) {
  tokenFile = path;
}

// Shows a dialog. `agree` is the text of its button, or makes it from the form. `send` gets the form's data when the user agrees; its error stays in the
// dialog. True when it was done.
export function ask({ title, text, fields = [], agree, danger = false, wide = false, send }) {
  return new Promise((resolve) => {
    let done = false;
    const problem = h('p', { class: 'problem', role: 'alert' });
    const button = h('button', { type: 'submit', class: danger ? 'danger' : 'primary' }, typeof agree === 'string' ? agree : '');
    const form = h('form', { method: 'dialog' },
      h('h2', {}, title),
      ...[].concat(text).map((line) => h('p', {}, line)),
      ...fields, problem,
      h('div', { class: 'buttons' }, h('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel'), button));
    const dialog = h('dialog', { 'aria-label': title, class: wide && 'wide', onclose: () => { dialog.remove(); resolve(done); } }, form);
    if (typeof agree !== 'string') {
      const write = () => { button.textContent = agree(form); };
      form.addEventListener('change', write);
      write();
    }
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      button.disabled = true;
      problem.textContent = '';
      try {
        await send(new FormData(form));
        done = true;
        dialog.close();
      } catch (error) {
        problem.textContent = error.message;
      }
      button.disabled = false;
    });
    document.body.append(dialog);
    dialog.showModal();
    const first = form.querySelector('input, textarea');
    if (first) first.focus();
    if (first && first.tagName === 'TEXTAREA') {
      first.setSelectionRange(0, 0);
      first.scrollTop = 0;
    }
  });
}

export function askToken() {
  return ask({
    title: 'Token for changes',
    text: ['Reading needs no token; stopping, resuming and the like do. The token is in:'],
    fields: [
      h('pre', { class: 'path' }, `cat ${tokenFile}`),
      h('label', {}, 'Token', h('input', { name: 'token', type: 'password', autocomplete: 'off', required: true, spellcheck: 'false' })),
      h('p', { class: 'muted' }, 'It stays in this tab until you close it.'),
    ],
    agree: 'Use this token',
    send: (data) => setToken(data.get('token')),
  });
}

// Asks for the token if there is none, then the question itself. `said` is what it says when it is done, or does so itself.
export async function change(question, said) {
  if (!hasToken() && !(await askToken())) return false;
  const done = await ask(question);
  if (done) typeof said === 'function' ? said() : toast(said);
  return done;
}

// A dialog with nothing to answer.
export function show(title, { wide = false } = {}, ...content) {
  const dialog = h('dialog', { 'aria-label': title, class: wide && 'wide', onclose: () => dialog.remove() },
    h('form', { method: 'dialog' }, h('h2', {}, title), ...content, h('div', { class: 'buttons' }, h('button', { class: 'primary' }, 'Close'))));
  dialog.addEventListener('click', (event) => { if (event.target.closest('a')) dialog.close(); });
  document.body.append(dialog);
  dialog.showModal();
}

export function showHelp() {
  const keys = [['/', 'filter the jobs'], ['j k', 'next and previous job'], ['Enter', 'open the job'], ['x', 'tick the job: its curves are drawn'],
    ['c', 'to the charts of the ticked jobs'], ['b', 'make the job the baseline'], ['1 2 3 4', 'curves by step, by tokens, by time'], ['g', 'all jobs'], ['t', 'light or dark'], ['v', 'the views that you have kept'], ['?', 'this list']];
  show('Keyboard', {}, h('table', { class: 'keys' }, h('tbody', {}, keys.map(([key, what]) => h('tr', {}, h('td', {}, key.split(' ').map((one) => h('kbd', {}, one))), h('td', {}, what))))),
    h('p', { class: 'muted' }, 'In a chart: drag to zoom in, double-click to zoom out. With the keyboard: Tab to a chart, arrows move along it, + and − zoom, Esc shows all.'));
}
