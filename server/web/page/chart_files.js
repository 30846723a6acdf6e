// A chart in other forms than its picture on the page: a file of values, a picture with its title, a table, a sentence.
import { color, h } from './dom.js';
import { clock, number, short, span, stamp } from './format.js';

const MOST_ROWS = 24;  // of a table

const shownCurves = (chart) => chart.curves.filter((curve) => !curve.pale);
const titleOf = (curve) => [curve.name, curve.part].filter(Boolean).join(' ');
const columnOf = (chart, curve) => chart.plot.data[chart.columns[chart.curves.indexOf(curve)]];

export function axisText(mode, value) {
  if (mode === 'time') return clock(value * 1000);
  if (mode === 'elapsed') return span(value);
  return mode === 'tokens' ? `${short(value)} tokens` : `step ${value.toLocaleString('en-US')}`;
}

// A zoom in the address, and in words: "steps 3,200–5,400 ×".
export const zoomValue = (zoom) => zoom.map((one) => Number(one.toFixed(3))).join('..');

export function zoomText(mode, zoom) {
  const say = { step: number, tokens: short, elapsed: span, time: (one) => clock(1000 * one) }[mode];
  return `${mode === 'step' ? 'steps ' : ''}${zoom.map((one) => say(Math.round(one))).join('–')} ×`;
}

// The newest value up to a place of the axis; undefined before the first one.
function valueAt(column, place) {
  for (let i = place; i >= 0; --i) if (Number.isFinite(column[i])) return column[i];
  return undefined;
}

// What is drawn, a column a curve.
export function csvOf(chart) {
  const text = (words) => (/[",\n]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words);
  const title = (curve) => text([titleOf(curve), curve.pale && 'not smoothed'].filter(Boolean).join(' '));
  const { data } = chart.plot;
  return [[chart.mode, ...chart.curves.map(title)], ...data[0].map((x, i) => [x, ...chart.columns.map((column) => data[column][i] ?? '')])].map((line) => `${line.join(',')}\n`).join('');
}

// At most so many rows of what is in view, as far from each other as they can be, the last one always.
export function tableOf(chart) {
  const x = chart.plot.data[0];
  const { min, max } = chart.plot.scales.x;
  const first = Math.max(x.findIndex((value) => value >= min), 0);
  const last = Math.max(x.findLastIndex((value) => value <= max), first);
  const count = Math.min(MOST_ROWS, last - first + 1);
  const places = Array.from({ length: count }, (_, i) => (count > 1 ? Math.round(first + i * (last - first) / (count - 1)) : last));
  const at = { time: (value) => stamp(1000 * value), elapsed: span, tokens: short, step: number }[chart.mode];
  const curves = shownCurves(chart);
  const value = (curve, place) => {
    const found = valueAt(columnOf(chart, curve), place);
    return found === undefined ? '–' : chart.format(found);
  };
  return h('table', {}, h('caption', { class: 'hidden' }, chart.title),
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, { time: 'Time', elapsed: 'Since start', tokens: 'Tokens', step: 'Step' }[chart.mode]), curves.map((curve) => h('th', { scope: 'col', class: 'num' }, titleOf(curve))))),
    h('tbody', {}, places.map((place) => h('tr', {}, h('th', { scope: 'row' }, at(x[place])), curves.map((curve) => h('td', { class: 'num' }, value(curve, place)))))));
}

// The picture in words.
export function summaryOf(chart) {
  const x = chart.plot.data[0];
  const curves = shownCurves(chart);
  const values = curves.slice(0, 8).map((curve) => `${titleOf(curve)} ${chart.format(valueAt(columnOf(chart, curve), x.length - 1))}`);
  const wrong = chart.broken.length > 0 ? `; not finite since step ${number(chart.broken[0].step)}` : '';
  return `${chart.title} from ${axisText(chart.mode, x[0])} to ${axisText(chart.mode, x[x.length - 1])}: at the end ${values.join(', ')}${curves.length > 8 ? ' and more' : ''}${wrong}`;
}

// The chart with its title and its legend.
export function pictureOf(chart) {
  const source = chart.plot.ctx.canvas;
  const ratio = devicePixelRatio || 1;
  const entries = shownCurves(chart).filter((curve) => !curve.part);
  const canvas = h('canvas');
  const ctx = canvas.getContext('2d');
  const font = (weight) => `${weight} ${12 * ratio}px ${color('--font')}`;
  const places = [];
  ctx.font = font(400);
  let [x, y] = [10 * ratio, 40 * ratio];
  for (const curve of entries) {
    const width = ctx.measureText(curve.name).width + 32 * ratio;
    if (x + width > source.width && x > 10 * ratio) [x, y] = [10 * ratio, y + 18 * ratio];
    places.push([curve, x, y]);
    x += width;
  }
  Object.assign(canvas, { width: source.width, height: y + 12 * ratio + source.height });
  ctx.fillStyle = color('--panel');
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.fillStyle = color('--text');
  ctx.font = font(600);
  ctx.fillText(chart.title, 10 * ratio, 20 * ratio);
  ctx.font = font(400);
  for (const [curve, left, base] of places) {
    ctx.fillStyle = color(curve.color);
    ctx.fillRect(left, base - 5 * ratio, 10 * ratio, 3 * ratio);
    ctx.fillStyle = color('--text');
    ctx.fillText(curve.name, left + 15 * ratio, base);
  }
  ctx.drawImage(source, 0, y + 12 * ratio);
  return canvas;
}
