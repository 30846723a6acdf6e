// What the job wrote after its validations (sample in the job file): the newest texts, or those of an earlier step.
import { get } from './api.js';
import { h, replace, toast } from './dom.js';
import { seconds } from './format.js';

export function samplesSection(id) {
  const path = `jobs/${encodeURIComponent(id)}/samples`;
  const texts = h('div', { class: 'samples' });
  const when = h('output', { class: 'muted' });
  const slider = h('input', { type: 'range', min: '0', step: '1', 'aria-label': 'Validation', oninput: () => choose(Number(slider.value)) });
  const choice = h('div', { class: 'filters', hidden: true }, h('label', { class: 'inline' }, 'After step', slider), when);
  const element = h('section', { hidden: true, 'aria-label': 'Samples' }, h('h2', {}, 'Samples'), choice, texts);
  let steps = [];
  let chosen = null;  // the step that was chosen; null: the newest
  let asked = 0;      // the latest request; answers of earlier ones are dropped

  function text(sample) {
    return h('figure', { class: 'sample' },
      h('blockquote', {}, sample.prompt ? h('b', {}, sample.prompt) : h('span', { class: 'muted' }, '(a new document) '), sample.error ? h('span', { class: 'bad' }, ` ${sample.error}`) : sample.text),
      !sample.error && h('figcaption', { class: 'muted' }, `${sample.tokens} tokens in ${seconds(sample.seconds)}`));
  }

  function show(found) {
    steps = found.steps;
    element.hidden = steps.length === 0;
    choice.hidden = steps.length < 2;
    slider.max = String(steps.length - 1);
    slider.value = String(steps.indexOf(found.step));
    slider.setAttribute('aria-valuetext', `step ${found.step}`);
    when.textContent = `${found.step.toLocaleString('en-US')}${chosen === null ? ', the newest' : ''}`;
    replace(texts, found.samples.map(text));
  }

  async function read() {
    const mine = ++asked;
    const found = await get(path, chosen === null ? {} : { step: chosen });
    if (mine === asked) show(found);
  }

  function choose(place) {
    chosen = place === steps.length - 1 ? null : steps[place];
    read().catch((error) => toast(error.message, true));
  }

  return { element, refresh: () => { if (chosen === null || steps.length === 0) read().catch(() => {}); } };  // the next time, perhaps
}
