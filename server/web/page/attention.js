// The sparse attention of a job: gates, branch shares and selection as heat maps of layer × step.
import { get } from './api.js';
import { h } from './dom.js';
import { Heat } from './heat.js';

const MAPS = [
  ['share_cmp', 'Share of compressed', 'gate over the sum of the gates', [0, 1]],
  ['share_sel', 'Share of selected', 'gate over the sum of the gates', [0, 1]],
  ['share_win', 'Share of window', 'gate over the sum of the gates', [0, 1]],
  ['gate_entropy', 'Gate entropy', 'nats; ln 3 = 1.099 when all share equally', [0, 1.0986], 'low'],
  ['gate_collapse', 'Collapsed gates', 'greatest share of rows in a bucket', [0, 1], 'high'],
  ['mass_kept', 'Attention mass kept', 'by the selected blocks, from audits', [0, 1]],
  ['mass_window', 'Attention mass in the window', 'from audits', [0, 1]],
  ['choice_overlap', 'Choices inside the window', 'share of selected tokens that the window reads too', [0, 1]],
  ['choice_entropy', 'Spread of choices', '0: all choose one block, 1: none is preferred', [0, 1]],
  ['choice_agreement', 'Choices shared with the token before', 'share of free choices', [0, 1]],
  ['keys_mean', 'Selected keys', 'mean of a query', null],
];

export function heatSection(id) {
  const maps = new Map();
  const grid = h('div', { class: 'heats' });
  const element = h('section', { hidden: true }, h('h2', {}, 'Attention'), grid);
  let reading = false;

  async function refresh() {
    if (reading) return;
    reading = true;
    try {
      const data = await get(`jobs/${encodeURIComponent(id)}/layers`, { points: 256 });
      element.hidden = data.step.length === 0 || data.layers === 0;
      for (const [name, title, note, fixed, alarm] of MAPS) {
        if (!data.values[name]) continue;
        if (!maps.has(name)) {
          maps.set(name, new Heat({ title, note, fixed, alarm }));
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
