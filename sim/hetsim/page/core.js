"use strict";
// What the page of a report computes without a document: decoding, scales, filters, aggregation by pixel.
// The page includes it as a script, tests as a module of node.

const Core = (() => {
  const NONE = -1;                     // no filter

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
    const last = Float64Array.from(before);
    const times = {};
    for (const name of names) {
      const step = columns[name], out = (times[name] = new Float64Array(step.length));
      for (let i = 0; i < step.length; i++) {
        if (step[i] === 0) out[i] = NaN;
        else out[i] = (last[i] += signed(step[i] - 1)) * tick;
      }
    }
    return times;
  }

  function build(raw) {
    const { columns, tick } = raw, count = raw.tasks;
    const arrival = columns.arrival;
    const run = {
      label: raw.label, end: raw.end, warmup: raw.warmup, horizon: raw.horizon ?? Infinity, tick, count,
      id: columns.id, classes: raw.class, users: raw.user, statuses: raw.status, reasons: raw.reason,
      modes: raw.mode, outcomes: raw.outcome, causes: raw.causes, places: columns.places,
      devices: columns.devices.map(([name, type, node, units]) => ({ name, type, node, units })),
      off: columns.off, cores: new Set(raw.cores),
      klass: columns.class, user: columns.user, status: columns.status, reason: columns.reason,
      arrival: Float64Array.from(arrival, value => value * tick),
      shares: raw.causes.map(name => columns[`cause ${name}`]),
      batch: columns.batch,
    };
    const taskNames = ["ready", "start", "finish"];
    Object.assign(run, chain(columns, taskNames, arrival, tick));
    const base = Float64Array.from(run.start, (value, i) => Math.round((isNaN(value) ? run.ready[i] : value) / tick));
    const own = Int32Array.from(columns["launch task"]);
    const launchNames = ["decided", "begun", "upload_start", "upload_end", "compute_start", "compute_end", "download_start",
      "end"];
    const times = chain(columns, launchNames, Float64Array.from(own, row => base[row]), tick);
    const token = chain(columns, ["token"], base, tick).token;
    run.nodes = [...new Set(run.devices.map(device => device.node))];
    const nodeOf = new Map(run.nodes.map((name, i) => [name, i]));
    run.nodeOfDevice = Int32Array.from(run.devices, device => nodeOf.get(device.node));
    run.launches = launches(run, { ...columns, own }, times, token);
    run.response = Float64Array.from(run.finish, (value, i) => value - run.arrival[i]);
    run.wait = Float64Array.from(run.start, (value, i) => value - run.ready[i]);
    const completed = run.statuses.indexOf("completed");
    for (let i = 0; i < count; i++) if (run.status[i] !== completed) run.response[i] = NaN;
    run.rows = rows(run);
    return run;
  }

  // The launches, and behind them a launch for each request to a language model (from its start to its first token
  // as an upload).  `drawn` are all but the busy periods of replicas.
  function launches(run, columns, times, token) {
    const requests = [];
    for (let i = 0; i < run.count; i++) {
      const number = run.batch[i] - 1;
      if (number >= 0 && columns.period[number] && !isNaN(run.start[i])) requests.push(i);
    }
    const known = columns.own.length, count = known + requests.length;
    const grown = (column, value) => {
      const out = new column.constructor(count);
      out.set(column);
      for (let i = 0; i < requests.length; i++) out[known + i] = value(requests[i]);
      return out;
    };
    const last = row => (isNaN(run.finish[row]) ? run.end : run.finish[row]);
    const first = row => (isNaN(token[row]) ? last(row) : token[row]);
    const of = row => run.batch[row] - 1;
    const made = {
      count, known,
      task: grown(columns.own, row => row),
      mode: grown(columns.mode, row => columns.mode[of(row)]),
      outcome: grown(columns.outcome, () => 0),
      place: grown(columns.place, row => columns.place[of(row)]),
      members: grown(columns.members, () => 1),
      rate: grown(columns.rate, () => 0),
      decided: grown(times.decided, row => run.start[row]),
      begun: grown(times.begun, row => run.start[row]),
      upload_start: grown(times.upload_start, row => run.start[row]),
      upload_end: grown(times.upload_end, first),
      compute_start: grown(times.compute_start, row => (isNaN(token[row]) ? NaN : token[row])),
      compute_end: grown(times.compute_end, row => (isNaN(token[row]) ? NaN : last(row))),
      download_start: grown(times.download_start, () => NaN),
      end: grown(times.end, last),
      drawn: new Uint8Array(count).fill(1),
      again: new Float64Array(count).fill(NaN),   // since when its task waited again, after an earlier launch
    };
    for (let i = 0; i < known; i++) made.drawn[i] = columns.period[i] ? 0 : 1;
    for (let i = 0; i < count; i++) {
      if (!isNaN(made.compute_start[i]) && isNaN(made.compute_end[i])) made.compute_end[i] = made.end[i];
      if (!isNaN(made.upload_start[i]) && isNaN(made.upload_end[i])) made.upload_end[i] = made.end[i];
    }
    const ended = new Float64Array(run.count).fill(NaN);
    for (let i = 0; i < known; i++) {
      if (!made.drawn[i] || isNaN(made.begun[i])) continue;   // what was stopped before its first stage was waiting
      const row = made.task[i];
      if (ended[row] < made.begun[i]) made.again[i] = ended[row];
      if (!(ended[row] > made.end[i])) ended[row] = made.end[i];
    }
    run.stopped = ended.map((time, row) => (last(row) - time > run.tick ? time : NaN));   // and it never ran again
    return made;
  }

  // Rows of the Gantt chart --------------------------------------------------------------------------------------

  // Bars by row, in order of time: `first[r]` to `first[r + 1]` are the launches `bar` of row r.  A device whose stages
  // never overlap themselves has one row with a strip an engine (`engines`); others have a row a lane, or a core.
  function rows(run) {
    const { launches, places, devices } = run, sizes = new Int32Array(devices.length + 1);
    for (let i = 0; i < launches.count; i++) {
      if (launches.drawn[i]) for (const [device] of places[launches.place[i]]) sizes[device + 1]++;
    }
    for (let d = 0; d < devices.length; d++) sizes[d + 1] += sizes[d];
    const bar = new Int32Array(sizes[devices.length]), core = new Int32Array(bar.length), fill = sizes.slice();
    for (let i = 0; i < launches.count; i++) {
      if (!launches.drawn[i]) continue;
      for (const [device, number] of places[launches.place[i]]) {
        core[fill[device]] = number;
        bar[fill[device]++] = i;
      }
    }
    const made = [];
    for (let d = 0; d < devices.length; d++) {
      if (sizes[d] === sizes[d + 1]) continue;
      made.push(...lanesOf(run, d, bar.subarray(sizes[d], sizes[d + 1]), core.subarray(sizes[d], sizes[d + 1])));
    }
    return made;
  }

  function lanesOf(run, device, bar, core) {
    const { launches } = run, { name, type } = run.devices[device], onCores = run.cores.has(type);
    const row = (label, bars, engines) => ({ device, label, bar: bars, engines, onCores, capacity: 1 });
    if (core.length && core.every(number => number >= 0)) {
      const by = new Map();
      core.forEach((number, i) => (by.get(number) || by.set(number, []).get(number)).push(bar[i]));
      return [...by.keys()].sort((a, b) => a - b).map(number => row(`${name}${number}`, Int32Array.from(by.get(number))));
    }
    const order = sorted(bar, launches.decided);
    const engines = ["upload", "compute", "download"].every(stage => alone(run, order, stage));
    if (engines) {
      const transfers = order.some(i => !isNaN(launches.upload_start[i]) || !isNaN(launches.download_start[i]));
      return [row(name, order, transfers)];
    }
    const free = [], lanes = [];
    for (const i of order) {
      let lane = 0;
      while (lane < free.length && free[lane] > launches.decided[i]) lane++;
      if (lane === free.length) lanes.push([]);
      free[lane] = launches.end[i];
      lanes[lane].push(i);
    }
    return lanes.map((bars, lane) => row(lane ? "" : name, Int32Array.from(bars)));
  }

  function sorted(indexes, key) {
    for (let i = 1; i < indexes.length; i++) {
      if (key[indexes[i]] < key[indexes[i - 1]]) return indexes.slice().sort((a, b) => key[a] - key[b] || a - b);
    }
    return indexes;
  }

  // Does no launch begin this stage before the one before it has ended it?
  function alone(run, order, stage) {
    let until = -Infinity;
    for (const i of order) {
      const [begin, end] = span(run.launches, i, stage);
      if (isNaN(begin)) continue;
      if (begin < until - run.tick / 2) return false;
      until = Math.max(until, end);
    }
    return true;
  }

  // Begin and end of a stage of a launch.
  function span(launches, i, stage) {
    if (stage === "upload") return [launches.upload_start[i], launches.upload_end[i]];
    if (stage === "compute") return [launches.compute_start[i], launches.compute_end[i]];
    return [launches.download_start[i], launches.end[i]];
  }

  // One row a device, for clusters with more lanes than a picture has room for.
  function merged(run) {
    const by = new Map();
    for (const one of run.rows) {
      const other = by.get(one.device);
      if (other) other.parts.push(one.bar);
      else by.set(one.device, { ...one, label: run.devices[one.device].name, parts: [one.bar] });
    }
    return [...by.values()].map(({ parts, ...one }) => {
      if (parts.length === 1) return { ...one, bar: parts[0] };
      const all = new Int32Array(parts.reduce((sum, part) => sum + part.length, 0));
      let at = 0;
      for (const part of parts) { all.set(part, at); at += part.length; }
      return { ...one, bar: sorted(all, run.launches.decided), engines: false, capacity: parts.length };
    });
  }

  // Filters ------------------------------------------------------------------------------------------------------

  // Which tasks and launches pass: by code of class, user and status, node, and a range of a metric.
  function masks(run, filter) {
    const { launches } = run, task = new Uint8Array(run.count), launch = new Uint8Array(launches.count);
    const near = filter.node === NONE ? null
      : Uint8Array.from(run.places, place => +place.some(([device]) => run.nodeOfDevice[device] === filter.node));
    let there = null;
    if (near) {
      there = new Uint8Array(run.count);
      for (let i = 0; i < launches.count; i++) if (near[launches.place[i]]) there[launches.task[i]] = 1;
      for (let i = 0; i < run.count; i++) {
        const number = run.batch[i] - 1;
        if (number >= 0 && near[launches.place[number]]) there[i] = 1;
      }
    }
    const range = filter.range, values = range && run[range.metric];
    for (let i = 0; i < run.count; i++) {
      task[i] = +((filter.klass === NONE || run.klass[i] === filter.klass)
        && (filter.user === NONE || run.user[i] === filter.user)
        && (filter.status === NONE || run.status[i] === filter.status)
        && (!there || there[i] === 1)
        && (!range || (values[i] >= range.low && values[i] <= range.high)));
    }
    for (let i = 0; i < launches.count; i++) launch[i] = task[launches.task[i]];
    for (let i = 0; i < run.count; i++) {   // a batch passes with any of its members
      const number = run.batch[i] - 1;
      if (number >= 0 && task[i]) launch[number] = 1;
    }
    if (near) for (let i = 0; i < launches.count; i++) if (!near[launches.place[i]]) launch[i] = 0;
    return { task, launch, near, node: filter.node };
  }

  // Tasks that pass, arrived in the measured window, and were there between two times.
  function within(run, mask, low, high) {
    const rows = [];
    for (let i = 0; i < run.count; i++) {
      if (!mask[i] || run.arrival[i] < run.warmup || run.arrival[i] >= run.horizon) continue;
      if (run.arrival[i] <= high && !(run.finish[i] < low)) rows.push(i);
    }
    return rows;
  }

  // Statistics ---------------------------------------------------------------------------------------------------

  // Known values of rows, ascending.
  function known(values, rows) {
    const out = new Float64Array(rows.length);
    let count = 0;
    for (const row of rows) if (!isNaN(values[row])) out[count++] = values[row];
    return out.subarray(0, count).sort();
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
    const by = new Map();
    for (const row of rows) {
      const code = codes[row];
      if (!by.has(code)) by.set(code, []);
      by.get(code).push(row);
    }
    return [...by.entries()].map(([code, mine]) => {
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
    return run.shares.map(shares => {
      let sum = 0;
      for (const row of rows) if (shares[row]) sum += shares[row] / 100 * waited(run, row);
      return sum;
    });
  }

  // The seconds until the first start; of a task that never started, until it ended or the run did.
  function waited(run, row) {
    if (isNaN(run.ready[row])) return 0;
    if (!isNaN(run.start[row])) return run.start[row] - run.ready[row];
    return (isNaN(run.finish[row]) ? run.end : run.finish[row]) - run.ready[row];
  }

  // A histogram of ascending values: by magnitude where they span more than a factor of 50, zeros apart.
  function histogram(ascending, bins, scale = null) {
    const { low, high, log } = scale || extent([ascending]);
    const counts = new Float64Array(bins);
    let zeros = 0;
    for (const value of ascending) {
      if (log && value < low) { zeros++; continue; }
      const share = log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
      counts[Math.min(bins - 1, Math.max(0, Math.floor(share * bins)))]++;
    }
    return { counts, zeros, low, high, log };
  }

  // One scale for several lists of ascending values.
  function extent(lists) {
    let high = 0, low = Infinity;
    for (const values of lists) {
      if (!values.length) continue;
      high = Math.max(high, values[values.length - 1]);
      const first = values.findIndex(value => value > 0);
      if (first >= 0) low = Math.min(low, values[first + Math.floor((values.length - first) * 0.01)]);
    }
    if (!(high > 0)) return { low: 0, high: 1, log: false };
    if (high > 50 * low) return { low: Math.max(low, high * 1e-7), high, log: true };
    return { low: 0, high, log: false };
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
    const at = new Map();
    for (let i = 0; i < base.count; i++) at.set(base.id[i], i);
    const out = [];
    for (let i = 0; i < run.count; i++) {
      const other = at.get(run.id[i]);
      if (other === undefined || !mask[i] || run.arrival[i] < run.warmup || run.arrival[i] >= run.horizon) continue;
      const difference = run[metric][i] - base[metric][other];
      if (!isNaN(difference)) out.push(difference);
    }
    return Float64Array.from(out).sort();
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
      const x = Math.min(this.width, Math.max(0, (time - this.low) * this.scale)), pixel = Math.floor(x);
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
    const { launches } = run;
    const waiting = new Level(low, high, width), running = new Level(low, high, width);
    for (let i = 0; i < run.count; i++) {
      if (!mask.task[i] || isNaN(run.ready[i])) continue;
      const end = isNaN(run.finish[i]) ? run.end : run.finish[i];
      if (isNaN(run.start[i])) { waiting.add(run.ready[i], end); continue; }
      waiting.add(run.ready[i], run.start[i]);
      running.add(run.start[i], end);
      if (!isNaN(run.stopped[i])) { waiting.add(run.stopped[i], end); running.add(run.stopped[i], end, -1); }
    }
    const types = new Map();
    run.devices.forEach((device, d) => {
      if (mask.near && mask.node !== run.nodeOfDevice[d]) return;
      if (!types.has(device.type)) types.set(device.type, { level: new Level(low, high, width), off: new Level(low, high, width), units: 0 });
      types.get(device.type).units += device.units;
    });
    for (const [d, begin, end] of run.off) {
      const { type, units } = run.devices[d];
      if (!mask.near || mask.node === run.nodeOfDevice[d]) types.get(type).off.add(begin, end, units);
    }
    for (let i = 0; i < launches.count; i++) {
      if (!mask.launch[i] || !run.places[launches.place[i]].length) continue;
      if (!isNaN(launches.again[i])) {
        waiting.add(launches.again[i], launches.begun[i]);
        running.add(launches.again[i], launches.begun[i], -1);
      }
      if (!launches.rate[i] || isNaN(launches.compute_start[i])) continue;
      const type = types.get(run.devices[run.places[launches.place[i]][0][0]].type);
      if (type) type.level.add(launches.compute_start[i], launches.compute_end[i], launches.rate[i] / 1e4);
    }
    const busy = [];
    for (const [type, { level, off, units }] of types) {
      const values = level.values(), down = off.values(), part = (value, i) => value / Math.max(value, units - down[i]);
      if (values.some(value => value > 0)) busy.push({ type, units, values: values.map((value, i) => value > 0 ? part(value, i) : 0) });
    }
    return { waiting: waiting.values(), running: running.values(), busy };
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
        out[at + 3] = 255 * Math.min(1, Math.max(floor, part));
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

  return {
    NONE, Coverage, Level, column, decode, devices, extent,
    figures, groups, histogram, known, levels, masks, mean, merged, open, paired, quantile, seconds, shares, span, timeTicks, waited,
    waitByCause, within,
  };
})();

if (typeof module !== "undefined") module.exports = Core;
