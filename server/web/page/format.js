// Numbers and times as people read them.

const none = '–';

export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return none;
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-3) return exponential(value, 1);
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString('en-US');
  if (size >= 1e5) return short(value);
  const whole = Math.floor(Math.log10(size)) + 1;
  return value.toFixed(Math.max(0, Math.min(digits, digits - Math.max(whole, 1) + 1)));
}

// 1234567 → 1.23M
export function short(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return none;
  const size = Number(Math.abs(value).toPrecision(digits));  // 999,950 is 1M and not 1000k
  if (size >= 1e18) return exponential(value, 1).replace('.0e', 'e');
  for (const [unit, name] of [[1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
    if (size >= unit) return plain(value / unit, digits) + name;
  }
  return plain(value, digits);
}

// So many digits, without an exponent or zeros at the end.
function plain(value, digits) {
  return String(Number(value.toPrecision(digits)));
}

function exponential(value, digits) {
  return value.toExponential(digits).replace('e+', 'e');
}

// A learning rate: 2.94e-3, 1e-4, 0.02.
export function rate(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return none;
  const size = Math.abs(value);
  if (value === 0 || (size >= 1e-2 && size < 1e3)) return plain(value, digits);
  return exponential(Number(value.toPrecision(digits)), digits - 1).replace(/\.?0+e/, 'e');
}

// Long names keep their beginning and their end: "pretrain-text…-s17x".
export function middle(text, most = 24) {
  const end = Math.floor(most / 3);
  return text.length <= most ? text : `${text.slice(0, most - end - 1)}…${text.slice(-end)}`;
}

export function bytes(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return none;
  for (const [unit, name] of [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']]) {
    if (Math.abs(value) >= unit) return `${plain(value / unit, Math.abs(value) < 1000 * unit ? 3 : 4)} ${name}`;
  }
  return `${value} B`;
}

export function percent(share, digits = 0) {
  return Number.isFinite(share) ? `${(100 * share).toFixed(digits)} %` : none;
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return none;
  if (value === 0) return '0';
  if (value < 0.9995e-3) return `${plain(value * 1e6, 3)} µs`;
  if (value < 0.9995) return `${plain(value * 1e3, 3)} ms`;
  if (value < 100) return `${plain(value, 3)} s`;
  return span(value);
}

export function span(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return none;
  const whole = Math.round(Math.max(value, 0));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 24 * 60) return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
  const hours = Math.round(whole / 3600);
  return hours % 24 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${hours / 24} d`;
}

export function ago(milliseconds, now = Date.now()) {
  if (!milliseconds) return none;
  const past = (now - milliseconds) / 1000;
  return past < 5 ? 'now' : `${span(past)} ago`;
}

// One rule for times: a 24-hour clock in one zone, which the top of the page names. It is that of the browser, or UTC.
const ZONE = 'zone';
let utc = localStorage.getItem(ZONE) === 'UTC';

export const isUtc = () => utc;

export function setUtc(on) {
  utc = on;
  localStorage.setItem(ZONE, on ? 'UTC' : 'local');
}

// A moment in that zone: {day: '2026-11-29', time: '20:23:38', zone: '+01:00'}; the zone is 'Z' where it is that of UTC.
function parts(milliseconds) {
  const offset = utc ? 0 : -new Date(milliseconds).getTimezoneOffset();
  const [day, time] = new Date(milliseconds + offset * 60_000).toISOString().slice(0, 19).split('T');
  const minutes = Math.abs(offset);
  return { day, time, zone: offset === 0 ? 'Z' : `${offset < 0 ? '-' : '+'}${pad(Math.floor(minutes / 60))}:${pad(minutes % 60)}` };
}

export const zoneName = (now = Date.now()) => `UTC${parts(now).zone.replace('Z', '')}`;

// As nsactl writes it: 2026-11-29T20:23:38+01:00.
export function stamp(milliseconds) {
  const { day, time, zone } = parts(milliseconds);
  return `${day}T${time}${zone}`;
}

const isToday = (day) => day === parts(Date.now()).day;

const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];
const dayText = (day) => `${Number(day.slice(8))} ${MONTHS[Number(day.slice(5, 7)) - 1]}`;

// The time of day to the second; of another day its date, too.
export function clock(milliseconds) {
  if (!milliseconds) return none;
  const { day, time } = parts(milliseconds);
  return isToday(day) ? time : `${day} ${time}`;
}

// The time of day; of another day its date instead of the seconds.
export function moment(milliseconds) {
  const { day, time } = parts(milliseconds);
  return isToday(day) ? time : brief(milliseconds);
}

// Hours and minutes; of another day its date, too.
export function brief(milliseconds) {
  const { day, time } = parts(milliseconds);
  return isToday(day) ? time.slice(0, 5) : `${dayText(day)} ${time.slice(0, 5)}`;
}

// Hours and minutes; of another day its date alone.
export function dayOr(milliseconds) {
  const { day, time } = parts(milliseconds);
  return isToday(day) ? time.slice(0, 5) : dayText(day);
}

const DAY = 86_400;  // seconds

// Labels of the ticks of a time axis, `step` seconds apart. Where they span several days, the first tick of each day has its date below the time. Dates of another year show the year.
export function timeTicks(seconds, step) {
  const all = seconds.map((one) => parts(1000 * one));
  const several = all.length > 0 && all[0].day !== all[all.length - 1].day;
  return all.map(({ day, time }, i) => {
    const text = step >= DAY ? dayText(day) : time.slice(0, step < 60 ? 8 : 5);
    const before = i > 0 ? all[i - 1].day : '';
    if (step >= DAY) return [before, parts(Date.now()).day].some((one) => one.slice(0, 4) === day.slice(0, 4)) ? text : `${text}\n${day.slice(0, 4)}`;
    return several && before !== day ? `${text}\n${dayText(day)}` : text;
  });
}

function pad(value) {
  return String(value).padStart(2, '0');
}

export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
