"use strict";
// What the page of a report computes without a document: decoding, scales, filters, aggregation by pixel.
// The page includes it as a script, tests as a module of node.

const Core = (() => {
  const NONE = -1;                     // no filter
  // Typed arrays are filled by `map`, since `from` with a function takes ten times as long.
  const numbersOf = (count, value) => new Float64Array(count).map((_, i) => value(i));
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

  // Decoding ---------------------------------------------------------------------------------------------------

  // The runs of a page from its inflated bytes; columns.py has the format.
  function decode(bytes) {
    const text = new TextDecoder();
    const size = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    const head = JSON.parse(text.decode(bytes.subarray(4, 4 + size)));
    let at = 4 + size;
    const runs = [];
    for (const [name, count, width, flags] of head.columns) {
      if (name === "id") runs.push({ ...head.runs[runs.length], columns: {} });
      const length = count * (width || 1), part = bytes.subarray(at, at + length);
      runs[runs.length - 1].columns[name] = width ? numbers(part, count, width, flags) : JSON.parse(text.decode(part));
      at += length;
    }
    return runs.map(build);
  }

  function numbers(part, count, width, flags) {
    const out = width > 3 || flags & 2 ? new Float64Array(count) : new Int32Array(count);
    for (let plane = 0, scale = 1; plane < width; plane++, scale *= 256) {
      for (let i = 0, at = plane * count; i < count; i++) out[i] += part[at + i] * scale;
    }
    if (flags & 1) for (let i = 0; i < count; i++) out[i] = signed(out[i]);
    if (flags & 2) for (let i = 1; i < count; i++) out[i] += out[i - 1];
    return out;
  }

  const signed = value => (value % 2 ? -(value + 1) / 2 : value / 2);

  // Times in seconds from steps to the last known time before them; NaN where there is none.
  function chain(columns, names, before, tick) {
    const last = new Float64Array(before);
    return Object.fromEntries(names.map(name => [name, new Float64Array(columns[name]).map((step, i) => (
      step === 0 ? NaN : (last[i] += signed(step - 1)) * tick))]));
  }

  function build({ columns, ...raw }) {
    const { tick, tasks: count } = raw, { arrival, status } = columns, pick = name => columns[name];
    const run = {
      label: raw.label, end: raw.end, warmup: raw.warmup, horizon: raw.horizon ?? Infinity, tick, count,
      id: columns.id, classes: raw.class, users: raw.user, statuses: raw.status, reasons: raw.reason,
      modes: raw.mode, outcomes: raw.outcome, causes: raw.causes, places: columns.places,
      devices: columns.devices.map(([name, type, node, units]) => ({ name, type, node, units })),
      off: columns.off, cores: new Set(raw.cores), klass: columns.class, user: columns.user, status, reason: columns.reason,
      arrival: new Float64Array(arrival).map(value => value * tick), batch: columns.batch,
      shares: raw.causes.map(name => pick(`cause ${name}`)),
      ...chain(columns, ["ready", "start", "finish"], arrival, tick),
    };
    const base = run.start.map((value, i) => Math.round((isNaN(value) ? run.ready[i] : value) / tick));
    const own = new Int32Array(columns["launch task"]), names = ["decided", "begun", "upload_start", "upload_end", "compute_start",
      "compute_end", "download_start", "end"];
    const times = chain(columns, names, numbersOf(own.length, i => base[own[i]]), tick), { token } = chain(columns, ["token"], base, tick);
    run.nodes = [...new Set(run.devices.map(device => device.node))];
    run.nodeOfDevice = Int32Array.from(run.devices, device => run.nodes.indexOf(device.node));
    run.launches = launches(run, { ...columns, task: own, ...times }, token);
    const completed = run.statuses.indexOf("completed");
    run.response = run.finish.map((value, i) => (status[i] === completed ? value - run.arrival[i] : NaN));
    run.wait = run.start.map((value, i) => value - run.ready[i]);
    run.rows = rows(run);
    return run;
  }

  // The launches, and behind them a launch for each request to a language model (from its start to its first token
  // as an upload).  `drawn` are all but the busy periods of replicas.
  function launches(run, columns, token) {
    const of = row => run.batch[row] - 1, start = row => run.start[row], none = () => NaN;
    const requests = [], isRequest = row => of(row) >= 0 && columns.period[of(row)] && !isNaN(run.start[row]);
    for (let row = 0; row < run.count; row++) if (isRequest(row)) requests.push(row);
    const known = columns.task.length, count = known + requests.length;
    const first = row => (isNaN(token[row]) ? last(run, row) : token[row]);
    const made = {
      task: row => row, mode: row => columns.mode[of(row)], outcome: () => 0, place: row => columns.place[of(row)], members: () => 1,
      rate: () => 0, decided: start, begun: start, upload_start: start, upload_end: first, compute_start: row => token[row],
      compute_end: row => (isNaN(token[row]) ? NaN : last(run, row)), download_start: none,
      end: row => last(run, row),
    };
    for (const [name, value] of Object.entries(made)) {
      const out = (made[name] = new columns[name].constructor(count));
      out.set(columns[name]);
      requests.forEach((row, i) => { out[known + i] = value(row); });
    }
    Object.assign(made, { count, known, drawn: new Uint8Array(count).map((_, i) => (i < known && columns.period[i] ? 0 : 1)),
      again: new Float64Array(count).fill(NaN) });   // since when its task waited again, after an earlier launch
    for (const stage of ["compute", "upload"]) {
      const [begin, until] = [made[`${stage}_start`], made[`${stage}_end`]];
      for (let i = 0; i < count; i++) if (!isNaN(begin[i]) && isNaN(until[i])) until[i] = made.end[i];
    }
    const ended = new Float64Array(run.count).fill(NaN);
    for (let i = 0; i < known; i++) {
      if (!made.drawn[i] || isNaN(made.begun[i])) continue;   // what was stopped before its first stage was waiting
      const row = made.task[i];
      if (ended[row] < made.begun[i]) made.again[i] = ended[row];
      if (!(ended[row] > made.end[i])) ended[row] = made.end[i];
    }
    run.stopped = ended.map((time, row) => (last(run, row) - time > run.tick ? time : NaN));   // and it never ran again
    return made;
  }

  // Rows of the Gantt chart --------------------------------------------------------------------------------------

  // Bars by row, in order of time: `first[r]` to `first[r + 1]` are the launches `bar` of row r.  A device whose stages
  // never overlap themselves has one row with a strip an engine (`engines`); others have a row a lane, or a core.
  function rows(run) {
    const { launches, places } = run, found = run.devices.map(() => [[], []]);
    for (let i = 0; i < launches.count; i++) {
      if (launches.drawn[i]) for (const [device, core] of places[launches.place[i]]) { found[device][0].push(i); found[device][1].push(core); }
    }
    return found.flatMap(([bars, cores], device) => (bars.length ? lanesOf(run, device, Int32Array.from(bars), cores) : []));
  }

  function lanesOf(run, device, bar, cores) {
    const { launches } = run, { name, type } = run.devices[device], onCores = run.cores.has(type);
    const row = (label, bars, engines) => ({ device, label, bar: Int32Array.from(bars), engines, onCores, capacity: 1 });
    if (cores.every(number => number >= 0)) {
      return [...grouped(bar, (_, i) => cores[i])].sort(([a], [b]) => a - b).map(([number, bars]) => row(`${name}${number}`, bars));
    }
    const order = sorted(bar, launches.decided), free = [], lanes = [];
    if (["upload", "compute", "download"].every(stage => alone(run, order, stage))) {
      return [row(name, order, order.some(i => !isNaN(launches.upload_start[i]) || !isNaN(launches.download_start[i])))];
    }
    for (const i of order) {
      let lane = 0;
      while (lane < free.length && free[lane] > launches.decided[i]) lane++;
      free[lane] = launches.end[i];
      (lanes[lane] ||= []).push(i);
    }
    return lanes.map((bars, lane) => row(lane ? "" : name, bars));
  }

  // Lists of items by key, in the order of their first.
  function grouped(items, key) {
    const by = new Map();
    items.forEach((one, i) => { const name = key(one, i); (by.get(name) || by.set(name, []).get(name)).push(one); });
    return by;
  }

  function sorted(indexes, key) {
    const isSorted = indexes.every((one, i) => i === 0 || !(key[one] < key[indexes[i - 1]]));
    return isSorted ? indexes : indexes.slice().sort((a, b) => key[a] - key[b] || a - b);
  }

  // Does no launch begin this stage before the one before it has ended it?
  function alone(run, order, stage) {
    let until = -Infinity;
    return order.every(i => {
      const [begin, end] = span(run.launches, i, stage), isLater = !(begin < until - run.tick / 2);
      if (!isNaN(begin)) until = Math.max(until, end);
      return isLater;
    });
  }

  // Begin and end of a stage of a launch.
  function span(launches, i, stage) {
    if (stage === "upload") return [launches.upload_start[i], launches.upload_end[i]];
    if (stage === "compute") return [launches.compute_start[i], launches.compute_end[i]];
    return [launches.download_start[i], launches.end[i]];
  }

  // One row a device, for clusters with more lanes than a picture has room for.
  function merged(run) {
    return [...grouped(run.rows, row => row.device).values()].map(parts => {
      const one = { ...parts[0], label: run.devices[parts[0].device].name }, bars = Int32Array.from(parts.flatMap(({ bar }) => Array.from(bar)));
      return parts.length === 1 ? one : { ...one, bar: sorted(bars, run.launches.decided), engines: false, capacity: parts.length };
    });
  }

  // Filters ------------------------------------------------------------------------------------------------------

  // Which tasks and launches pass: by code of class, user and status, node, and a range of a metric.
  function masks(run, filter) {
    const { launches, batch } = run, task = new Uint8Array(run.count), launch = new Uint8Array(launches.count), all = filter.node === NONE;
    const near = all ? null : run.places.map(place => place.some(([device]) => run.nodeOfDevice[device] === filter.node));
    const there = new Uint8Array(run.count).fill(+all), { range } = filter, values = range && run[range.metric];
    const codes = ["klass", "user", "status"].filter(key => filter[key] !== NONE).map(key => [run[key], filter[key]]);
    if (near) for (let i = 0; i < launches.count; i++) if (near[launches.place[i]]) there[launches.task[i]] = 1;
    for (let i = 0; i < run.count; i++) {
      const isThere = there[i] || (near && batch[i] && near[launches.place[batch[i] - 1]]);
      task[i] = +(isThere && codes.every(([of, code]) => of[i] === code) && (!range || (values[i] >= range.low && values[i] <= range.high)));
    }
    for (let i = 0; i < launches.count; i++) launch[i] = task[launches.task[i]];
    for (let i = 0; i < run.count; i++) if (batch[i] && task[i]) launch[batch[i] - 1] = 1;   // a batch passes with any of its members
    if (near) for (let i = 0; i < launches.count; i++) if (!near[launches.place[i]]) launch[i] = 0;
    return { task, launch, near, node: filter.node };
  }

  // Tasks that pass, arrived in the measured window, and were there between two times.
  function within(run, mask, low, high) {
    const { arrival, finish } = run, rows = [];
    for (let i = 0; i < run.count; i++) if (mask[i] && isMeasured(run, i) && arrival[i] <= high && !(finish[i] < low)) rows.push(i);
    return rows;
  }
  const isMeasured = (run, i) => run.arrival[i] >= run.warmup && run.arrival[i] < run.horizon;

  // Statistics ---------------------------------------------------------------------------------------------------

  // Known values of rows, ascending.
  function known(values, rows) {
    return numbersOf(rows.length, i => values[rows[i]]).filter(value => !isNaN(value)).sort();
  }

  // Linear between order statistics; `infinite` further values are greater than all.
  function quantile(ascending, share, infinite = 0) {
    const count = ascending.length + infinite;
    if (!count) return NaN;
    const at = share * (count - 1), low = Math.floor(at), high = at > low ? low + 1 : low;
    if (high >= ascending.length) return Infinity;
    return ascending[low] + (ascending[high] - ascending[low]) * (at - low);
  }

  // How many rows are unfinished and have no value yet: percentiles count them as infinite.
  function open(run, values, rows) {
    const unfinished = run.statuses.indexOf("unfinished");
    return rows.filter(row => run.status[row] === unfinished && isNaN(values[row])).length;
  }

  const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length;

  // Of each group of rows the number of tasks, mean and 95th percentile of wait and response, and the wait by cause.
  function groups(run, rows, codes, names) {
    return [...grouped(rows, row => codes[row])].map(([code, mine]) => {
      const wait = known(run.wait, mine), response = known(run.response, mine);
      return {
        code, name: names[code], count: mine.length, causes: waitByCause(run, mine),
        wait: mean(wait), waitHigh: quantile(wait, 0.95, open(run, run.wait, mine)),
        response: mean(response), responseHigh: quantile(response, 0.95, open(run, run.response, mine)),
      };
    }).sort((a, b) => b.count - a.count || a.code - b.code);
  }

  // Seconds waited by cause, of tasks that started or were still waiting.
  function waitByCause(run, rows) {
    return run.shares.map(shares => rows.reduce((sum, row) => sum + (shares[row] && shares[row] / 100 * waited(run, row)), 0));
  }

  // The seconds until the first start; of a task that never started, until it ended or the run did.
  function waited(run, row) {
    return ((isNaN(run.start[row]) ? last(run, row) : run.start[row]) - run.ready[row]) || 0;
  }
  // When a task ended, or the run before it did.
  const last = (run, row) => (isNaN(run.finish[row]) ? run.end : run.finish[row]);

  // A histogram of ascending values: by magnitude where they span more than a factor of 50, zeros apart.
  function histogram(ascending, bins, scale = extent([ascending])) {
    const counts = new Float64Array(bins), zeros = scale.log ? ascending.filter(value => value < scale.low).length : 0;
    for (const value of ascending.slice(zeros)) counts[clamp(Math.floor(share(scale, value) * bins), 0, bins - 1)]++;
    return { counts, zeros, ...scale };
  }

  // Where a value lies between the ends of a scale, which are 0 and 1.
  const share = ({ low, high, log }, value) => (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));

  // One scale for several lists of ascending values.
  function extent(lists) {
    const positive = lists.map(values => values.filter(value => value > 0)).filter(values => values.length);
    const high = Math.max(0, ...positive.map(values => values[values.length - 1]));
    const low = Math.min(...positive.map(values => values[Math.floor(values.length * 0.01)]));
    return high > 50 * low ? { low: Math.max(low, high * 1e-7), high, log: true } : { low: 0, high: high || 1, log: false };
  }

  // The share of ascending values that are at most `value` of the right edge (0 to 1) of each pixel.
  function shares(ascending, pixels, value) {
    let n = 0;
    return Array.from({ length: Math.floor(pixels) }, (_, pixel) => {
      const limit = value((pixel + 1) / Math.floor(pixels));
      while (n < ascending.length && ascending[n] <= limit) n++;
      return ascending.length ? n / ascending.length : 0;
    });
  }

  // The response of the same tasks under two runs: differences of run minus base, ascending.
  function paired(base, run, metric, mask) {
    const at = new Map(Array.from(base.id, (id, i) => [id, i])), out = new Float64Array(run.count).fill(NaN);
    for (let i = 0; i < run.count; i++) if (mask[i] && isMeasured(run, i)) out[i] = run[metric][i] - base[metric][at.get(run.id[i])];
    return out.filter(value => !isNaN(value)).sort();
  }

  // Of each device of the chosen node, the busiest first: launches of chosen tasks between two times, and the part of
  // the time in which it was up that they computed on it (NaN: it was never up).
  function devices(run, mask, low, high) {
    const { launches } = run, made = run.devices.map((one, device) => ({ ...one, device, count: 0, busy: 0, up: 1 }));
    const part = (begin, end) => Math.max(0, Math.min(end, high) - Math.max(begin, low)) / (high - low) || 0;
    for (const [device, begin, end] of run.off) made[device].up -= part(begin, end);
    for (let i = 0; i < launches.known; i++) {
      if (!mask.launch[i] || launches.end[i] < low || launches.decided[i] > high) continue;
      const lines = run.places[launches.place[i]], busy = launches.rate[i] / 1e4 * part(launches.compute_start[i], launches.compute_end[i]);
      for (const device of new Set(lines.map(([one]) => one))) made[device].count++;
      for (const [device] of lines) made[device].busy += busy / lines.length / made[device].units;
    }
    for (const one of made) one.utilization = high > low && one.up > 1e-9 ? one.busy / one.up : NaN;
    return made.filter(one => !mask.near || mask.node === run.nodeOfDevice[one.device])
      .sort((a, b) => (b.utilization || 0) - (a.utilization || 0) || a.device - b.device);
  }

  // Levels over time ---------------------------------------------------------------------------------------------

  // A level as its mean in each pixel: `add` an interval, then `values`.  Cost: one step an interval.
  class Level {
    constructor(low, high, width) {
      this.low = low; this.scale = width / (high - low); this.width = width;
      this.edge = new Float64Array(width + 2); this.step = new Float64Array(width + 2);
    }
    add(begin, end, weight = 1) {
      if (end > begin) { this.change(begin, weight); this.change(end, -weight); }
    }
    change(time, weight) {
      const x = clamp((time - this.low) * this.scale, 0, this.width), pixel = Math.floor(x);
      this.edge[pixel] += (pixel + 1 - x) * weight;
      this.step[pixel + 1] += weight;
    }
    values() {
      const out = new Float64Array(this.width);
      for (let i = 0, level = 0; i < this.width; i++) {
        level += this.step[i];
        out[i] = Math.max(0, level + this.edge[i]);
      }
      return out;
    }
  }

  // Waiting and running tasks, and the busy part of each device type that is up, between two times.
  function levels(run, mask, low, high, width) {
    const { launches, places, devices } = run, types = new Map(), level = () => new Level(low, high, width), [waiting, running] = [level(), level()];
    const wait = (begin, end) => { waiting.add(begin, end); running.add(begin, end, -1); };
    const isNear = device => !mask.near || mask.node === run.nodeOfDevice[device];
    for (let i = 0; i < run.count; i++) {
      if (!mask.task[i] || isNaN(run.ready[i])) continue;
      const end = last(run, i), start = isNaN(run.start[i]) ? end : run.start[i];
      waiting.add(run.ready[i], start);
      running.add(start, end);
      if (!isNaN(run.stopped[i])) wait(run.stopped[i], end);
    }
    devices.forEach(({ type, units }, d) => {
      if (!isNear(d)) return;
      if (!types.has(type)) types.set(type, { busy: level(), off: level(), units: 0 });
      types.get(type).units += units;
    });
    for (const [d, begin, end] of run.off) if (isNear(d)) types.get(devices[d].type).off.add(begin, end, devices[d].units);
    for (let i = 0; i < launches.count; i++) {
      const [place] = places[launches.place[i]];
      if (!mask.launch[i] || !place) continue;
      if (!isNaN(launches.again[i])) wait(launches.again[i], launches.begun[i]);
      if (launches.rate[i]) types.get(devices[place[0]].type)?.busy.add(launches.compute_start[i], launches.compute_end[i], launches.rate[i] / 1e4);
    }
    const busy = [...types].map(([type, one]) => {
      const down = one.off.values(), part = (value, i) => (value > 0 ? value / Math.max(value, one.units - down[i]) : 0);
      return { type, units: one.units, values: one.busy.values().map(part) };
    });
    return { waiting: waiting.values(), running: running.values(), busy: busy.filter(({ values }) => values.some(value => value > 0)) };
  }

  // Aggregation by pixel -----------------------------------------------------------------------------------------

  // Sums color × covered part in each pixel of several strips: what is narrower than a pixel still shows.
  class Coverage {
    constructor(strips, width) {
      this.width = width; this.strips = strips;
      this.sums = new Float32Array(strips * width * 4);
    }
    add(strip, from, to, [red, green, blue], weight = 1) {
      const low = Math.max(0, from), high = Math.min(this.width, to);
      for (let pixel = Math.floor(low); pixel < high; pixel++) {
        const part = (Math.min(high, pixel + 1) - Math.max(low, pixel)) * weight, at = (strip * this.width + pixel) * 4;
        this.sums[at] += red * part; this.sums[at + 1] += green * part; this.sums[at + 2] += blue * part;
        this.sums[at + 3] += part;
      }
    }
    pixels(floor = 0.12) {   // RGBA; what covers any part of a pixel is at least this strong
      const { sums } = this, out = new Uint8ClampedArray(sums.length);
      for (let at = 0; at < sums.length; at += 4) {
        const part = sums[at + 3];
        if (part <= 0) continue;
        out[at] = sums[at] / part; out[at + 1] = sums[at + 1] / part; out[at + 2] = sums[at + 2] / part;
        out[at + 3] = 255 * clamp(part, floor, 1);
      }
      return out;
    }
  }

  // Words --------------------------------------------------------------------------------------------------------

  const SECONDS = [[1e-9, "ns"], [1e-6, "µs"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"], [86400, "d"]];
  const FROM = { min: 2, h: 1.5, d: 2 };

  // `digits` figures that matter, as the terminal writes them.
  function figures(value, digits = 3) {
    if (!isFinite(value)) return isNaN(value) ? "–" : value > 0 ? "∞" : "-∞";
    if (value === 0) return "0";
    const size = Math.floor(Math.log10(Math.abs(value)));
    if (size >= 7 || size < -4) return value.toExponential(digits - 1).replace(/e([+-])(\d)$/, "e$10$2");
    const text = value.toFixed(Math.max(0, digits - 1 - size));
    const [whole, part = ""] = text.split("."), kept = part.replace(/0+$/, "");
    return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (kept && `.${kept}`);
  }

  function fitting(value) {
    const size = Math.abs(value), fits = SECONDS.filter(([factor, name]) => size >= factor * (FROM[name] || 1) * (1 - 1e-12));
    return size === 0 || !isFinite(size) ? [1, "s"] : fits.pop() || SECONDS[0];
  }

  // Times in one unit, that of the middle one, as the terminal writes a column.
  function column(values) {
    const sizes = values.map(Math.abs).filter(size => size > 0 && isFinite(size)).sort((a, b) => a - b);
    const [factor, name] = fitting(sizes.length ? sizes[sizes.length - 1 >> 1] : 0);
    return values.map(value => (isFinite(value) ? `${figures(value / factor)} ${name}` : figures(value)));
  }
  const seconds = value => column([value])[0];

  // Ticks of a time axis: [time, text], and the unit.
  function timeTicks(low, high, most) {
    const [factor, name] = fitting(high - low), span = (high - low) / factor;
    const steps = { min: [0.25, 0.5, 1, 2, 5, 10, 15, 30, 60], h: [0.25, 0.5, 1, 2, 3, 6, 12, 24], s: [1, 2, 5, 10, 15, 30, 60] };
    let step = (steps[name] || []).find(one => span / one <= most);
    if (!step || span / step < 2) {
      const size = 10 ** Math.floor(Math.log10(span / most));
      step = size * [1, 2, 2.5, 5, 10].find(one => span / (one * size) <= most);
    }
    const out = [];
    for (let n = Math.ceil(low / factor / step - 1e-9); n * step * factor <= high * (1 + 1e-12); n++) {
      out.push([n * step * factor, String(Number((n * step).toPrecision(12)))]);
    }
    return { ticks: out, unit: name };
  }

  return { NONE, Coverage, Level, clamp, column, decode, devices, extent, figures, groups, histogram, known, last, levels, masks, mean,
    merged, open, paired, quantile, seconds, share, shares, span, timeTicks, waited, waitByCause, within };
})();

if (typeof module !== "undefined") module.exports = Core;
