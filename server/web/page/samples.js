// What the job wrote after its validations (sample in the job file): the newest texts, those of an earlier step, or those of two steps beside each other.
import { get } from './api.js';
import { h, replace, toast } from './dom.js';
import { seconds } from './format.js';

export function samplesSection(id) {
  const path = `jobs/${encodeURIComponent(id)}/samples`;
  const texts = h('div', { class: 'samples' });
  const sides = [side('After step', (place) => choose(0, place)), side('and after step', (place) => choose(1, place))];
  const two = h('input', { type: 'checkbox', onchange: () => { chosen[1] = steps[0]; read().catch((error) => toast(error.message, true)); } });
  const choice = h('div', { class: 'filters', hidden: true }, sides[0].element, h('label', { class: 'inline' }, two, 'Compare two steps'), sides[1].element);
  const element = h('section', { hidden: true, 'aria-label': 'Samples' }, h('h2', {}, 'Samples'), choice, texts);
  let steps = [];
  const chosen = [null, null];  // the step of each side; null: the newest
  let asked = 0;                // the latest request; answers of earlier ones are dropped

  // A slider over the validations.
  function side(word, choose) {
    const when = h('output', { class: 'muted' });
    const slider = h('input', { type: 'range', min: '0', step: '1', 'aria-label': `${word}: validation`, oninput: () => choose(Number(slider.value)) });
    const element = h('label', { class: 'inline' }, word, slider, when);
    const show = (step, newest) => {
      slider.max = String(steps.length - 1);
      slider.value = String(steps.indexOf(step));
      slider.setAttribute('aria-valuetext', `step ${step}`);
      when.textContent = `${step.toLocaleString('en-US')}${newest ? ', the newest' : ''}`;
    };
    return { element, show };
  }

  function text(sample, step) {
    return h('figure', { class: 'sample' },
      h('blockquote', {}, sample.prompt ? h('b', {}, sample.prompt) : h('span', { class: 'muted' }, '(a new document) '), sample.error ? h('span', { class: 'bad' }, ` ${sample.error}`) : sample.text),
      h('figcaption', { class: 'muted' }, [step !== null && `step ${step.toLocaleString('en-US')}`, !sample.error && `${sample.tokens} tokens in ${seconds(sample.seconds)}`].filter(Boolean).join(', ')));
  }

  // `found`: of the first side or, with two, of the earlier step and the later one.
  function show(found) {
    steps = found[0].steps;
    element.hidden = steps.length === 0;
    choice.hidden = steps.length < 2;
    sides[1].element.hidden = !two.checked;
    found.forEach(({ step }, i) => sides[i].show(step, chosen[i] === null));
    texts.classList.toggle('beside', found.length > 1);
    const order = found.toSorted((a, b) => a.step - b.step);
    replace(texts, order[0].samples.flatMap((_, i) => order.map(({ samples, step }) => samples[i] && text(samples[i], order.length > 1 ? step : null))));
  }

  async function read() {
    const mine = ++asked;
    const found = await Promise.all((two.checked ? [0, 1] : [0]).map((i) => get(path, chosen[i] === null ? {} : { step: chosen[i] })));
    if (mine === asked) show(found);
  }

  function choose(i, place) {
    chosen[i] = place === steps.length - 1 ? null : steps[place];
    read().catch((error) => toast(error.message, true));
  }

  return { element, refresh: () => { if (chosen[0] === null || (two.checked && chosen[1] === null) || steps.length === 0) read().catch(() => {}); } };  // the next time, perhaps
}
