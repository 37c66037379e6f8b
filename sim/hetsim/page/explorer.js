"use strict";
// The part of a report that one can walk in: chart of launches, levels over time, distribution, groups, tasks.
// All that has a name from a scenario goes into the page as text (textContent, fillText), never as HTML.

(() => {
  const { Plot, make } = Pictures, { clamp, seconds } = Core;
  const STAGES = ["upload", "compute", "download"], COLORS = 7, MAX_ROWS = 150, MAX_TASKS = 25, MAX_DEVICES = 12, MAX_GROUPS = 12;
  const CAUSES = { no_capacity: "c3", fragmentation: "c4", head_of_line: "c1", quota: "c6", reservation: "c5",
    transfer: "c2", choice: "c0", scheduler: "c7", topology: "c8" };
  const FILTERS = [["Class", "klass", "classes"], ["User", "user", "users"], ["Node", "node", "nodes"], ["Status", "status", "statuses"]];
  const NO_FILTER = { klass: Core.NONE, user: Core.NONE, node: Core.NONE, status: Core.NONE };
  // What bars are colored by: codes of tasks or launches, and their names.
  const SCHEMES = { stage: null, class: run => [run.klass, run.classes], user: run => [run.user, run.users],
    mode: run => [run.launches.mode, run.modes] };
  const ROUND_TIMES = [1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 36000, 86400, 864000, 8640000, 86400000];
  const KEYS = "Drag: zoom to a time · wheel after a click (or Ctrl and wheel): zoom · Shift and drag: move · click: pin a "
    + "task · keys: ← → + − 0, ↑ ↓ rows (Shift: zoom rows), N and P: next and previous launch, Esc";
  const words = name => name.replace(/_/g, " "), total = values => values.reduce((sum, value) => sum + value, 0);
  const number = value => value.toLocaleString("en"), percent = share => `${Math.round(share * 100)} %`;
  const partOf = (all, most, what) => (all.length > most ? `the ${most} ${what} of ${number(all.length)}` : "");
  const highest = values => Math.max(0, ...values), colorOfRun = i => `c${i % 8}`;

  class Explorer {
    constructor(host, runs) {
      Object.assign(this, { host, runs, at: 0, filter: { ...NO_FILTER, range: null }, scheme: "stage", metric: "response",
        order: "response", hover: -1, pinned: -1, end: Math.max(...runs.map(run => run.end), 1e-9) });
      this.view = { low: 0, high: this.end, top: 0, bottom: 1 };
      this.build(); this.choose(0);
      new ResizeObserver(() => host.clientWidth === this.width || this.draw()).observe(host);   // tables change its height alone
      addEventListener("theme", () => this.refresh());
    }
    get run() { return this.runs[this.at]; }
    get many() { return this.runs.length > 1; }
    get zoomed() { return this.view.low > 0 || this.view.high < this.end; }

    // The parts of the page -------------------------------------------------------------------------------------

    build() {
      const { host } = this, time = share => this.view.low + share * (this.view.high - this.view.low);
      const [left, right, lone] = [make("div"), make("div"), make("div")];
      for (const name of ["groups", "pairs", "devices", "tasks"]) this[name] = make("div");
      this.tools = make("div", { class: "tools" });
      this.said = make("p", { class: "note", role: "status" });
      this.spreadSaid = make("p", { class: "note" });
      host.replaceChildren(this.tools);
      this.gantt = new Plot(host, 200, "Launches on their devices over time", {
        class: "gantt", tabindex: 0, "aria-describedby": "explorer-keys", onkeydown: event => this.key(event),
        onwheel: event => this.wheel(event), onpointerleave: () => this.say(-1), onblur: () => this.say(-1),
        onpointermove: event => event.buttons || this.say(this.under(event.offsetX, event.offsetY), event.clientX, event.clientY),
        ondblclick: () => this.look(0, this.end),
      });
      this.queue = new Plot(host, 98, "Waiting and running tasks over time");
      this.busy = new Plot(host, 80, "Busy part of the devices over time");
      this.whole = new Plot(host, 44, "Waiting tasks over the whole run, with the part that is shown");
      host.append(this.said, make("p", { class: "note", id: "explorer-keys" }, KEYS), make("div", { class: "pair" }, left, right));
      left.append(make("h3", {}, "Distribution"), make("div", { class: "tools" }, this.select(
        "Distribution of", [["response", "response"], ["wait", "wait"]], this.metric, value => {
          this.metric = this.order = value; this.filter.range = null; this.refresh();
        })));
      this.spread = new Plot(left, 210, "Distribution over tasks", { class: "gantt" });
      this.gaps = new Plot(lone, 150, "Differences of the same tasks between runs");
      left.append(this.spreadSaid); right.append(this.groups);
      host.append(this.pairs, this.devices, this.tasks);
      for (const plot of [this.gantt, this.queue, this.busy]) {
        this.brush(plot, (from, to) => this.look(time(from), time(to)), () => plot === this.gantt && this.pin(this.hover),
          (view, share) => this.look(view.low + share * (view.high - view.low), view.high + share * (view.high - view.low)));
      }
      this.brush(this.whole, (from, to) => this.look(this.end * from, this.end * to),
        share => this.look(this.end * share - (time(1) - time(0)) / 2, this.end * share + (time(1) - time(0)) / 2));
      this.brush(this.spread, (from, to) => this.chooseRange(from, to), () => this.chooseRange(null));
    }
    select(label, options, value, change) {
      const list = make("select", { onchange: () => change(list.value) },
        ...options.map(([key, text]) => make("option", { value: key, selected: key === String(value) }, text)));
      return make("label", {}, label, list);
    }
    fillTools() {
      const { run, runs, filter } = this, lists = [];
      const button = (text, title, act) => make("button", { type: "button", title, onclick: act }, text);
      if (this.many) lists.push(this.select("Run", runs.map((one, i) => [String(i), one.label]), this.at, value => this.choose(Number(value))));
      for (const [label, key, names] of FILTERS) {
        const used = new Set(key === "node" ? run.nodeOfDevice : run[key]);
        const options = run[names].map((name, code) => [String(code), name || "(none)"]).filter((_, code) => used.has(code));
        if (options.length < 2) continue;
        options.unshift([String(Core.NONE), `all ${number(options.length)}`]);
        lists.push(this.select(label, options, filter[key], value => this.choose(this.at, { [key]: Number(value) })));
      }
      const schemes = Object.keys(SCHEMES).filter(name => !SCHEMES[name] || new Set(SCHEMES[name](run)[0]).size > 1).map(name => [name, name]);
      if (schemes.length > 1) lists.push(this.select("Color by", schemes, this.scheme, value => { this.scheme = value; this.refresh(); }));
      this.reset = button("Whole run", "Show the whole run (0)", () => this.look(0, this.end, 0, null));
      this.clear = button("Clear filters", "Show all tasks", () => this.choose(this.at, { ...NO_FILTER, range: null }));
      this.tools.replaceChildren(...lists, make("span", { class: "end" }, button("−", "Zoom out (−)", () => this.zoom(2)),
        button("+", "Zoom in (+)", () => this.zoom(0.5)), this.reset, this.clear));
    }

    // State ------------------------------------------------------------------------------------------------------

    choose(at, change = {}) {
      if (at !== this.at) this.hover = this.pinned = -1;
      Object.assign(this.filter, change, at === this.at ? {} : NO_FILTER);
      this.at = at;
      this.fillTools(); this.refresh(true);
    }
    refresh(rows = false) {
      const { run, filter: { node } } = this;
      this.theme = Pictures.colors();
      this.mask = Core.masks(run, this.filter);
      this.masks = this.runs.map((one, i) => (i === this.at ? this.mask : Core.masks(one, this.translated(one))));
      if (rows) {
        const part = { ...run, rows: run.rows.filter(row => node === Core.NONE || run.nodeOfDevice[row.device] === node) };
        this.rows = part.rows.length > MAX_ROWS ? Core.merged(part) : part.rows;
        const count = Math.max(1, this.rows.length);
        this.gantt.height = clamp(count * clamp(160 / count, 22, 54), 54, 440) + 24;
        Object.assign(this.view, { top: 0, bottom: count });
        this.left = Math.ceil(clamp(this.gantt.width(this.rows.slice(0, 2000).map(row => row.label)) + 12, 46, 150));
      }
      this.palette = this.readPalette();
      this.draw(); this.tables();
    }

    // The filter in the codes of another run, which has the same names.
    translated(run) {
      const codes = FILTERS.map(([, key, names]) => {
        const value = this.filter[key], code = value === Core.NONE ? value : run[names].indexOf(this.run[names][value]);
        return [key, code < 0 && value !== Core.NONE ? Infinity : code];
      });
      return { range: this.filter.range, ...Object.fromEntries(codes) };
    }
    look(low, high, top = this.view.top, bottom = this.view.bottom) {
      const least = Math.max(this.run.tick * 4, this.end * 1e-9), length = clamp(high - low, least, this.end);
      const begin = clamp(low, 0, this.end - length), count = Math.max(1, this.rows.length);
      const rows = clamp((bottom ?? count) - top, Math.min(3, count), count), first = clamp(top, 0, count - rows);
      this.view = { low: begin, high: begin + length, top: first, bottom: first + rows };
      this.draw();
      clearTimeout(this.later);
      this.later = setTimeout(() => this.tables(), 120);
    }
    zoom(factor, share = 0.5) {
      const { low, high } = this.view, length = (high - low) * factor, center = low + (high - low) * share;
      this.look(center - length * share, center + length * (1 - share));
    }
    chooseRange(from, to) {
      const { scaleOfSpread: scale } = this;
      this.filter.range = from === null || !scale ? null : { metric: this.metric, low: scale(from), high: scale(to) };
      this.refresh();
    }

    // Pointer and keys -------------------------------------------------------------------------------------------

    // A drag over a plot: `dragged` gets both ends as shares of its width, `clicked` the place of a click, and
    // `moved`, with Shift, the view at the beginning and the way back to it.
    brush(plot, dragged, clicked, moved = null) {
      const { canvas, box } = plot, band = make("div", { class: "band", hidden: true });
      const place = event => clamp((event.offsetX - plot.left) / plot.wide, 0, 1);
      let from = null, far = false, view = null;
      const acts = {
        pointerdown: event => {
          if (event.button) return;
          [from, far, view] = [place(event), false, { ...this.view }];
          canvas.setPointerCapture(event.pointerId);
        },
        pointermove: event => {
          const to = place(event);
          if (from === null || !(far ||= Math.abs(to - from) * plot.wide > 4)) return;
          if (event.shiftKey && moved) { moved(view, from - to); return; }
          band.hidden = false;
          Object.assign(band.style, { left: `${plot.left + Math.min(from, to) * plot.wide}px`, top: `${plot.top}px`,
            width: `${Math.abs(to - from) * plot.wide}px`, height: `${plot.high}px` });
        },
        pointerup: event => {
          const ends = [from, place(event)];
          if (from !== null && !far) clicked(ends[1]);
          else if (!band.hidden) dragged(Math.min(...ends), Math.max(...ends));
          acts.pointercancel();
        },
        pointercancel: () => { from = null; band.hidden = true; },
      };
      box.append(band);
      for (const [name, act] of Object.entries(acts)) canvas.addEventListener(name, act);
    }
    wheel(event) {
      if (!(event.ctrlKey || event.metaKey || document.activeElement === this.gantt.canvas)) return;
      event.preventDefault();
      const share = clamp((event.offsetX - this.gantt.left) / this.gantt.wide, 0, 1), { low, high } = this.view;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const shift = (event.deltaX || event.deltaY) / 600 * (high - low);
        this.look(low + shift, high + shift);
      } else this.zoom(Math.exp(clamp(event.deltaY, -200, 200) / 300), share);
    }
    key(event) {
      const { low, high, top, bottom } = this.view, step = (high - low) / 5, middle = (top + bottom) / 2, rows = bottom - top;
      const whole = () => this.look(0, this.end, 0, null), closer = () => this.zoom(0.5), farther = () => this.zoom(2);
      const along = (by, scale) => () => (event.shiftKey ? this.look(low, high, middle - rows * scale / 2, middle + rows * scale / 2)
        : this.look(low, high, top + by * rows / 5, bottom + by * rows / 5));
      const act = {
        ArrowLeft: () => this.look(low - step, high - step), ArrowRight: () => this.look(low + step, high + step), ArrowUp: along(-1, 2 / 3),
        ArrowDown: along(1, 1.5), "+": closer, "=": closer, "-": farther, _: farther, 0: whole, Home: whole, n: () => this.step(1),
        p: () => this.step(-1), Enter: () => this.pin(this.hover), Escape: () => { this.pin(-1); this.say(-1); },
      }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    }

    // The next or previous launch in time of those that are shown, for the keyboard.
    step(by) {
      const { gantt, mask, run: { launches }, view: { low, high, top, bottom } } = this, box = gantt.canvas.getBoundingClientRect();
      const isShown = i => mask.launch[i] && launches.end[i] >= low && launches.decided[i] <= high;
      const there = this.rows.slice(Math.floor(top), Math.ceil(bottom)).flatMap(row => Array.from(row.bar).filter(isShown));
      const order = [...new Set(there)].sort((a, b) => launches.decided[a] - launches.decided[b] || a - b);
      if (!order.length) return;
      const next = order[Pictures.following(order.indexOf(this.hover), by, order.length)];
      this.say(next, box.left + clamp(gantt.across(launches.decided[next]), gantt.left, gantt.left + gantt.wide), box.top + gantt.high / 2);
    }

    // The launch at a place of the chart: the nearest in time within three pixels.
    under(x, y) {
      const { gantt, view, run: { launches } } = this, at = view.top + (y - gantt.top) / gantt.high * (view.bottom - view.top);
      const row = this.rows[Math.floor(at)];
      if (!row || x < gantt.left || x > gantt.left + gantt.wide || y < gantt.top || y > gantt.top + gantt.high) return -1;
      const time = view.low + (x - gantt.left) / gantt.wide * (view.high - view.low);
      let best = -1, least = 3 * (view.high - view.low) / gantt.wide;
      for (const i of row.bar) {
        const distance = Math.max(launches.decided[i] - time, time - launches.end[i], 0) + (this.mask.launch[i] ? 0 : least / 2);
        if (distance < least || (distance === 0 && launches.compute_start[i] <= time)) { best = i; least = distance || 1e-300; }
      }
      return best;
    }
    pin(launch) {
      this.pinned = launch < 0 || this.pinned === this.run.launches.task[launch] ? -1 : this.run.launches.task[launch];
      this.draw(); this.taskTable();
    }
    say(launch, x = 0, y = 0) {
      const changed = launch !== this.hover;
      this.hover = launch;
      Pictures.say(launch < 0 ? null : changed ? this.describe(launch) : [], x, y);
      if (changed) this.draw();
    }
    describe(launch) {
      const { run } = this, { launches } = run, row = launches.task[launch], wait = Core.waited(run, row), members = launches.members[launch];
      const on = run.places[launches.place[launch]].map(([device, core]) => run.devices[device].name + (core < 0 ? "" : core));
      const status = run.statuses[run.status[row]], reason = run.reasons[run.reason[row]], outcome = run.outcomes[launches.outcome[launch]];
      const length = (begin, end) => !isNaN(begin) && seconds(end - begin);
      const stage = name => (launch < launches.known ? name : name === "upload" ? "to its first token" : "further tokens");
      return Pictures.facts(`task ${run.id[row]}`, [
        ["class", run.classes[run.klass[row]]], ["user", run.users[run.user[row]]], ["mode", run.modes[launches.mode[launch]]],
        ["on", on.slice(0, 4).join(", ") + (on.length > 4 ? ` and ${on.length - 4} more` : "")],
        ["in this launch", members > 1 && `${number(members)} tasks`],
        ["ended", status !== "completed" && (reason ? `${status}: ${reason}` : status)],
        ["arrived at", seconds(run.arrival[row])], ["waited", seconds(wait)],
        ...run.causes.map((cause, i) => [`· ${words(cause)}`, run.shares[i][row] * wait > 0 && seconds(run.shares[i][row] / 100 * wait)]),
        ["waited again", length(launches.again[launch], launches.begun[launch])],
        ...STAGES.map(name => [stage(name), length(...Core.span(launches, launch, name))]),
        ["this launch", outcome !== "completed" && outcome], ["response", length(0, run.response[row])],
      ].filter(([, value]) => value));
    }

    // Colors -----------------------------------------------------------------------------------------------------

    // Colors as numbers, and the color of each code of the scheme: the most frequent have their own.
    readPalette() {
      const { theme, scheme, run } = this, by = new Map(), names = [], counts = new Map();
      const hex = Object.entries(theme).filter(([, text]) => /^#[0-9a-f]{6}$/i.test(text));
      const rgb = Object.fromEntries(hex.map(([name, text]) => [name, text.slice(1).match(/../g).map(one => parseInt(one, 16))]));
      if (scheme !== "stage") {
        const [codes, texts] = SCHEMES[scheme](run);
        for (const code of codes) counts.set(code, (counts.get(code) || 0) + 1);
        [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]).forEach(([code], n) => {
          by.set(code, `c${Math.min(n, COLORS)}`);
          // The last color is of one, or of all others.
          if (n < COLORS || counts.size === COLORS + 1) names.push([texts[code] || "(none)", `c${n}`]);
          else if (n === COLORS) names.push([`${counts.size - COLORS} others`, "c7"]);
        });
      }
      return { rgb, by, names };
    }
    colorOf(i, stage, onCores) {
      const { run, scheme, palette } = this, { launches } = run;
      if (!this.mask.launch[i]) return "dim";
      if (scheme !== "stage") return palette.by.get(SCHEMES[scheme](run)[0][scheme === "mode" ? i : launches.task[i]]);
      if (run.outcomes[launches.outcome[i]] === "lost") return "lost";
      if (stage === "upload") return i < launches.known ? "upload" : "prompt";
      return stage === "compute" && onCores ? "cores" : stage;
    }

    // Pictures ---------------------------------------------------------------------------------------------------

    draw() {
      this.waiting ||= requestAnimationFrame(() => {
        Object.assign(this, { waiting: 0, width: this.host.clientWidth });
        this.drawGantt(); this.drawLevels();
      });
    }
    drawGantt() {
      const { gantt, theme, view, rows, run } = this, pen = gantt.begin(this.left), height = gantt.high / (view.bottom - view.top);
      const first = Math.floor(view.top), last = Math.min(rows.length, Math.ceil(view.bottom)), shown = rows.slice(first, last);
      if (!rows.length) gantt.text(run.count ? "Nothing was launched here." : "No task arrived.", gantt.left, gantt.high / 2, theme.muted);
      this.shade(gantt);
      gantt.show(Pictures.timeAxis(view.low, view.high, gantt.wide), { low: view.bottom, high: view.top,
        ticks: shown.map((row, n) => [first + n + Math.min(1, 22 / height) / 2, row.label]).filter(([, label]) => label) }, [], "x");
      // A row has a strip of its own, or one an engine; rows of less than three pixels share strips of two pixels.
      const single = height >= 3, bins = Math.ceil(gantt.high / 2), pad = height > 8 ? 1.5 : height > 4 ? 0.5 : 0, part = (height - 2 * pad) / 4;
      const strips = single ? [] : Array.from({ length: bins }, (_, n) => [gantt.top + 2 * n, 2]);
      const width = Math.round(gantt.wide * Math.min(2, devicePixelRatio || 1)), rowsInBin = single ? 1 : Math.max(1, 2 / height);
      const to = { width, single, rowsInBin, height, strips, boxes: new Map([["overhead", []], ["dim", []]]), labels: [], outlines: [] };
      const starts = shown.map((row, n) => {
        const y = gantt.up(first + n) + pad, at = strips.length;
        if (!single) return clamp(Math.floor((first + n - view.top) * height / 2), 0, bins - 1);
        strips.push(...(row.engines && height >= 12 ? [[y, part - 0.5], [y + part, 2 * part], [y + 3 * part + 0.5, part - 0.5]] : [[y, 4 * part]]));
        return at;
      });
      to.cover = new Core.Coverage(strips.length, width);
      this.used = new Set();
      shown.forEach((row, n) => {
        const y = gantt.up(first + n), node = one => run.devices[one.device].node;
        if (n && single && node(row) !== node(shown[n - 1])) gantt.line(gantt.left, y, gantt.left + gantt.wide, y, theme.line);
        this.bars(row, starts[n], to);
      });
      if (strips.length) {
        const sheet = new OffscreenCanvas(width, strips.length);
        sheet.getContext("2d").putImageData(new ImageData(to.cover.pixels(), width, strips.length), 0, 0);
        pen.imageSmoothingEnabled = false;
        strips.forEach(([y, high], n) => pen.drawImage(sheet, 0, n, width, 1, gantt.left, y, gantt.wide, high));
      }
      for (const [name, list] of to.boxes) {
        pen.fillStyle = theme[name];
        for (const box of list) pen.fillRect(...box);
      }
      for (const [text, x, y, most, name] of to.labels) {
        const [red, green, blue] = this.palette.rgb[name];
        if (pen.measureText(text).width <= most) gantt.text(text, x, y, 0.3 * red + 0.59 * green + 0.11 * blue > 140 ? "#14171c" : "#fff");
      }
      pen.strokeStyle = theme.ink; pen.lineWidth = 1.5;
      for (const box of to.outlines) pen.strokeRect(...box);
      const names = { upload: "upload", prompt: "to the first token", compute: this.used.has("prompt") ? "compute, further tokens" : "compute",
        cores: "compute on cores", download: "download", lost: "lost work", overhead: "no stage at work", dim: "filtered out" };
      gantt.keys([...this.palette.names, ...Object.entries(names).filter(([name]) => this.used.has(name)).map(([name, text]) => [text, name])]);
    }

    // One row: wide bars as boxes, narrow ones as covered parts of pixels.
    bars(row, strip, to) {
      const { gantt, view, run } = this, { launches } = run, { rgb } = this.palette;
      const scale = to.width / (view.high - view.low), back = gantt.wide / to.width, engines = row.engines && to.single && to.height >= 12;
      const direct = to.single && row.capacity === 1, weight = 1 / (row.capacity * to.rowsInBin);
      const put = (begin, until, name, at, thin) => {
        const [x0, x1] = [begin, until].map(time => (time - view.low) * scale), from = Math.max(0, x0);
        this.used.add(name);
        if (!direct || x1 - x0 < 2.5) { to.cover.add(at, x0, Math.max(x1, x0 + 0.02), rgb[name], weight); return null; }
        const box = [gantt.left + from * back, to.strips[at][0], (Math.min(to.width, x1) - from - 0.6) * back, to.strips[at][1]];
        if (thin) { box[1] += box[3] * 0.35; box[3] *= 0.3; }
        (to.boxes.get(name) || to.boxes.set(name, []).get(name)).push(box);
        return box;
      };
      for (const i of row.bar) {
        const decided = launches.decided[i], end = launches.end[i];
        if (end < view.low || decided > view.high) continue;
        const spans = STAGES.map(stage => Core.span(launches, i, stage));
        const worked = total(spans.map(([begin, until]) => Math.max(0, until - begin) || 0));
        if (direct && end - decided - worked > Math.max(run.tick, 1e-6 * (end - decided))) {
          put(decided, end, this.mask.launch[i] ? "overhead" : "dim", strip + (engines ? 1 : 0), true);
        }
        spans.forEach(([begin, until], n) => {
          if (!(until > begin) || until < view.low || begin > view.high) return;
          const name = this.colorOf(i, STAGES[n], row.onCores), box = put(begin, until, name, strip + (engines ? n : 0), false);
          if (box && box[2] > 14 && box[3] > 9 && STAGES[n] === "compute" && name !== "dim") {
            to.labels.push([String(run.id[launches.task[i]]), box[0] + 3, box[1] + box[3] / 2 + 1, box[2] - 5, name]);
          }
        });
        if (to.single && (i === this.hover || launches.task[i] === this.pinned)) {
          const x0 = Math.max(0, (decided - view.low) * scale) * back, x1 = Math.min(to.width, (end - view.low) * scale) * back;
          const [y, [last, high]] = [to.strips[strip][0], to.strips[strip + (engines ? 2 : 0)]];
          to.outlines.push([gantt.left + x0, y, Math.max(2, x1 - x0), last + high - y]);
        }
      }
    }

    // The warm-up and the time after the horizon are shaded: the figures leave them out.
    shade(plot) {
      const x = time => plot.left + clamp(Core.share(this.view, time), 0, 1) * plot.wide;
      for (const [from, to] of [[0, this.run.warmup], [this.run.end, this.view.high]]) plot.area(x(from), x(to), "soft");
    }

    // A level of each pixel as steps from one time to another, and the area below it.
    steps(values, color, look = {}, { low, high } = this.view) {
      const count = values.length, x = Float64Array.from({ length: count + 1 }, (_, i) => low + i / count * (high - low));
      return { kind: "Line", x, y: [...values, values[count - 1]], steps: true, color, ...look };
    }
    filled(line) { return [{ ...line, kind: "Band", high: line.y, low: line.y.map(() => 0), alpha: 0.18 }, line]; }
    style(i) { return { color: colorOfRun(i), dash: i >> 3, width: i === this.at ? 2.4 : 1.4 }; }

    // Levels below the chart, on its time; above them a key.
    drawBelow(plot, most, text, marks, keys) {
      plot.keys(keys);
      plot.begin(this.left, 7, 5);
      this.shade(plot);
      plot.show(Pictures.timeAxis(this.view.low, this.view.high, plot.wide), Pictures.levelAxis(most, plot.high, text), marks);
    }
    drawLevels() {
      const { queue, busy, view, runs, run } = this, pixels = Math.max(50, Math.floor(this.gantt.wide));
      const shown = runs.map((one, i) => Core.levels(one, this.masks[i], view.low, view.high, pixels)), own = shown[this.at];
      const most = Math.max(1, ...shown.map(one => highest(one.waiting)), this.many ? 0 : highest(own.running));
      const keys = runs.map((one, i) => [one.label, colorOfRun(i)]), { type } = own.busy.find(one => !run.cores.has(one.type)) || own.busy[0] || {};
      this.busy.cell.hidden = !own.busy.length;
      if (this.many) {
        const same = shown.map(one => one.busy.find(other => other.type === type));
        this.drawBelow(queue, most, undefined, shown.map((one, i) => this.steps(one.waiting, "", this.style(i))), [["waiting tasks"], ...keys]);
        this.drawBelow(busy, 1, percent, same.flatMap((one, i) => (one ? [this.steps(one.values, "", this.style(i))] : [])), [[`${type} busy`]]);
      } else {
        this.drawBelow(queue, most, undefined, [this.steps(own.running, "c2"), ...this.filled(this.steps(own.waiting, "c3"))],
          [["tasks waiting", "c3"], ["running", "c2"]]);
        this.drawBelow(busy, 1, percent, own.busy.map((one, i) => this.steps(one.values, colorOfRun(i), { dash: i })),
          own.busy.map((one, i) => [`${one.type} busy (${number(one.units)})`, colorOfRun(i)]));
      }
      this.drawWhole(pixels);
    }
    drawWhole(pixels) {
      const { whole, theme, view, end } = this, key = `${this.at} ${pixels} ${JSON.stringify(this.filter)}`;
      if (this.wholeKey !== key) {
        this.wholeKey = key;
        this.wholeLevel = Core.levels(this.run, this.mask, 0, end, pixels).waiting;
      }
      whole.begin(this.left);
      whole.area(whole.left, whole.left + whole.wide, "soft");
      const line = this.steps(this.wholeLevel, "muted", { width: 1 }, { low: 0, high: end });
      whole.show(Pictures.timeAxis(0, end, whole.wide), { low: 0, high: Math.max(1, highest(this.wholeLevel)), ticks: [] }, this.filled(line), "");
      const [from, to] = [view.low, view.high].map(whole.across);
      whole.area(from, to, "band");
      for (const edge of [from, to]) whole.line(edge, whole.top, edge, whole.top + whole.high, theme.mark, 2);
      whole.text("all", whole.left - 6, whole.top + whole.high / 2, theme.muted, "right", whole.left - 8);
    }

    // Distribution and tables ------------------------------------------------------------------------------------

    tables() {
      const { run, view, mask } = this;
      this.chosen = Core.within(run, mask.task, view.low, view.high);
      const part = this.zoomed ? ` there from ${seconds(view.low)} to ${seconds(view.high)}` : "";
      const measured = run.warmup > 0 || run.horizon < run.end ? " (those that arrived in the measured window)" : "";
      const isRounded = run.tick > 1e-6 * this.end / run.count && run.tick < 1 && run.tick !== 1e-3;
      this.said.textContent = `${number(this.chosen.length)} of ${number(run.count)} tasks${part}${measured}: `
        + "the pictures and tables below show them." + (isRounded ? ` Times are rounded to ${seconds(run.tick)}.` : "");
      this.reset.disabled = !this.zoomed && this.view.bottom - this.view.top >= this.rows.length;
      this.clear.disabled = Object.entries(this.filter).every(([key, value]) => (key === "range" ? !value : value === Core.NONE));
      this.drawSpread();
      this.groupTable();
      if (this.many) this.pairTable();
      this.deviceTable();
      this.taskTable();
    }

    // The chosen tasks of a run.
    chosenOf(i) {
      return i === this.at ? this.chosen : Core.within(this.runs[i], this.masks[i].task, this.view.low, this.view.high);
    }
    // The share of ascending values that are at most x.
    curve(plot, list, value, look) {
      const pixels = Math.floor(plot.wide), x = Array.from({ length: pixels }, (_, i) => value((i + 1) / pixels));
      return { kind: "Line", x, y: Core.shares(list, pixels, value), ...look };
    }
    drawSpread() {
      const { spread, theme, run, runs, metric, chosen } = this, lists = runs.map((one, i) => Core.known(one[metric], this.chosenOf(i)));
      const every = Core.known(run[metric], Core.within(run, new Uint8Array(run.count).fill(1), 0, this.end)), own = lists[this.at];
      const pen = spread.begin(46, 20, this.many ? 5 : 18, this.many ? 10 : 28), { low, high, log } = Core.extent(this.many ? lists : [every]);
      const infinite = Core.open(run, run[metric], chosen);
      spread.keys(this.many ? runs.map((one, i) => [one.label, colorOfRun(i)]) : []);
      this.spreadSaid.textContent = "";
      this.scaleOfSpread = null;
      if (!own.length) { spread.text(`No task here has a ${metric} time.`, 50, 40, theme.muted); return; }
      const value = share => (log ? low * (high / low) ** share : low + share * (high - low));
      this.scaleOfSpread = share => (share <= 0 ? -Infinity : share >= 1 ? Infinity : value(share));
      const round = ROUND_TIMES.filter(one => one >= low && one <= high), name = one => seconds(one).replace("60 min", "1 h").replace("24 h", "1 d");
      const axis = log ? { low, high, log, ticks: round.map(one => [one, name(one)]) } : Pictures.timeAxis(low, high, spread.wide, metric);
      const x = time => clamp(spread.across(Math.max(time, low)), spread.left, spread.left + spread.wide);
      if (this.many) {
        spread.show(axis, Pictures.levelAxis(1, spread.high, percent), lists.map((list, i) => this.curve(spread, list, value, this.style(i))));
      } else {
        const bins = clamp(Math.round(spread.wide / 12), 10, 60), edges = Array.from({ length: bins + 1 }, (_, i) => value(i / bins));
        const parts = [[every, "dim"], [own, "c0"]].map(([list, color]) => ({ kind: "Boxes", x0: edges.slice(0, -1), x1: edges.slice(1), y0: [0],
          color, edge: 1, ...Core.histogram(list, bins, { low, high, log }) })).map(part => ({ ...part, y1: [...part.counts] }));
        spread.show(axis, Pictures.levelAxis(Math.max(1, highest(parts[0].counts), parts[0].zeros), spread.high), parts);
        for (const { zeros, color } of parts) {   // left of a logarithmic axis
          pen.fillStyle = theme[color];
          pen.fillRect(spread.left - 5, spread.up(zeros), 4, spread.up(0) - spread.up(zeros));
        }
        for (const [share, text, side, shift] of [[0.5, "p50", "right", -3], [0.95, "p95", "left", 4]]) {
          const at = x(Core.quantile(own, share, infinite));
          spread.line(at, spread.top - 14, at, spread.top + spread.high, theme.ink);
          spread.text(text, at + shift, 8, theme.ink, side);
        }
      }
      const { range } = this.filter, part = share => seconds(Core.quantile(own, share, infinite));
      if (range) spread.area(x(range.low), x(range.high), "band");
      const none = own.filter(one => !(one > 0)).length;
      this.spreadSaid.textContent = `${number(own.length)} tasks: mean ${seconds(Core.mean(own))}, p50 ${part(0.5)}, p95 ${part(0.95)}, `
        + `p99 ${part(0.99)}, maximum ${seconds(own[own.length - 1])}${none ? `; ${number(none)} with none` : ""}.`
        + (infinite ? ` ${number(infinite)} more are unfinished: percentiles count them as infinite.` : "")
        + (this.many ? " The share of tasks that is at most this." : " Drag over it to keep a range.");
    }

    // Columns have a title, a kind (of texts, of numbers: 1, or of seconds in one unit: "s", with their signs: "+"), the
    // cell of an item, and whether they are shown.
    table(columns, items, caption, isChosen = () => false) {
      const shown = columns.filter(([, , , kept = true]) => kept), sides = shown.map(([, kind]) => (kind ? { class: "number" } : {}));
      const texts = shown.map(([, kind, cell]) => {
        const cells = items.map(cell), signed = (text, i) => (kind === "+" && cells[i] > 0 ? `+${text}` : text.replace(/^-/, "−"));
        return kind === "s" || kind === "+" ? Core.column(cells).map(signed) : cells;
      });
      const head = shown.map(([title], n) => make("th", { scope: "col", ...sides[n] }, title));
      const lines = items.map((one, i) => make("tr", isChosen(one) ? { class: "chosen" } : {}, ...texts.map((of, n) => make("td", sides[n], of[i]))));
      return make("div", { class: "wide", tabindex: 0 }, make("table", {}, make("caption", {}, caption),
        make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...lines)));
    }
    groupTable() {
      const { run, chosen, filter } = this, part = FILTERS.slice(0, 2).map(([label, key, names]) => [
        label.toLowerCase(), Core.groups(run, chosen, run[key], run[names]), key]).filter(([, found], n) => found.length > n);
      const causes = run.causes.filter((_, i) => part.some(([, found]) => found.some(one => one.causes[i] > 0)));
      this.groups.replaceChildren(make("h3", {}, "By class and user, and where the waiting came from"));
      if (causes.length) this.groups.append(make("div", { class: "legend" }, ...causes.map(cause => Pictures.key(words(cause), CAUSES[cause]))));
      if (!part.length) this.groups.append(make("p", { class: "empty" }, "No task here."));
      for (const [title, found, key] of part) {
        const canPick = found.length > 1 || filter[key] !== Core.NONE;
        this.groups.append(this.table([
          [title, "", one => this.pick(key, one.code, one.name || "(none)", canPick)], ["tasks", 1, one => number(one.count)],
          ["wait", "s", one => one.wait], ["p95", "s", one => one.waitHigh], ["response", "s", one => one.response],
          ["p95", "s", one => one.responseHigh], ["wait by cause", "", one => this.causeBar(one.causes), causes.length > 0],
        ], found.slice(0, MAX_GROUPS), partOf(found, MAX_GROUPS, "largest"), one => filter[key] === one.code));
      }
    }

    // A name that filters by itself, and if it does so already, no more.
    pick(filter, code, name, choice) {
      const act = () => this.choose(this.at, { [filter]: this.filter[filter] === code ? Core.NONE : code });
      return choice ? make("button", { type: "button", title: "Filter by it", onclick: act }, name) : name;
    }
    causeBar(waits) {
      const sum = total(waits), parts = this.run.causes.map((cause, i) => [cause, waits[i] / sum]).filter(([, share]) => share > 0);
      if (!parts.length) return "–";
      const said = parts.slice().sort((a, b) => b[1] - a[1]).map(([cause, share]) => `${words(cause)} ${Core.figures(100 * share)} %`).join(", ");
      return make("div", { class: "spread", role: "img", "aria-label": said, title: said },
        ...parts.map(([cause, share]) => make("span", { style: `width:${100 * share}%;background:var(--${CAUSES[cause]})` })));
    }
    pairTable() {
      const { run: base, metric } = this, lists = [], rows = this.runs.map((run, i) => {
        const mine = this.chosenOf(i), values = Core.known(run[metric], mine), open = Core.open(run, run[metric], mine);
        const gaps = i === this.at ? [] : Core.paired(base, run, metric, this.masks[i].task);
        if (gaps.length) lists.push([gaps, colorOfRun(i), run.label]);
        return { run, values, open, gaps };
      });
      const part = test => ({ gaps }) => (gaps.length ? `${Core.figures(100 * gaps.filter(test).length / gaps.length)} %` : "–");
      this.pairs.replaceChildren(make("h3", {}, `The same tasks under each, compared with ${base.label}`), this.table([
        ["run", "", one => one.run.label], ["tasks", 1, one => number(one.values.length)], [`${metric} mean`, "s", one => Core.mean(one.values)],
        ["p95", "s", one => Core.quantile(one.values, 0.95, one.open)], ["task by task: mean", "+", one => Core.mean(one.gaps)],
        ["median", "+", one => Core.quantile(one.gaps, 0.5)], ["shorter", 1, part(gap => gap < 0)], ["longer", 1, part(gap => gap > 0)],
      ], rows, "First replication of each; the table of differences has all of them, with intervals.", one => one.run === base));
      if (lists.length) { this.pairs.append(this.gaps.cell); this.drawGaps(lists); }
    }

    // The share of tasks whose difference to the chosen run is at most x, between the 1st and 99th percentiles.
    drawGaps(lists) {
      const { gaps, theme } = this, ends = share => lists.map(([list]) => Core.quantile(list, share));
      const low = Math.min(0, ...ends(0.01)), high = Math.max(low + 1e-9, 0, ...ends(0.99)), value = share => low + share * (high - low);
      gaps.keys([["left of the line: shorter"], ...lists.map(([, color, label]) => [label, color])]);
      gaps.begin(46, 20, 5);
      gaps.show(Pictures.timeAxis(low, high, gaps.wide, `${this.metric} compared with ${this.run.label}`), Pictures.levelAxis(1, gaps.high, percent),
        lists.map(([list, color]) => this.curve(gaps, list, value, { color })));
      gaps.line(gaps.across(0), gaps.top, gaps.across(0), gaps.top + gaps.high, theme.ink);
    }

    // What the chosen tasks made of each device in the part of the run that is shown, the warm-up left out.
    deviceTable() {
      const { run, view } = this, low = clamp(run.warmup, view.low, view.high), high = Math.max(low, Math.min(view.high, run.horizon, run.end));
      const all = Core.devices(run, this.mask, low, high), part = partOf(all, MAX_DEVICES, "busiest");
      this.devices.replaceChildren(make("h3", {}, "Devices"), this.table([
        ["device", "", one => one.name], ["type", "", one => one.type],
        ["node", "", one => this.pick("node", run.nodeOfDevice[one.device], one.node, run.nodes.length > 1)],
        ["launches", 1, one => number(one.count)],
        ["utilization", 1, one => (isNaN(one.utilization) ? "–" : `${Core.figures(100 * one.utilization)} %`)],
      ], all.slice(0, MAX_DEVICES), `From ${seconds(low)} to ${seconds(high)}${part && `: ${part}`}`));
    }
    taskTable() {
      const { run, chosen, order, pinned } = this, value = row => (isNaN(run[order][row]) ? -Infinity : run[order][row]);
      const rows = greatest(chosen, value, MAX_TASKS), text = (names, codes) => row => names[codes[row]] || "";
      if (pinned >= 0 && !rows.includes(pinned)) rows.unshift(pinned);
      const button = row => make("button", { type: "button", title: "Show it in the chart", onclick: () => this.show(row) }, String(run.id[row]));
      this.tasks.replaceChildren(make("h3", {}, "Tasks"), !rows.length
        ? make("p", { class: "empty" }, "No task passes the filters in this part of the run.") : this.table([
          ["task", "", button], ["class", "", text(run.classes, run.klass), run.classes.length > 2],
          ["user", "", text(run.users, run.user), run.users.length > 2], ["status", "", text(run.statuses, run.status)],
          ...["arrival", "wait", "response"].map(name => [name, "s", row => run[name][row]]),
          ["wait by cause", "", row => this.causeBar(run.shares.map(of => of[row] / 100 * Core.waited(run, row))), run.causes.length > 0],
        ], rows, partOf(chosen, MAX_TASKS, `longest by ${order}`), row => row === pinned));
    }
    show(row) {
      const { run } = this, begin = run.arrival[row], end = Core.last(run, row);
      const room = Math.max(end - begin, this.end * 1e-4) * 0.25;
      this.pinned = row;
      this.look(begin - room, end + room);
      this.gantt.canvas.focus({ preventScroll: true });
      this.gantt.box.scrollIntoView({ block: "center" });
    }
  }

  // The rows with the greatest values, in descending order.
  function greatest(rows, value, count) {
    let kept = [];
    const cut = () => { kept = kept.sort((a, b) => value(b) - value(a)).slice(0, count); };
    for (const row of rows) if (kept.push(row) > 40 * count) cut();
    cut();
    return kept;
  }

  const host = document.getElementById("explorer"), source = document.getElementById("columns");
  Pictures.inflate(source.textContent).then(bytes => {
    source.remove();
    window.explorer = new Explorer(host, Core.decode(bytes));
    host.dataset.ready = "yes";
  }).catch(error => {
    host.replaceChildren(make("p", { class: "warning" }, `The data of this page cannot be shown: ${error.message}`));
  });
})();
