// What the coordinator says of the quantities (common/record/quantities.h): what each is called, how its values are written, how its chart is drawn.
import { get } from './api.js';
import { bytes, capital, number, percent, rate, seconds, short } from './format.js';

let all = [];
let reading = null;

// Reads them once; before that there are none.
export function readQuantities() {
  reading ||= get('quantities').then(({ quantities }) => { all = quantities; }).catch((error) => {
    reading = null;
    throw error;
  });
  return reading;
}

export const quantity = (name) => all.find((one) => one.name === name);

// Those with a curve of a kind: step, layer or gpu.
export const withCurve = (kind) => all.filter((one) => one.kind === kind && one.curve);

// Those that are drawn over the curves of other jobs, in the order of their charts.
export const compared = () => all.filter((one) => one.compared).sort((a, b) => a.chart - b.chart);

// Those that belong to a family, such as the phases of a step.
export const family = (name) => all.filter((one) => one.family === name && one.kind === 'step' && one.curve);

// Writes a value of it.
export function writer({ format, digits }) {
  const written = { count: short, seconds, bytes, rate: (value) => rate(value, digits + 1), percent: (value) => percent(value, digits) }[format];
  return written || ((value) => number(value, digits));
}

// The options of its Chart.
export function chartOf(one, options = {}) {
  const format = writer(one);
  return { of: one.name, title: capital(one.label), note: one.note, about: capital(one.meaning), format, axis: one.format === 'number' ? short : one.format === 'percent' ? percent : format,
    zero: one.from_zero, spikes: one.spikes, binary: one.format === 'bytes', ...options };
}
