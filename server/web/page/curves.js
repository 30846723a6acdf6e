// The curves of a job as the coordinator sends them: read once, then only what is new.
import { get } from './api.js';

export class Curves {
  // At most `points` buckets are read at first, and up to twice as many are kept; 0: all that there are.
  constructor(id, points = 0) {
    this.id = id;
    this.points = points;
    this.data = null;
    this.reading = null;
    this.closer = false;  // the next read is of everything
  }

  // For a closer look: reads all buckets that there are, from now on.
  async refine() {
    if (this.points === 0) return;
    this.points = 0;
    this.closer = true;
    await this.refresh();
  }

  // Reads what has been added. A request that comes while another is read is answered by one more afterwards.
  async refresh(all = false) {
    if (this.reading) {
      this.again = true;
      return this.reading;
    }
    this.reading = this.read(all).finally(() => { this.reading = null; });
    await this.reading;
    if (this.again) {
      this.again = false;
      await this.refresh();
    }
    return this.data;
  }

  async read(all) {
    const old = this.data;
    const partly = old && !all && !this.closer && old.step.length > 1 && (this.points === 0 || old.step.length <= 2 * this.points);
    this.closer = false;
    if (!partly || !this.append(old, await this.ask({ from: old.first, width: old.width }))) this.data = await this.ask({ points: this.points || '' });
    const count = this.data.step.length;
    // The last two buckets are read again: the last may have grown, and a restart may have dropped it.
    this.data.first = count > 2 ? this.data.step[count - 3] + 1 : 0;
    return this.data;
  }

  async ask(parameters) {
    const data = await get(`jobs/${encodeURIComponent(this.id)}/curves`, parameters);
    for (const value of Object.values(data.values)) {
      value.min = value.min.map((least, i) => (least === null ? value.mean[i] : least));
      value.max = value.max.map((greatest, i) => (greatest === null ? value.mean[i] : greatest));
    }
    return data;
  }

  // False when `fresh` does not continue `old`: the coordinator has made wider buckets meanwhile, or has others.
  append(old, fresh) {
    if (fresh.width !== old.width || fresh.step.length === 0 || fresh.step.length >= old.step.length) return false;
    const from = old.first;
    let keep = old.step.length;
    while (keep > 0 && old.step[keep - 1] >= from) --keep;
    for (const name of ['step', 'time', 'tokens']) old[name] = old[name].slice(0, keep).concat(fresh[name]);
    for (const [name, value] of Object.entries(old.values)) {
      for (const part of ['mean', 'min', 'max']) value[part] = value[part].slice(0, keep).concat(fresh.values[name][part]);
    }
    old.made = null;
    old.evals = fresh.evals;
    old.val_sets = fresh.val_sets;
    old.marks = fresh.marks;
    return true;
  }

  // The places of the buckets on an axis.
  x(mode) {
    if (mode === 'tokens') return this.data.tokens;
    if (mode === 'step') return this.data.step;
    // The same array every time, so that a chart sees that its curves share it.
    const made = this.data.made || (this.data.made = {});
    if (!made[mode]) made[mode] = mode === 'time' ? this.data.time.map((time) => time / 1000) : this.elapsed();
    return made[mode];
  }

  // Seconds of training: of breaks of over ten minutes only the steps count.
  elapsed() {
    const { time, step } = this.data;
    const seconds = this.data.values.step_seconds?.mean ?? [];
    let sum = 0;
    return time.map((now, i) => {
      const pause = i === 0 ? 0 : Math.max(now - time[i - 1], 0) / 1000;
      const usual = i === 0 ? 0 : (seconds[i] ?? 0) * (step[i] - step[i - 1]);
      sum += pause > 600 + 3 * usual ? usual : pause;
      return sum;
    });
  }

  // Where a step lies on an axis; null when it is outside of the curve.
  at(step, mode) {
    if (mode === 'step') return step;
    const steps = this.data.step;
    let low = 0;
    let high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1;
      else high = middle;
    }
    if (steps.length === 0) return null;
    return this.x(mode)[Math.min(low, steps.length - 1)];
  }

  // Where a moment lies on an axis.
  atTime(time, mode) {
    if (mode === 'time') return time / 1000;
    const times = this.data.time;
    if (times.length === 0 || time < times[0] - 60000) return null;
    let place = times.findIndex((one) => one >= time);
    if (place < 0) place = times.length - 1;
    return this.x(mode)[place];
  }

  // Where steps were not finite, from the last bucket before them on; the last one is open when the newest step is one.
  broken(mode) {
    const skipped = this.data.values.skipped_nonfinite.max;
    const means = this.data.values.loss.mean;
    const x = this.x(mode);
    const list = [];
    x.forEach((place, i) => {
      if (!(skipped[i] > 0) && means[i] !== null) return;
      const last = list[list.length - 1];
      if (last && last.end === i - 1) Object.assign(last, { end: i, to: place });
      else list.push({ from: x[Math.max(i - 1, 0)], to: place, end: i, step: Math.floor((this.data.step[i] - 1) / this.data.width) * this.data.width + 1, open: false });
    });
    const last = list[list.length - 1];
    if (last && last.end === x.length - 1 && means[last.end] === null) last.open = true;
    return list;
  }

  // Restarts and checkpoints, and of folded events what was wrong, stops and notes.
  marks(groups, mode) {
    const list = this.data.marks.map((mark) => ({ x: mode === 'time' && mark.kind === 'restart' ? mark.time / 1000 : this.at(mark.step, mode), kind: mark.kind, text: `${mark.text} at step ${mark.step}` }));
    for (const { first, last: event, count } of groups) {
      const alert = event.severity !== 'info' && event.reason !== 'CHECKPOINT_FAILED';
      const stopped = /^STOP/.test(event.reason);
      const note = event.reason === 'NOTE';
      if (!alert && !stopped && !note) continue;
      list.push({ x: this.atTime(first.time, mode), to: count > 1 ? this.atTime(event.time, mode) : undefined, kind: alert ? 'alert' : stopped ? 'stop' : 'note',
        text: `${event.reason}${count > 1 ? ` ×${count.toLocaleString('en-US')}` : ''}: ${event.text}` });
    }
    return list;
  }

  last(name) {
    const column = this.data && this.data.values[name] && this.data.values[name].mean;
    return column && column.length ? column[column.length - 1] : null;
  }
}
