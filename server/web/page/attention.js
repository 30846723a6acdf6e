// The sparse attention of a job: gates, branch shares and selection as heat maps of layer × step.
import { get } from './api.js';
import { h } from './dom.js';
import { capital } from './format.js';
import { Heat } from './heat.js';
import { readQuantities, withCurve, writer } from './quantities.js';

export function heatSection(id) {
  const maps = new Map();
  const grid = h('div', { class: 'heats' });
  const element = h('section', { hidden: true }, h('h2', {}, 'Attention'), grid);
  let reading = false;

  async function refresh() {
    if (reading) return;
    reading = true;
    try {
      const [data] = await Promise.all([get(`jobs/${encodeURIComponent(id)}/layers`, { points: 256 }), readQuantities()]);
      element.hidden = data.step.length === 0 || data.layers === 0;
      for (const one of withCurve('layer').filter(({ map }) => map)) {
        const { name } = one;
        if (!data.values[name]) continue;
        if (!maps.has(name)) {
          maps.set(name, new Heat({ title: capital(one.label), note: one.note, about: capital(one.meaning), fixed: one.most > 0 ? [0, one.most] : null, alarm: one.alarm || undefined, format: writer(one) }));
          grid.append(maps.get(name).element);
        }
        maps.get(name).show(data.step, data.values[name], data.width);
      }
    } catch {
      // The next change of the job reads them again.
    } finally {
      reading = false;
    }
  }

  return { element, refresh, redraw: () => { for (const map of maps.values()) map.draw(); } };
}
