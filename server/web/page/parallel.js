// The jobs of a sweep as lines over parallel axes: one for each key in which they differ, and the validation loss at the right.
import { RUNS } from './chart.js';
import { h, svg } from './dom.js';
import { middle, number } from './format.js';
import { scale, tick, validated } from './sweep.js';

const HEIGHT = 280;
const EDGE = { side: 56, top: 26, bottom: 14 };
const [LEAST, MOST] = [90, 260];  // pixels between two axes

// `place` is the place of a job among the ticked ones, `choose` ticks it or takes it away. `room`: how wide the picture may be. Null where a picture for each key says as much.
export function parallelPicture(keys, jobs, place, choose, room) {
  const seen = jobs.filter((job) => validated(job) && keys.every((key) => job.labels[key] !== undefined));
  if (keys.length < 2 || seen.length < 3) return null;
  const step = Math.min(Math.max((room - 2 * EDGE.side) / keys.length, LEAST), MOST);
  const width = 2 * EDGE.side + step * keys.length;
  const letters = Math.floor((step - 10) / 6);
  const [top, bottom] = [EDGE.top, HEIGHT - EDGE.bottom];
  const losses = seen.map((job) => job.val_loss);
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const worth = (loss) => (high === low ? 1 : (high - loss) / (high - low));  // 1: the lowest
  const axes = keys.map((key, i) => ({ key, x: EDGE.side + step * i, ...scale(seen.map((job) => job.labels[key]), bottom, top) }));
  const end = { x: EDGE.side + step * keys.length, place: (loss) => top + worth(loss) * (bottom - top) };
  const text = (words, attributes) => svg('text', attributes, words);
  const line = (job) => {
    const points = [...axes.map((axis) => [axis.x, axis.place(job.labels[axis.key])]), [end.x, end.place(job.val_loss)]];
    // Level at each axis, so that lines through one point can be told apart.
    const path = points.map(([x, y], i) => (i === 0 ? `M${x} ${y}` : `C${(points[i - 1][0] + x) / 2} ${points[i - 1][1]} ${(points[i - 1][0] + x) / 2} ${y} ${x} ${y}`)).join('');
    const at = place(job.id);
    const drawn = svg('path', { d: path, class: at < 0 ? 'job' : 'job on', 'data-id': job.id }, svg('title', {}, `${job.name}: ${keys.map((key) => `${key}=${job.labels[key]}`).join(', ')}; ${number(job.val_loss)} at step ${job.val_step}`));
    drawn.style.stroke = at < 0 ? `color-mix(in srgb, var(--accent) ${Math.round(100 * worth(job.val_loss) ** 2)}%, var(--line))` : `var(${RUNS[at % RUNS.length]})`;
    drawn.addEventListener('click', () => choose(job.id, at < 0));
    return drawn;
  };
  const order = seen.toSorted((a, b) => Number(place(a.id) >= 0) - Number(place(b.id) >= 0) || b.val_loss - a.val_loss);  // the best are on top
  const picture = svg('svg', { viewBox: `0 0 ${width} ${HEIGHT}`, role: 'img', 'aria-label': `${seen.length} jobs by ${keys.join(', ')} and validation loss; the list has the same values` },
    ...order.map(line),
    ...[...axes, end].map(({ x }) => svg('line', { x1: x, x2: x, y1: top, y2: bottom, class: 'axis' })),
    ...axes.flatMap((axis) => [text(middle(axis.key, letters), { x: axis.x, y: 12, class: 'tick middle' }), ...axis.ticks.map((value) => text(tick(value, letters), { x: axis.x + 5, y: axis.place(value) + 4, class: 'tick' }))]),
    text('validation', { x: end.x, y: 12, class: 'tick middle' }), ...[low, high].map((loss) => text(number(loss), { x: end.x + 5, y: end.place(loss) + 4, class: 'tick' })));
  picture.style.maxWidth = `${width}px`;
  return h('figure', { class: 'chart parallel', 'aria-label': 'All keys and the validation loss' }, h('figcaption', {}, h('span', { class: 'title' }, 'All keys'), h('span', { class: 'note' }, 'a line is a job, the stronger the lower its loss; click one to tick it')), picture);
}
