"use strict";
// The part of a report that one can walk in: chart of launches, levels over time, distribution, groups, tasks.
// All that has a name from a scenario goes into the page as text (textContent, fillText), never as HTML.

(() => {
  const { Plot, make } = Pictures;
  const STAGES = ["upload", "compute", "download"], COLORS = 7, MAX_ROWS = 150, MAX_TASKS = 25, MAX_DEVICES = 12;
  const CAUSES = { no_capacity: "c3", fragmentation: "c4", head_of_line: "c1", quota: "c6", reservation: "c5",
    transfer: "c2", choice: "c0", scheduler: "c7" };
  const FILTERS = [["Class", "klass", "classes"], ["User", "user", "users"], ["Node", "node", "nodes"], ["Status", "status", "statuses"]];
  const NO_FILTER = { klass: Core.NONE, user: Core.NONE, node: Core.NONE, status: Core.NONE };
  const METRICS = { response: "response", wait: "wait" };
  const ROUND_TIMES = [1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 36000, 86400, 864000, 8640000, 86400000];
  const KEYS = "Drag: zoom to a time · wheel after a click (or Ctrl and wheel): zoom · Shift and drag: move · click: pin a "
    + "task · keys: ← → + − 0, ↑ ↓ rows (Shift: zoom rows), N and P: next and previous launch, Esc";
  const words = name => name.replace(/_/g, " ");
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

  class Explorer {
    constructor(host, runs) {
      this.host = host; this.runs = runs; this.at = 0;
      this.filter = { ...NO_FILTER, range: null };
      this.scheme = "stage"; this.metric = "response"; this.group = "class"; this.order = "response";
      this.hover = -1; this.pinned = -1;
      this.end = Math.max(...runs.map(run => run.end), 1e-9);
      this.view = { low: 0, high: this.end, top: 0, bottom: 1 };
      this.build();
      this.choose(0);
      new ResizeObserver(() => this.draw()).observe(host);
      addEventListener("theme", () => this.refresh());
    }
    get run() { return this.runs[this.at]; }
    get many() { return this.runs.length > 1; }
    get zoomed() { return this.view.low > 0 || this.view.high < this.end; }

    // The parts of the page -------------------------------------------------------------------------------------

    build() {
      const { host } = this;
      this.tools = make("div", { class: "tools" });
      this.legend = make("div", { class: "legend" });
      this.said = make("p", { class: "note", role: "status" });
      host.replaceChildren(this.tools, this.legend);
      this.gantt = new Plot(host, 200, "Launches on their devices over time", "gantt");
      this.gantt.canvas.tabIndex = 0;
      this.gantt.canvas.setAttribute("aria-describedby", "explorer-keys");
      this.queue = new Plot(host, 112, "Waiting and running tasks over time");
      this.busy = new Plot(host, 94, "Busy part of the devices over time");
      this.whole = new Plot(host, 44, "Waiting tasks over the whole run, with the part that is shown");
      host.append(this.said, make("p", { class: "note", id: "explorer-keys" }, KEYS));
      const left = make("div"), right = make("div");
      host.append(make("div", { class: "pair" }, left, right));
      const choice = this.select("Distribution of", Object.entries(METRICS), this.metric, value => {
        this.metric = this.order = value; this.filter.range = null; this.refresh();
      });
      left.append(make("h3", {}, "Distribution"), make("div", { class: "tools" }, choice));
      this.spread = new Plot(left, 210, "Distribution over tasks", "gantt");
      this.spreadSaid = make("p", { class: "note" });
      left.append(this.spreadSaid);
      this.groups = make("div");
      right.append(this.groups);
      this.pairs = make("div");
      this.gaps = new Plot(make("div"), 150, "Differences of the same tasks between runs");
      this.devices = make("div");
      this.tasks = make("div");
      host.append(this.pairs, this.devices, this.tasks);
      for (const plot of [this.gantt, this.queue, this.busy, this.whole]) this.brush(plot);
      this.brush(this.spread, (from, to) => this.chooseRange(from, to), () => this.chooseRange(null));
      const { canvas } = this.gantt;
      canvas.addEventListener("keydown", event => this.key(event));
      canvas.addEventListener("wheel", event => this.wheel(event), { passive: false });
      canvas.addEventListener("pointermove", event => this.point(event));
      canvas.addEventListener("pointerleave", () => this.say(-1));
      canvas.addEventListener("dblclick", () => this.look(0, this.end));
      canvas.addEventListener("blur", () => this.say(-1));
    }

    select(label, options, value, change) {
      const list = make("select", { onchange: () => change(list.value) });
      for (const [key, text] of options) list.append(make("option", { value: key, selected: key === String(value) }, text));
      return make("label", {}, label, list);
    }

    fillTools() {
      const { run, filter, tools } = this;
      const named = (names, codes) => {
        const used = new Set(codes);
        return names.map((name, code) => [String(code), name || "(none)"]).filter(([code]) => used.has(Number(code)));
      };
      tools.replaceChildren();
      if (this.many) {
        tools.append(this.select("Run", this.runs.map((one, i) => [String(i), one.label]), this.at, value => this.choose(Number(value))));
      }
      for (const [label, key, names] of FILTERS) {
        const options = named(run[names], key === "node" ? run.nodeOfDevice : run[key]);
        if (options.length < 2) continue;
        const all = [String(Core.NONE), `all ${options.length.toLocaleString("en")}`];
        tools.append(this.select(label, [all, ...options], filter[key], value => this.choose(this.at, { [key]: Number(value) })));
      }
      const schemes = [["stage", "stage"], ["class", "class"], ["user", "user"], ["mode", "mode"]].filter(
        ([key]) => key === "stage" || new Set(this.codes(key)).size > 1);
      if (schemes.length > 1) {
        tools.append(this.select("Color by", schemes, this.scheme, value => { this.scheme = value; this.refresh(); }));
      }
      const button = (text, title, act, disabled = false) => make("button", { type: "button", title, onclick: act, disabled }, text);
      this.reset = button("Whole run", "Show the whole run (0)", () => this.look(0, this.end, 0, null));
      this.clear = button("Clear filters", "Show all tasks", () => this.choose(this.at, { ...NO_FILTER, range: null }));
      tools.append(make("span", { class: "end" }, button("−", "Zoom out (−)", () => this.zoom(2)),
        button("+", "Zoom in (+)", () => this.zoom(0.5)), this.reset, this.clear));
    }

    // Codes by launch (of the scheme) for colors.
    codes(key) {
      return { mode: this.run.launches.mode, user: this.run.user, class: this.run.klass }[key];
    }

    // State ------------------------------------------------------------------------------------------------------

    choose(at, change = {}) {
      if (at !== this.at) { this.hover = this.pinned = -1; this.view.top = 0; this.view.bottom = Infinity; }
      Object.assign(this.filter, change, at === this.at ? {} : NO_FILTER);
      this.at = at;
      this.fillTools();
      this.refresh(true);
    }

    refresh(rows = false) {
      this.theme = Pictures.colors();
      this.mask = Core.masks(this.run, this.filter);
      this.masks = this.runs.map((run, i) => (i === this.at ? this.mask : Core.masks(run, this.translated(run))));
      if (rows || !this.rows) {
        const { node } = this.filter;
        const part = node === Core.NONE ? this.run : {
          ...this.run, rows: this.run.rows.filter(row => this.run.nodeOfDevice[row.device] === node) };
        this.rows = part.rows.length > MAX_ROWS ? Core.merged(part) : part.rows;
        this.gantt.height = clamp(this.rows.length * clamp(160 / Math.max(1, this.rows.length), 22, 54), 54, 440) + 24;
        this.view.top = 0; this.view.bottom = Math.max(1, this.rows.length);
        this.left = this.labelWidth();
      }
      this.palette = this.readPalette();
      this.draw();
      this.tables();
    }

    // The filter in the codes of another run, which has the same names.
    translated(run) {
      const wanted = { range: this.filter.range };
      for (const [, key, names] of FILTERS) {
        const value = this.filter[key], code = value === Core.NONE ? value : run[names].indexOf(this.run[names][value]);
        wanted[key] = code < 0 && value !== Core.NONE ? Infinity : code;
      }
      return wanted;
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

    brush(plot, done, click) {
      const band = make("div", { style: "position:absolute;pointer-events:none;background:var(--band);border-inline:1px solid var(--mark)", hidden: true });
      plot.box.append(band);
      let from = null, moved = false, view = null;
      const place = event => clamp((event.clientX - plot.canvas.getBoundingClientRect().left - plot.left) / plot.wide, 0, 1);
      const time = share => (plot === this.whole ? this.end * share : view.low + share * (view.high - view.low));
      plot.canvas.addEventListener("pointerdown", event => {
        if (event.button) return;
        from = place(event); moved = false; view = { ...this.view };
        plot.canvas.setPointerCapture(event.pointerId);
      });
      plot.canvas.addEventListener("pointermove", event => {
        if (from === null) return;
        const to = place(event);
        moved = moved || Math.abs(to - from) * plot.wide > 4;
        if (!moved) return;
        if (event.shiftKey && !done && plot !== this.whole) {
          const shift = (from - to) * (view.high - view.low);
          this.look(view.low + shift, view.high + shift);
          return;
        }
        band.hidden = false;
        Object.assign(band.style, { left: `${plot.left + Math.min(from, to) * plot.wide}px`, width: `${Math.abs(to - from) * plot.wide}px`,
          top: `${plot.top}px`, height: `${plot.high}px` });
      });
      const stop = event => {
        if (from === null) return;
        const to = place(event), ends = [Math.min(from, to), Math.max(from, to)];
        const dragged = moved && !band.hidden;
        from = null; band.hidden = true;
        if (event.type === "pointercancel") return;
        if (dragged) { if (done) done(...ends); else this.look(time(ends[0]), time(ends[1])); }
        else if (!moved && click) click();
        else if (!moved && plot === this.gantt) this.pin(this.hover);
        else if (!moved && plot === this.whole) {
          const half = (this.view.high - this.view.low) / 2;
          this.look(time(to) - half, time(to) + half);
        }
      };
      plot.canvas.addEventListener("pointerup", stop);
      plot.canvas.addEventListener("pointercancel", stop);
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
      const { low, high, top, bottom } = this.view, step = (high - low) / 5, rows = (bottom - top) / 5;
      const middle = (top + bottom) / 2, half = (bottom - top) / 2;
      const acts = {
        ArrowLeft: () => this.look(low - step, high - step), ArrowRight: () => this.look(low + step, high + step),
        ArrowUp: () => (event.shiftKey ? this.look(low, high, middle - half / 1.5, middle + half / 1.5) : this.look(low, high, top - rows, bottom - rows)),
        ArrowDown: () => (event.shiftKey ? this.look(low, high, middle - half * 1.5, middle + half * 1.5) : this.look(low, high, top + rows, bottom + rows)),
        "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), _: () => this.zoom(2),
        0: () => this.look(0, this.end, 0, null), Home: () => this.look(0, this.end, 0, null),
        n: () => this.step(1), p: () => this.step(-1), Enter: () => this.pin(this.hover),
        Escape: () => { this.pin(-1); this.say(-1); },
      };
      const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    }

    // The next or previous launch in time of those that are shown, for the keyboard.
    step(by) {
      const { launches } = this.run, { low, high } = this.view, rows = this.rows.slice(Math.floor(this.view.top), Math.ceil(this.view.bottom));
      const isShown = i => this.mask.launch[i] && launches.end[i] >= low && launches.decided[i] <= high;
      const order = [...new Set(rows.flatMap(row => Array.from(row.bar).filter(isShown)))].sort((a, b) => launches.decided[a] - launches.decided[b] || a - b);
      if (!order.length) return;
      const next = order[(order.indexOf(this.hover) + (this.hover < 0 && by < 0 ? 0 : by) + order.length) % order.length];
      const { gantt } = this, box = gantt.canvas.getBoundingClientRect();
      const x = gantt.left + (launches.decided[next] - low) / (high - low) * gantt.wide;
      this.say(next, box.left + clamp(x, gantt.left, gantt.left + gantt.wide), box.top + gantt.high / 2);
    }

    point(event) {
      if (event.buttons) return;
      this.say(this.under(event.offsetX, event.offsetY), event.clientX, event.clientY);
    }

    // The launch at a place of the chart: the nearest in time within three pixels.
    under(x, y) {
      const { gantt, view, run } = this, { launches } = run;
      if (x < gantt.left || x > gantt.left + gantt.wide) return -1;
      const time = view.low + (x - gantt.left) / gantt.wide * (view.high - view.low);
      const row = this.rows[Math.floor(view.top + (y - gantt.top) / gantt.high * (view.bottom - view.top))];
      if (!row || y < gantt.top || y > gantt.top + gantt.high) return -1;
      let best = -1, least = 3 * (view.high - view.low) / gantt.wide;
      for (const i of row.bar) {
        const distance = Math.max(launches.decided[i] - time, time - launches.end[i], 0) + (this.mask.launch[i] ? 0 : least / 2);
        if (distance < least || (distance === 0 && launches.compute_start[i] <= time)) { best = i; least = distance || 1e-300; }
      }
      return best;
    }

    pin(launch) {
      this.pinned = launch < 0 || this.pinned === this.run.launches.task[launch] ? -1 : this.run.launches.task[launch];
      this.draw();
      this.taskTable();
    }

    // The tip --------------------------------------------------------------------------------------------------

    say(launch, x = 0, y = 0) {
      const changed = launch !== this.hover;
      this.hover = launch;
      Pictures.say(launch < 0 ? null : changed ? this.describe(launch) : [], x, y);
      if (changed) this.draw();
    }

    describe(launch) {
      const { run } = this, { launches } = run, row = launches.task[launch], facts = [];
      const add = (name, value) => { if (value) facts.push([name, value]); };
      add("class", run.classes[run.klass[row]]);
      add("user", run.users[run.user[row]]);
      add("mode", run.modes[launches.mode[launch]]);
      const on = run.places[launches.place[launch]].map(([device, core]) => run.devices[device].name + (core < 0 ? "" : core));
      add("on", on.slice(0, 4).join(", ") + (on.length > 4 ? ` and ${on.length - 4} more` : ""));
      if (launches.members[launch] > 1) add("in this launch", `${launches.members[launch].toLocaleString("en")} tasks`);
      const status = run.statuses[run.status[row]], reason = run.reasons[run.reason[row]];
      if (status !== "completed") add("ended", reason ? `${status}: ${reason}` : status);
      add("arrived at", Core.seconds(run.arrival[row]));
      const wait = Core.waited(run, row);
      add("waited", Core.seconds(wait));
      run.causes.forEach((cause, i) => {
        const share = run.shares[i][row];
        if (share > 0 && wait > 0) add(`· ${words(cause)}`, Core.seconds(share / 100 * wait));
      });
      if (!isNaN(launches.again[launch])) add("waited again", Core.seconds(launches.begun[launch] - launches.again[launch]));
      for (const stage of STAGES) {
        const [begin, end] = Core.span(launches, launch, stage);
        const name = launch < launches.known ? stage : stage === "upload" ? "to its first token" : "further tokens";
        if (!isNaN(begin)) add(name, Core.seconds(end - begin));
      }
      const outcome = run.outcomes[launches.outcome[launch]];
      if (outcome && outcome !== "completed") add("this launch", outcome);
      if (!isNaN(run.response[row])) add("response", Core.seconds(run.response[row]));
      return Pictures.facts(`task ${run.id[row]}`, facts);
    }

    // Colors -----------------------------------------------------------------------------------------------------

    // Colors as numbers, and the color of each code of the scheme: the most frequent have their own.
    readPalette() {
      const { theme, scheme, run } = this, rgb = {};
      for (const [name, text] of Object.entries(theme)) {
        const digits = text.length === 4 ? [...text.slice(1)].map(one => one + one) : text.slice(1).match(/../g) || [];
        if (text.startsWith("#")) rgb[name] = digits.map(one => parseInt(one, 16));
      }
      const by = new Map(), names = [];
      if (scheme !== "stage") {
        const counts = new Map();
        for (const code of this.codes(scheme)) counts.set(code, (counts.get(code) || 0) + 1);
        const texts = { mode: run.modes, user: run.users, class: run.classes }[scheme];
        [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]).forEach(([code], n) => {
          const own = n < COLORS || counts.size === COLORS + 1;   // the last color is of one, or of all others
          by.set(code, `c${Math.min(n, COLORS)}`);
          if (own) names.push([`c${n}`, texts[code] || "(none)"]);
          else if (n === COLORS) names.push(["c7", `${counts.size - COLORS} others`]);
        });
      }
      return { rgb, by, names };
    }

    colorOf(i, stage, onCores) {
      const { run, scheme, palette } = this, { launches } = run;
      if (!this.mask.launch[i]) return "dim";
      if (scheme !== "stage") return palette.by.get(scheme === "mode" ? launches.mode[i] : this.codes(scheme)[launches.task[i]]);
      if (run.outcomes[launches.outcome[i]] === "lost") return "lost";
      if (stage === "upload") return i < launches.known ? "upload" : "prompt";
      return stage === "compute" && onCores ? "cores" : stage;
    }

    showLegend() {
      const { palette, scheme, used } = this;
      const names = { upload: "upload", prompt: "to the first token", compute: used.has("prompt") ? "compute, further tokens" : "compute", cores: "compute on cores", download: "download",
        lost: "lost work", overhead: "no stage at work", dim: "filtered out" };
      const entries = scheme === "stage" ? [] : palette.names.slice();
      for (const [key, text] of Object.entries(names)) if (used.has(key)) entries.push([key, text]);
      this.legend.replaceChildren(...entries.map(([key, text]) => Pictures.key(text, key)));
    }

    // Pictures ---------------------------------------------------------------------------------------------------

    labelWidth() {
      const pen = this.gantt.canvas.getContext("2d");
      pen.font = "11px system-ui, sans-serif";
      const longest = Math.max(34, ...this.rows.slice(0, 2000).map(row => pen.measureText(row.label).width));
      return Math.ceil(clamp(longest + 12, 46, 150));
    }

    draw() {
      if (this.waiting) return;
      this.waiting = requestAnimationFrame(() => {
        this.waiting = 0;
        this.drawGantt();
        this.drawLevels();
      });
    }

    drawGantt() {
      const { gantt, theme, view, rows, run } = this, pen = gantt.begin(this.left);
      this.used = new Set();
      if (!rows.length) gantt.text(run.count ? "Nothing was launched here." : "No task arrived.", gantt.left, gantt.high / 2, theme.muted);
      this.shade(gantt);
      gantt.show(Pictures.timeAxis(view.low, view.high, gantt.wide), { low: 1, high: 0, ticks: [] }, []);
      const height = gantt.high / (view.bottom - view.top), first = Math.floor(view.top), last = Math.min(rows.length, Math.ceil(view.bottom));
      const strips = [], single = height >= 3, bins = single ? 0 : Math.ceil(gantt.high / 2);
      const stripOf = [];
      for (let r = first; r < last; r++) {
        const y = gantt.top + (r - view.top) * height, pad = height > 8 ? 1.5 : height > 4 ? 0.5 : 0;
        stripOf.push(strips.length);
        if (!single) continue;
        if (rows[r].engines && height >= 12) {
          const part = (height - 2 * pad) / 4;
          strips.push([y + pad, part - 0.5], [y + pad + part, 2 * part], [y + pad + 3 * part + 0.5, part - 0.5]);
        } else strips.push([y + pad, height - 2 * pad]);
      }
      for (let n = 0; n < bins; n++) strips.push([gantt.top + 2 * n, 2]);
      const width = Math.round(gantt.wide * Math.min(2, devicePixelRatio || 1));
      const cover = new Core.Coverage(strips.length, width), boxes = new Map([["overhead", []], ["dim", []]]), labels = [], outlines = [];
      for (let r = first; r < last; r++) {
        const strip = single ? stripOf[r - first] : clamp(Math.floor((r - view.top) * height / 2), 0, bins - 1);
        this.bars(rows[r], strip, { cover, width, boxes, labels, outlines, strips, height, single, rowsInBin: single ? 1 : Math.max(1, 2 / height) });
      }
      this.flush(cover, strips, width, pen);
      for (const [name, list] of boxes) {
        pen.fillStyle = theme[name];
        for (const [x, y, wide, high] of list) pen.fillRect(x, y, wide, high);
      }
      for (const [text, x, y, most, name] of labels) {
        const [red, green, blue] = this.palette.rgb[name];
        if (pen.measureText(text).width <= most) gantt.text(text, x, y, 0.3 * red + 0.59 * green + 0.11 * blue > 140 ? "#14171c" : "#fff");
      }
      pen.strokeStyle = theme.ink; pen.lineWidth = 1.5;
      for (const [x, y, wide, high] of outlines) pen.strokeRect(x, y, wide, high);
      this.rowLabels(first, last, height);
      this.showLegend();
    }

    // One row: wide bars as boxes, narrow ones as covered parts of pixels.
    bars(row, strip, to) {
      const { gantt, view, run } = this, { launches } = run, { rgb } = this.palette;
      const scale = to.width / (view.high - view.low), back = gantt.wide / to.width;
      const direct = to.single && row.capacity === 1, weight = 1 / (row.capacity * to.rowsInBin);
      const engines = row.engines && to.single && to.height >= 12;
      for (const i of row.bar) {
        const decided = launches.decided[i], end = launches.end[i];
        if (end < view.low || decided > view.high) continue;
        let worked = 0;
        const put = (begin, until, name, at, thin) => {
          const x0 = (begin - view.low) * scale, x1 = (until - view.low) * scale;
          this.used.add(name);
          if (!direct || x1 - x0 < 2.5) { to.cover.add(at, x0, Math.max(x1, x0 + 0.02), rgb[name], weight); return null; }
          const from = Math.max(0, x0), box = [gantt.left + from * back, to.strips[at][0], (Math.min(to.width, x1) - from - 0.6) * back, to.strips[at][1]];
          if (thin) { box[1] += box[3] * 0.35; box[3] *= 0.3; }
          if (!to.boxes.has(name)) to.boxes.set(name, []);
          to.boxes.get(name).push(box);
          return box;
        };
        for (const stage of STAGES) {
          const [begin, until] = Core.span(launches, i, stage);
          if (!isNaN(begin) && until > begin) worked += until - begin;
        }
        if (direct && end - decided - worked > Math.max(run.tick, 1e-6 * (end - decided))) {
          put(decided, end, this.mask.launch[i] ? "overhead" : "dim", strip + (engines ? 1 : 0), true);
        }
        STAGES.forEach((stage, number) => {
          const [begin, until] = Core.span(launches, i, stage);
          if (isNaN(begin) || !(until > begin) || until < view.low || begin > view.high) return;
          const name = this.colorOf(i, stage, row.onCores), box = put(begin, until, name, strip + (engines ? number : 0), false);
          if (box && box[2] > 14 && box[3] > 9 && stage === "compute" && name !== "dim") {
            to.labels.push([String(run.id[launches.task[i]]), box[0] + 3, box[1] + box[3] / 2 + 0.5, box[2] - 5, name]);
          }
        });
        if (to.single && (i === this.hover || launches.task[i] === this.pinned)) {
          const x0 = Math.max(0, (decided - view.low) * scale) * back, x1 = Math.min(to.width, (end - view.low) * scale) * back;
          const last = to.strips[strip + (engines ? 2 : 0)];
          to.outlines.push([gantt.left + x0, to.strips[strip][0], Math.max(2, x1 - x0), last[0] + last[1] - to.strips[strip][0]]);
        }
      }
    }

    flush(cover, strips, width, pen) {
      if (!strips.length || !width) return;
      const sheet = new OffscreenCanvas(width, strips.length);
      sheet.getContext("2d").putImageData(new ImageData(cover.pixels(), width, strips.length), 0, 0);
      pen.imageSmoothingEnabled = false;
      strips.forEach(([y, high], n) => pen.drawImage(sheet, 0, n, width, 1, this.gantt.left, y, this.gantt.wide, high));
    }

    rowLabels(first, last, height) {
      const { gantt, theme, rows, view, run } = this;
      let free = -Infinity, before = "";
      for (let r = first; r < last; r++) {
        const y = gantt.top + (r - view.top) * height, { node } = run.devices[rows[r].device];
        if (r && node !== before && height >= 3) gantt.line(gantt.left, y, gantt.left + gantt.wide, y, theme.line);
        before = node;
        const middle = y + Math.min(height, 22) / 2;
        if (!rows[r].label || middle < free || middle < gantt.top || middle > gantt.top + gantt.high) continue;
        gantt.text(rows[r].label, gantt.left - 6, middle, theme.ink, "right", gantt.left - 10);
        free = middle + 13;
      }
    }

    // The warm-up and the time after the horizon are shaded: the figures leave them out.
    shade(plot) {
      const { view, run, theme } = this, { pen } = plot;
      const x = time => plot.left + clamp((time - view.low) / (view.high - view.low), 0, 1) * plot.wide;
      pen.fillStyle = theme.soft;
      if (run.warmup > 0) pen.fillRect(plot.left, plot.top, x(run.warmup) - plot.left, plot.high);
      if (run.end < view.high) pen.fillRect(x(run.end), plot.top, plot.left + plot.wide - x(run.end), plot.high);
    }

    // A level of each pixel as steps over the time that is shown.
    steps(values, color, look = {}) {
      const { low, high } = this.view, count = values.length;
      return { kind: "Line", x: Float64Array.from({ length: count + 1 }, (_, i) => low + i / count * (high - low)), y: [...values, values[count - 1]], steps: true, color, ...look };
    }
    style(i) { return { dash: i >> 3, width: i === this.at ? 2.4 : 1.4 }; }

    // Levels below the chart, on its time; above them a key.
    drawBelow(plot, highest, text, marks, keys) {
      const { low, high } = this.view;
      plot.begin(this.left, 7, 18);
      this.shade(plot);
      plot.show(Pictures.timeAxis(low, high, plot.wide), Pictures.levelAxis(highest, plot.high, text), marks);
      this.keyAbove(plot, keys);
    }

    drawLevels() {
      const { queue, busy, view, runs } = this, pixels = Math.max(50, Math.floor(this.gantt.wide));
      const shown = runs.map((run, i) => Core.levels(run, this.masks[i], view.low, view.high, pixels)), own = shown[this.at];
      const most = Math.max(1, ...shown.map(one => highest(one.waiting)), this.many ? 0 : highest(own.running));
      const type = own.busy.find(one => !this.run.cores.has(one.type)) || own.busy[0], percent = value => `${Math.round(value * 100)} %`;
      const waiting = this.steps(own.waiting, "c3"), keys = runs.map((run, i) => [run.label, `c${i % 8}`]);
      this.drawBelow(queue, most, undefined, this.many ? shown.map((one, i) => this.steps(one.waiting, `c${i % 8}`, this.style(i)))
        : [this.steps(own.running, "c2"), { ...waiting, kind: "Band", high: waiting.y, low: waiting.y.map(() => 0), alpha: 0.18 }, waiting],
      this.many ? [["waiting tasks", ""], ...keys] : [["tasks waiting", "c3"], ["running", "c2"]]);
      busy.box.hidden = !own.busy.length;
      const same = shown.map(one => one.busy.find(other => type && other.type === type.type));
      this.drawBelow(busy, 1, percent, this.many ? same.flatMap((one, i) => (one ? [this.steps(one.values, `c${i % 8}`, this.style(i))] : []))
        : own.busy.map((one, i) => this.steps(one.values, `c${i % 8}`, { dash: i })),
      this.many ? [[`${type?.type} busy`, ""]] : own.busy.map((one, i) => [`${one.type} busy (${one.units.toLocaleString("en")})`, `c${i % 8}`]));
      this.drawWhole(pixels);
    }

    drawWhole(pixels) {
      const { whole, theme, view, run } = this;
      const key = `${this.at} ${pixels} ${JSON.stringify(this.filter)}`;
      if (this.wholeKey !== key) {
        this.wholeKey = key;
        this.wholeLevel = Core.levels(run, this.mask, 0, this.end, pixels).waiting;
      }
      const pen = whole.begin(this.left), shown = { ...this.steps(this.wholeLevel, "muted", { width: 1 }), x: Float64Array.from({ length: pixels + 1 }, (_, i) => i / pixels * this.end) };
      pen.fillStyle = theme.soft;
      pen.fillRect(whole.left, whole.top, whole.wide, whole.high);
      whole.show(Pictures.timeAxis(0, this.end, whole.wide), { low: 0, high: Math.max(1, highest(this.wholeLevel)), ticks: [] },
        [{ ...shown, kind: "Band", high: shown.y, low: shown.y.map(() => 0), alpha: 0.18 }, shown], "");
      pen.fillStyle = theme.band;
      pen.fillRect(whole.across(view.low), whole.top, whole.across(view.high) - whole.across(view.low), whole.high);
      for (const edge of [view.low, view.high]) whole.line(whole.across(edge), whole.top, whole.across(edge), whole.top + whole.high, theme.mark, 2);
      whole.text("all", whole.left - 6, whole.top + whole.high / 2, theme.muted, "right", whole.left - 8);
    }

    // The key of a picture, above it at its right.
    keyAbove(plot, entries) {
      const { theme } = this, { pen } = plot;
      let x = plot.left + plot.wide - 4;
      for (const [text, color] of entries.slice().reverse()) {
        const wide = Math.min(160, pen.measureText(text).width);
        if (x - wide - 18 < plot.left) break;
        plot.text(text, x, 8, color ? theme.ink : theme.muted, "right", 160);
        if (color) { pen.fillStyle = theme[color]; pen.fillRect(x - wide - 15, 4, 10, 8); }
        x -= wide + 26;
      }
    }

    // Distribution and tables ------------------------------------------------------------------------------------

    tables() {
      const { run, view, mask } = this;
      this.chosen = Core.within(run, mask.task, view.low, view.high);
      const all = run.count, now = this.chosen.length;
      const part = this.zoomed ? ` there from ${Core.seconds(view.low)} to ${Core.seconds(view.high)}` : "";
      const measured = run.warmup > 0 || run.horizon < run.end ? " (those that arrived in the measured window)" : "";
      this.said.textContent = `${now.toLocaleString("en")} of ${all.toLocaleString("en")} tasks${part}${measured}: the pictures and tables below show them.`
        + (run.tick > 1e-6 * this.end / all && run.tick < 1 && run.tick !== 1e-3 ? ` Times are rounded to ${Core.seconds(run.tick)}.` : "");
      this.reset.disabled = !this.zoomed && this.view.bottom - this.view.top >= this.rows.length;
      this.clear.disabled = Object.entries(this.filter).every(([key, value]) => (key === "range" ? !value : value === Core.NONE));
      this.drawSpread();
      this.groupTable();
      this.pairTable();
      this.deviceTable();
      this.taskTable();
    }

    drawSpread() {
      const { spread, theme, run, runs, metric, view } = this;
      const lists = runs.map((one, i) => Core.known(one[metric], i === this.at ? this.chosen : Core.within(one, this.masks[i].task, view.low, view.high)));
      const every = Core.known(this.run[metric], Core.within(this.run, new Uint8Array(this.run.count).fill(1), 0, this.end));
      const pen = spread.begin(46, 20, 18), scale = Core.extent(this.many ? lists : [every]), own = lists[this.at];
      if (!own.length) {
        this.scaleOfSpread = null;
        spread.text(`No task here has a ${metric} time.`, 50, 40, theme.muted);
        this.spreadSaid.textContent = "";
        return;
      }
      const value = share => (scale.log ? scale.low * (scale.high / scale.low) ** share : scale.low + share * (scale.high - scale.low));
      this.scaleOfSpread = share => (share <= 0 ? -Infinity : share >= 1 ? Infinity : value(share));
      const axis = { ...Pictures.timeAxis(scale.low, scale.high, spread.wide, metric), ...(scale.log ? { log: true, name: "",
        ticks: ROUND_TIMES.filter(one => one >= scale.low && one <= scale.high).map(one => [one, Core.seconds(one).replace("60 min", "1 h").replace("24 h", "1 d")]) } : {}) };
      const x = time => clamp(spread.across(Math.max(time, scale.low)), spread.left, spread.left + spread.wide);
      if (this.many) {
        const pixels = Math.floor(spread.wide), ends = Array.from({ length: pixels }, (_, i) => value((i + 1) / pixels));
        spread.show(axis, Pictures.levelAxis(1, spread.high, part => `${Math.round(part * 100)} %`), lists.map((list, i) => (
          { kind: "Line", x: ends, y: Core.shares(list, pixels, value), color: `c${i % 8}`, ...this.style(i) })));
        this.keyAbove(spread, runs.map((one, i) => [one.label, `c${i % 8}`]));
      } else {
        const bins = clamp(Math.round(spread.wide / 12), 10, 60), edges = Array.from({ length: bins + 1 }, (_, i) => value(i / bins));
        const parts = [[Core.histogram(every, bins, scale), "dim"], [Core.histogram(own, bins, scale), "c0"]];
        spread.show(axis, Pictures.levelAxis(Math.max(1, highest(parts[0][0].counts), parts[0][0].zeros), spread.high), parts.map(([{ counts }, color]) => (
          { kind: "Boxes", x0: edges.slice(0, -1), x1: edges.slice(1), y0: [0], y1: counts, color, edge: 1 })));
        for (const [{ zeros }, color] of parts) {
          pen.fillStyle = theme[color];
          if (zeros) pen.fillRect(spread.left - 5, spread.up(zeros), 4, spread.up(0) - spread.up(zeros));
        }
        for (const [share, text, side] of [[0.5, "p50", "right"], [0.95, "p95", "left"]]) {
          const place = x(Core.quantile(own, share, Core.open(run, run[metric], this.chosen)));
          spread.line(place, spread.top - 14, place, spread.top + spread.high, theme.ink);
          spread.text(text, place + (side === "left" ? 4 : -3), 8, theme.ink, side);
        }
      }
      const { range } = this.filter;
      if (range) { pen.fillStyle = theme.band; pen.fillRect(x(range.low), spread.top, x(range.high) - x(range.low), spread.high); }
      const infinite = Core.open(this.run, this.run[metric], this.chosen), part = share => Core.seconds(Core.quantile(own, share, infinite));
      const zero = own.findIndex(one => one > 0), none = zero < 0 ? own.length : zero;
      this.spreadSaid.textContent = `${own.length.toLocaleString("en")} tasks: mean ${Core.seconds(Core.mean(own))}, p50 ${part(0.5)}, p95 ${part(0.95)}, p99 ${part(0.99)}, `
        + `maximum ${Core.seconds(own[own.length - 1])}`
        + (none ? `; ${none.toLocaleString("en")} with none.` : ".")
        + (infinite ? ` ${infinite.toLocaleString("en")} more are unfinished: percentiles count them as infinite.` : "")
        + (this.many ? " The share of tasks that is at most this." : " Drag over it to keep a range.");
    }

    // Columns are of texts, of numbers (1), or of seconds in one unit ("s", with their signs "+").
    table(heads, rows, caption) {
      const texts = heads.map(([, kind], n) => (kind === "s" || kind === "+") && Core.column(rows.map(({ cells }) => cells[n])).map(
        (text, i) => (kind === "+" && rows[i].cells[n] > 0 ? `+${text}` : text.replace(/^-/, "−"))));
      const head = make("tr"), body = make("tbody");
      heads.forEach(([text, number]) => head.append(make("th", { scope: "col", class: number ? "number" : undefined }, text)));
      rows.forEach(({ cells, chosen }, i) => {
        const line = make("tr", { class: chosen ? "chosen" : undefined });
        cells.forEach((cell, n) => line.append(make("td", { class: heads[n][1] ? "number" : undefined }, texts[n] ? texts[n][i] : cell)));
        body.append(line);
      });
      return make("div", { class: "wide", tabindex: 0 }, make("table", {}, make("caption", {}, caption), make("thead", {}, head), body));
    }

    groupTable() {
      const { run, chosen } = this, part = FILTERS.slice(0, 2).map(([label, filter, names]) => [
        label.toLowerCase(), Core.groups(run, chosen, run[filter], run[names]), filter]).filter(([, found], n) => found.length > n);
      const causes = run.causes.filter((_, i) => part.some(([, found]) => found.some(one => one.causes[i] > 0)));
      this.groups.replaceChildren(make("h3", {}, "By class and user, and where the waiting came from"));
      if (causes.length) {
        this.groups.append(make("div", { class: "legend" }, ...causes.map(cause => Pictures.key(words(cause), CAUSES[cause]))));
      }
      for (const [key, found, filter] of part) {
        const shown = found.slice(0, 12), heads = [[key], ["tasks", 1], ["wait", "s"], ["p95", "s"], ["response", "s"], ["p95", "s"]];
        if (causes.length) heads.push(["wait by cause"]);
        const rows = shown.map(one => {
          const cells = [this.pick(filter, one.code, one.name || "(none)", found.length > 1 || this.filter[filter] !== Core.NONE), one.count.toLocaleString("en"),
            one.wait, one.waitHigh, one.response, one.responseHigh];
          if (causes.length) cells.push(this.causeBar(one.causes));
          return { cells, chosen: this.filter[filter] === one.code };
        });
        this.groups.append(this.table(heads, rows, found.length > shown.length ? `The ${shown.length} largest of ${found.length}` : ""));
      }
      if (!part.length) this.groups.append(make("p", { class: "empty" }, "No task here."));
    }

    // A name that filters by itself, and if it does so already, no more.
    pick(filter, code, name, choice) {
      const act = () => this.choose(this.at, { [filter]: this.filter[filter] === code ? Core.NONE : code });
      return choice ? make("button", { type: "button", title: "Filter by it", onclick: act }, name) : name;
    }

    causeBar(seconds) {
      const total = seconds.reduce((sum, one) => sum + one, 0);
      if (!total) return "–";
      const said = this.run.causes.map((cause, i) => [cause, seconds[i] / total]).filter(([, share]) => share > 0)
        .sort((a, b) => b[1] - a[1]).map(([cause, share]) => `${words(cause)} ${Core.figures(100 * share)} %`).join(", ");
      const bar = make("div", { class: "spread", role: "img", "aria-label": said, title: said });
      this.run.causes.forEach((cause, i) => {
        if (seconds[i] > 0) bar.append(make("span", { style: `width:${100 * seconds[i] / total}%;background:var(--${CAUSES[cause]})` }));
      });
      return bar;
    }

    pairTable() {
      if (!this.many) return;
      const base = this.run, lists = [], rows = this.runs.map((run, i) => {
        const mine = i === this.at ? this.chosen : Core.within(run, this.masks[i].task, this.view.low, this.view.high);
        const values = Core.known(run[this.metric], mine), cells = [run.label, values.length.toLocaleString("en"), Core.mean(values),
          Core.quantile(values, 0.95, Core.open(run, run[this.metric], mine))];
        const gaps = i === this.at ? [] : Core.paired(base, run, this.metric, this.masks[i].task);
        if (gaps.length) lists.push([gaps, `c${i % 8}`, run.label]);
        const less = Array.from(gaps).filter(one => one < 0).length, more = Array.from(gaps).filter(one => one > 0).length;
        cells.push(...(gaps.length ? [Core.mean(gaps), Core.quantile(gaps, 0.5), `${Core.figures(100 * less / gaps.length)} %`,
          `${Core.figures(100 * more / gaps.length)} %`] : [NaN, NaN, "–", "–"]));
        return { cells, chosen: i === this.at };
      });
      const heads = [["run"], ["tasks", 1], [`${this.metric} mean`, "s"], ["p95", "s"], ["task by task: mean", "+"], ["median", "+"], ["shorter", 1], ["longer", 1]];
      this.pairs.replaceChildren(make("h3", {}, `The same tasks under each, compared with ${base.label}`),
        this.table(heads, rows, "First replication of each; the table of differences has all of them, with intervals."));
      if (lists.length) { this.pairs.append(this.gaps.box); this.drawGaps(lists); }
    }

    // What the chosen tasks made of each device in the part of the run that is shown, the warm-up left out.
    deviceTable() {
      const { run, view } = this, low = Math.max(view.low, Math.min(run.warmup, view.high)), high = Math.max(low, Math.min(view.high, run.horizon, run.end));
      const all = Core.devices(run, this.mask, low, high), shown = all.slice(0, MAX_DEVICES);
      const rows = shown.map(one => ({ cells: [one.name, one.type, this.pick("node", run.nodeOfDevice[one.device], one.node, run.nodes.length > 1),
        one.count.toLocaleString("en"), isNaN(one.utilization) ? "–" : `${Core.figures(100 * one.utilization)} %`] }));
      this.devices.replaceChildren(make("h3", {}, "Devices"), this.table(
        [["device"], ["type"], ["node"], ["launches", 1], ["utilization", 1]], rows,
        `From ${Core.seconds(low)} to ${Core.seconds(high)}` + (all.length > shown.length ? `: the ${shown.length} busiest of ${all.length.toLocaleString("en")}` : "")));
    }

    // The share of tasks whose difference to the chosen run is at most x, between the 1st and 99th percentiles.
    drawGaps(lists) {
      const { gaps, theme } = this, ends = share => lists.map(([list]) => Core.quantile(list, share));
      const low = Math.min(0, ...ends(0.01)), high = Math.max(low + 1e-9, 0, ...ends(0.99));
      gaps.begin(46, 20, 18);
      const value = share => low + share * (high - low), pixels = Math.floor(gaps.wide);
      gaps.show(Pictures.timeAxis(low, high, gaps.wide, `${this.metric} compared with ${this.run.label}`), Pictures.levelAxis(1, gaps.high, part => `${Math.round(part * 100)} %`),
        lists.map(([list, color]) => ({ kind: "Line", x: Array.from({ length: pixels }, (_, i) => value((i + 1) / pixels)), y: Core.shares(list, pixels, value), color })));
      gaps.line(gaps.across(0), gaps.top, gaps.across(0), gaps.top + gaps.high, theme.ink);
      this.keyAbove(gaps, [["left of the line: shorter", ""], ...lists.map(([, color, label]) => [label, color])]);
    }

    taskTable() {
      const { run, chosen, order } = this;
      const value = row => (isNaN(run[order][row]) ? -Infinity : run[order][row]);
      const rows = top(chosen, value, MAX_TASKS);
      if (this.pinned >= 0 && !rows.includes(this.pinned)) rows.unshift(this.pinned);
      const heads = [["task"], ["class"], ["user"], ["status"], ["arrival", "s"], ["wait", "s"], ["response", "s"], ["wait by cause"]];
      const kept = heads.map(([name]) => (name !== "user" || run.users.length > 2) && (name !== "class" || run.classes.length > 2)
        && (name !== "wait by cause" || run.causes.length > 0));
      const lines = rows.map(row => {
        const cells = [
          make("button", { type: "button", title: "Show it in the chart", onclick: () => this.show(row) }, String(run.id[row])),
          run.classes[run.klass[row]] || "", run.users[run.user[row]] || "", run.statuses[run.status[row]], run.arrival[row],
          run.wait[row], run.response[row], this.causeBar(run.shares.map(shares => shares[row] / 100 * Core.waited(run, row))),
        ];
        return { cells: cells.filter((_, n) => kept[n]), chosen: row === this.pinned };
      });
      this.tasks.replaceChildren(make("h3", {}, "Tasks"), lines.length
        ? this.table(heads.filter((_, n) => kept[n]), lines, chosen.length > MAX_TASKS ? `The ${MAX_TASKS} with the longest ${order} of ${chosen.length.toLocaleString("en")}` : "")
        : make("p", { class: "empty" }, "No task passes the filters in this part of the run."));
    }

    show(row) {
      const { run } = this, begin = run.arrival[row], end = isNaN(run.finish[row]) ? run.end : run.finish[row];
      this.pinned = row;
      const room = Math.max(end - begin, this.end * 1e-4) * 0.25;
      this.look(begin - room, end + room);
      this.gantt.canvas.focus({ preventScroll: true });
      this.gantt.box.scrollIntoView({ block: "center" });
    }
  }

  const highest = values => Math.max(0, ...values);

  // The rows with the greatest values, in descending order.
  function top(rows, value, count) {
    let kept = [];
    for (const row of rows) {
      kept.push(row);
      if (kept.length > 40 * count) kept = kept.sort((a, b) => value(b) - value(a)).slice(0, count);
    }
    return kept.sort((a, b) => value(b) - value(a)).slice(0, count);
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
