"use strict";
// Pictures on canvases: panels of marks along two axes, as hetsim.results.panels describes them.  All that has a name
// from a scenario goes into the page as text (textContent, fillText), never as HTML.

const Pictures = (() => {
  const DASHES = [[], [7, 3], [2, 2], [8, 3, 2, 3]], INCH = 96, POINT = 1.35, NEAR = 14, MAX_STOPS = 4000;
  const CIVIDIS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
  const VARIABLES = ["paper", "panel", "soft", "ink", "muted", "line", "mark", "upload", "compute", "download", "cores", "lost",
    "overhead", "prompt", "dim", "band", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  let theme = null;
  addEventListener("theme", () => { theme = null; });

  function colors() {
    const style = getComputedStyle(document.documentElement);
    return theme ||= Object.fromEntries(VARIABLES.map(name => [name, style.getPropertyValue(`--${name}`).trim()]));
  }
  const paint = color => colors()[color] || color;

  function make(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children);
    return made;
  }

  async function inflate(text) {
    const packed = Uint8Array.from(atob(text), character => character.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // What the pointer or the keys are at, next to them.
  const tip = make("div", { id: "tip", role: "status", hidden: true });
  function say(children, x = 0, y = 0) {
    tip.hidden = !children;
    if (!children) return;
    document.body.append(tip);
    if (children.length) tip.replaceChildren(...children);
    const { offsetWidth: width, offsetHeight: height } = tip;
    tip.style.left = `${x + 16 + width > innerWidth ? Math.max(4, x - width - 12) : x + 16}px`;
    tip.style.top = `${clamp(y + 14, 4, Math.max(4, innerHeight - height - 6))}px`;
  }
  function facts(title, pairs) {
    const list = make("dl");
    for (const [name, value] of pairs) list.append(make("dt", {}, name), make("dd", {}, value));
    return [make("b", {}, title), list];
  }

  const key = (name, color) => make("span", {}, make("i", { style: `background:${paint(color)}` }), name);

  // Axes ---------------------------------------------------------------------------------------------------------

  const share = (axis, value) => (axis.log ? Math.log(value / axis.low) / Math.log(axis.high / axis.low)
    : (value - axis.low) / (axis.high - axis.low));

  // A value as the ticks are written: in their unit, as a time, or the nearest name.
  function written(axis, value) {
    const parts = axis.ticks.map(([at, text]) => [at, parseFloat(text.replace(/,/g, "")), text.replace(/^[-\d.,e+]+/, "")]);
    const units = new Set(parts.map(([, , unit]) => unit)), sized = parts.filter(([, number]) => number);
    const [at, number] = sized[sized.length - 1] || [1, 1], factor = at / number;
    const even = sized.every(([one, size]) => Math.abs(one / size - factor) < 1e-6 * Math.abs(factor));
    if (parts.length && units.size === 1 && even && !parts.some(([, size]) => isNaN(size))) return Core.figures(value / factor) + parts[0][2];
    if (parts.every(([, size, unit]) => size && /^ (ns|µs|ms|s|min|h|d)$/.test(unit))) return Core.seconds(value);
    const [nearest] = axis.ticks.slice().sort((a, b) => Math.abs(a[0] - value) - Math.abs(b[0] - value));
    return nearest && Math.abs(nearest[0] - value) <= 0.5 ? nearest[1] : Core.figures(value);
  }

  function timeAxis(low, high, wide, name = "time") {
    const { ticks, unit } = Core.timeTicks(low, high, Math.max(2, Math.floor(wide / 80)));
    return { low, high, ticks, name: `${name} (${unit})` };
  }

  // From 0 to the highest value, with round values between.
  function levelAxis(highest, high, text = value => Core.figures(value)) {
    const size = 10 ** Math.floor(Math.log10(highest / 3)), room = Math.max(2, Math.floor(high / 28));
    const step = [1, 2, 5, 10].map(one => one * size).find(one => highest / one <= room) || 10 * size;
    const top = Math.max(step, highest * 1.04), ticks = [];
    for (let n = 0; n * step <= top; n++) ticks.push([n * step, text(n * step)]);
    return { low: 0, high: top, ticks };
  }

  // A canvas in the resolution of the screen, with room for labels at its left and an axis below.
  class Plot {
    constructor(parent, height, label, className = "") {
      this.canvas = make("canvas", { class: className, role: "img", "aria-label": label });
      this.box = make("div", { class: "plot" }, this.canvas);
      parent.append(this.box);
      this.height = height;
    }
    begin(left, bottom = 20, top = 4, right = 10) {
      const ratio = Math.min(2, devicePixelRatio || 1), width = this.box.clientWidth;
      Object.assign(this, { left, bottom, top, wide: Math.max(50, width - left - right), high: this.height - bottom - top });
      this.canvas.style.height = `${this.height}px`;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.pen = this.canvas.getContext("2d");
      this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.pen.font = "11px system-ui, sans-serif";
      return this.pen;
    }
    text(text, x, y, color, align = "left", most = Infinity) {
      const { pen } = this;
      pen.fillStyle = color; pen.textAlign = align; pen.textBaseline = "middle";
      let shown = text;
      if (pen.measureText(shown).width > most) {
        while (shown.length > 1 && pen.measureText(`${shown}…`).width > most) shown = shown.slice(0, -1);
        shown += "…";
      }
      pen.fillText(shown, x, y);
    }
    turned(text, x, y, angle, align) {
      this.pen.save();
      this.pen.translate(x, y); this.pen.rotate(angle);
      this.text(text, 0, 0, colors().muted, align);
      this.pen.restore();
    }
    line(x0, y0, x1, y1, color, width = 1) {
      const { pen } = this;
      pen.strokeStyle = color; pen.lineWidth = width; pen.beginPath();
      pen.moveTo(Math.round(x0) + 0.5, Math.round(y0) + 0.5); pen.lineTo(Math.round(x1) + 0.5, Math.round(y1) + 0.5);
      pen.stroke();
    }

    // Draw marks along axes inside the margins that `begin` was given; `name` of an axis stands at its end.
    show(x, y, marks, grid = "both") {
      Object.assign(this, { x, y, marks, stops: null });
      const { pen, left, top, wide, high, bottom } = this, { muted, line, ink } = colors();
      this.across = value => left + wide * share(x, value);
      this.up = value => top + high * (1 - share(y, value));
      const crowded = x.ticks.reduce((sum, [, text]) => sum + pen.measureText(text).width + 8, 0) > wide && !x.name;
      const room = x.name ? pen.measureText(x.name).width + 14 : 0;
      let free = -Infinity;
      for (const [value, text] of x.ticks) {
        const at = this.across(value), half = pen.measureText(text).width / 2;
        if (at < left - 0.5 || at > left + wide + 0.5) continue;
        if (grid !== "y" && grid) this.line(at, top, at, top + high, line);
        if (bottom < 20) continue;
        if (crowded && isNaN(parseFloat(text))) this.turned(text, at + 3, top + high + 9, -0.5, "right");
        else if ((at < left + wide - room || !room) && at - half > free) {
          this.text(text, Math.min(at, left + wide + 10 - half), top + high + 11, muted, "center");
          free = at + half + 4;
        }
      }
      if (x.name && bottom >= 20) this.text(x.name, left + wide, top + high + 11, muted, "right");
      if (x.label && bottom >= 34) this.text(x.label, left + wide / 2, this.height - 7, muted, "center", wide);
      const names = y.low > y.high, apart = high / Math.max(1, y.ticks.length - 1);
      y.ticks.forEach(([value, text], n) => {
        const at = this.up(value);
        if (at < top - 0.5 || at > top + high + 0.5) return;
        if (grid !== "x" && grid) this.line(left, at, left + wide, at, line);
        if (!y.bare && n % Math.ceil(11 / apart) === 0) this.text(text, left - 6, Math.max(7, at), names ? ink : muted, "right", left - 8);
      });
      y.label?.split("\n").forEach((text, n) => { if (!y.bare) this.turned(text, 8 + 12 * n, top + high / 2, -Math.PI / 2, "center"); });
      for (const mark of [...marks.filter(one => one.behind), ...marks.filter(one => !one.behind)]) {
        pen.save();
        if (mark.kind !== "Texts" && mark.kind !== "Points") { pen.beginPath(); pen.rect(left, top - 1, wide + 1, high + 2); pen.clip(); }
        pen.globalAlpha = mark.alpha ?? 1;
        pen.fillStyle = pen.strokeStyle = paint(mark.color || "ink");
        this[mark.kind](mark, pen);
        pen.restore();
      }
    }

    // Along values from the first to the last; null breaks the line, steps are level until the next.
    path(mark, values, back = false) {
      const { pen } = this, count = values.length;
      let on = back;
      for (let n = 0; n < count; n++) {
        const i = back ? count - 1 - n : n, at = this.up(values[i]), x = this.across(mark.x[i]);
        if (values[i] === null || mark.x[i] === null || isNaN(at)) { on = false; continue; }
        if (!on) { pen.moveTo(x, at); on = true; continue; }
        if (mark.steps && !back) pen.lineTo(x, this.up(values[i - 1]));
        if (mark.steps && back && i + 1 < count) pen.lineTo(this.across(mark.x[i + 1]), at);
        pen.lineTo(x, at);
      }
    }
    Line(mark, pen) {
      pen.lineWidth = mark.width || 1.6; pen.setLineDash(DASHES[(mark.dash || 0) % DASHES.length]);
      pen.beginPath(); this.path(mark, mark.y); pen.stroke(); pen.setLineDash([]);
      if (mark.marker) this.Points({ ...mark, size: 5, hollow: false }, pen);
    }
    Band(mark, pen) {
      pen.globalAlpha = mark.alpha ?? 0.2;
      pen.beginPath(); this.path(mark, mark.high); this.path(mark, mark.low, true); pen.fill();
    }
    Points(mark, pen) {
      const radius = (mark.size || 4) * POINT / 2;
      mark.x.forEach((value, i) => {
        const x = this.across(value), y = this.up(mark.y[i]);
        if (value === null || mark.y[i] === null) return;
        for (const [half, along] of [[mark.across, true], [mark.up, false]]) {
          if (!half) continue;
          const [from, to] = [-half[0][i], half[1][i]];
          if (along) this.line(this.across(value + from), y, this.across(value + to), y, pen.fillStyle);
          else this.line(x, this.up(mark.y[i] + from), x, this.up(mark.y[i] + to), pen.fillStyle);
        }
        if (!mark.marker && mark.kind === "Points") return;
        pen.beginPath();
        if (mark.marker === "s") pen.rect(x - radius, y - radius, 2 * radius, 2 * radius);
        else if (mark.marker === "D") for (const [a, b] of [[0, -1], [1, 0], [0, 1], [-1, 0]]) pen.lineTo(x + a * radius * 1.2, y + b * radius * 1.2);
        else if (mark.marker === "^") for (const [a, b] of [[0, -1], [1, 0.8], [-1, 0.8]]) pen.lineTo(x + a * radius, y + b * radius);
        else pen.arc(x, y, radius, 0, 7);
        pen.closePath();
        if (mark.hollow) { pen.lineWidth = 2; pen.stroke(); } else pen.fill();
      });
    }
    Boxes(mark, pen) {
      for (const [, , x0, y0, x1, y1] of this.boxes(mark)) {
        const wide = x1 - x0 - (mark.edge && x1 - x0 > 3 && !mark.hollow ? 0.6 : 0);
        if (mark.hollow) { pen.lineWidth = mark.edge; pen.strokeRect(x0, y0, wide, y1 - y0); } else pen.fillRect(x0, y0, Math.max(wide, 0.3), y1 - y0);
      }
    }
    *boxes({ x0, x1, y0, y1 }) {
      const count = Math.max(x0.length, y0.length), of = (list, i) => list[list.length === 1 ? 0 : i];
      for (let i = 0; i < count; i++) {
        const xs = [this.across(of(x0, i)), this.across(of(x1, i))], ys = [this.up(of(y0, i)), this.up(of(y1, i))];
        yield [i, 0, Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
      }
    }
    Texts(mark, pen) {
      const { left, top, wide, high } = this, of = (list, i) => (Array.isArray(list) ? list[list.length === 1 ? 0 : i] : list), taken = [];
      mark.texts.forEach((text, i) => {
        const value = [of(mark.x, i), of(mark.y, i)], size = Math.round(of(mark.size, i) * POINT), room = of(mark.room, i);
        let x = mark.inside.includes("x") ? left + wide * value[0] : this.across(value[0]);
        let y = mark.inside.includes("y") ? top + high * (1 - value[1]) : this.up(value[1]);
        pen.font = `${size}px system-ui, sans-serif`;
        const length = pen.measureText(text).width;
        if (room !== null && room !== undefined && length > room / Math.abs(this.x.high - this.x.low) * wide) return;
        x += mark.shift[0] * POINT; y -= mark.shift[1] * POINT;
        if (mark.free) {   // next to its point, clear of other names, or not at all
          const spots = [[6, -8], [6, 10], [-6 - length, -8], [-6 - length, 10], [6, -22], [-6 - length, 24]];
          const spot = spots.map(([a, b]) => [x + a, y + b, x + a + length, y + b + size]).find(box => box[0] > left && box[2] < left + wide + 8
            && !taken.some(one => box[0] < one[2] && one[0] < box[2] && box[1] < one[3] && one[1] < box[3]));
          if (!spot) return;
          taken.push(spot);
          [x, y] = spot;
        }
        y += { bottom: -size / 2, top: size / 2 }[mark.rise] || 0;
        this.text(text, x, y, paint(of(mark.color, i)), mark.align);
        pen.font = "11px system-ui, sans-serif";
      });
    }
    Shades(mark, pen) {
      const [low, high] = mark.scale;
      mark.values.forEach((row, r) => row.forEach((value, c) => {
        if (value === null) return;
        const part = clamp((value - low) / (high - low || 1), 0, 1) * (CIVIDIS.length - 1), n = Math.min(CIVIDIS.length - 2, Math.floor(part));
        pen.fillStyle = `rgb(${CIVIDIS[n].map((from, i) => Math.round(from + (CIVIDIS[n + 1][i] - from) * (part - n))).join(" ")})`;
        const x = this.across(mark.x[c]), y = this.up(mark.y[r + 1]);
        pen.fillRect(x, y, this.across(mark.x[c + 1]) - x + 0.5, this.up(mark.y[r]) - y + 0.5);
      }));
    }

    // Where the pointer and the keys can stop: points, corners of lines, boxes; [x, y, mark, number of its item, size].
    *places() {
      for (const mark of this.marks) {
        if (mark.kind === "Boxes" && !mark.hollow) {
          for (const [i, , x0, y0, x1, y1] of this.boxes(mark)) yield [(x0 + x1) / 2, (y0 + y1) / 2, mark, i, [(x1 - x0) / 2, (y1 - y0) / 2]];
        } else if (mark.kind === "Points" || (mark.kind === "Line" && (mark.label || mark.marker))) {
          for (let i = 0; i < mark.x.length; i++) {
            if (mark.x[i] !== null && mark.y[i] !== null) yield [this.across(mark.x[i]), this.up(mark.y[i]), mark, i, [0, 0]];
          }
        }
      }
    }
    nearest(x, y) {
      this.stops ||= [...this.places()];
      let best = -1, least = NEAR;
      this.stops.forEach(([px, py, , , [a, b]], n) => {
        const distance = Math.hypot(Math.max(0, Math.abs(px - x) - a), Math.max(0, Math.abs(py - y) - b)) + (a ? 2 : 0);
        if (distance < least) { best = n; least = distance; }
      });
      return best;
    }
  }

  // Pictures of the page -------------------------------------------------------------------------------------------

  // The row of the page's tables, or the task of its run, that a mark stands for.
  function goTo(name) {
    const { explorer } = window, task = explorer ? explorer.run.id.findIndex(one => String(one) === name) : -1;
    if (task >= 0) { explorer.show(task); return; }
    const row = [...document.querySelectorAll("main tbody tr")].find(one => one.cells[0].textContent === name);
    if (!row) return;
    document.querySelectorAll("main tr.chosen").forEach(one => one.classList.remove("chosen"));
    row.classList.add("chosen");
    for (let up = row; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
    row.scrollIntoView({ block: "center" });
  }

  class View {
    constructor(parent, panel, height, alt) {
      this.panel = panel; this.at = -1;
      const named = new Map(panel.marks.filter(mark => mark.label && mark.kind !== "Shades").map(mark => [mark.label, mark]));
      this.cell = make("div");
      if (panel.title) this.cell.append(make("h4", {}, panel.title));
      this.legend = make("div", { class: "legend", hidden: !(panel.legend && named.size) && !panel.marks.some(mark => mark.kind === "Shades" && mark.label) });
      this.named = named;
      this.cell.append(this.legend);
      parent.append(this.cell);
      this.plot = new Plot(this.cell, height, panel.title || alt, "picture");
      const { canvas } = this.plot;
      canvas.tabIndex = 0;
      canvas.addEventListener("pointermove", event => this.stop(this.plot.nearest(event.offsetX, event.offsetY), event.clientX, event.clientY));
      canvas.addEventListener("pointerleave", () => this.stop(-1));
      canvas.addEventListener("blur", () => this.stop(-1));
      canvas.addEventListener("click", () => this.go());
      canvas.addEventListener("keydown", event => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key], { plot } = this;
        if (event.key === "Enter") this.go();
        if (event.key === "Escape") this.stop(-1);
        if (!by) return;
        event.preventDefault();
        plot.stops ||= [...plot.places()];
        const count = plot.stops.length, box = canvas.getBoundingClientRect();
        if (!count || count > MAX_STOPS) return;
        const next = (this.at + (this.at < 0 && by < 0 ? 0 : by) + count) % count;
        this.stop(next, box.left + plot.stops[next][0], box.top + plot.stops[next][1]);
      });
    }
    // The room that texts left of the panel and below it need.
    room() {
      const { x, y } = this.panel, pen = this.plot.canvas.getContext("2d");
      pen.font = "11px system-ui, sans-serif";
      const width = text => pen.measureText(text).width, names = x.ticks.map(([, text]) => text);
      const turned = names.some(text => isNaN(parseFloat(text))) && names.reduce((sum, text) => sum + width(text) + 8, 0) > this.plot.box.clientWidth - 60;
      this.bottom = x.bare ? 7 : (turned ? 14 + Math.min(90, 0.48 * Math.max(...names.map(width))) : 20) + (x.label ? 15 : 0);
      return y.bare ? 8 : Math.min(170, 10 + Math.max(12, ...y.ticks.map(([, text]) => width(text))) + (y.label ? 12 * y.label.split("\n").length + 4 : 0));
    }
    draw(left) {
      const { panel, plot, named } = this;
      const shades = panel.marks.filter(mark => mark.kind === "Shades" && mark.label), ramp = CIVIDIS.map(color => `rgb(${color.join(" ")})`).join(", ");
      this.legend.replaceChildren(...[...named].map(([label, mark]) => key(label, mark.color)), ...shades.map(({ label, scale }) => make("span", {},
        `${label}: ${Core.figures(scale[0])} `, make("i", { style: `width:6em;background:linear-gradient(90deg, ${ramp})` }), Core.figures(scale[1]))));
      plot.begin(left, this.bottom, panel.room ? 8 + panel.room * POINT : 8, 14);
      plot.show(panel.x, panel.y, panel.marks, panel.grid);
      if (this.at < 0) return;
      plot.stops = [...plot.places()];
      const [x, y, , , [a, b]] = plot.stops[this.at];
      plot.pen.strokeStyle = colors().ink; plot.pen.lineWidth = 1.5;
      plot.pen.strokeRect(x - Math.max(a, 6), y - Math.max(b, 6), 2 * Math.max(a, 6), 2 * Math.max(b, 6));
    }
    row() {
      const [, , mark, i] = this.plot.stops[this.at];
      return mark.rows ? String(mark.rows[i]) : "";
    }
    go() { if (this.at >= 0 && this.row()) goTo(this.row()); }
    stop(n, x, y) {
      const changed = n !== this.at, { plot } = this, { x: across, y: up } = this.panel;
      this.at = n;
      plot.canvas.style.cursor = n >= 0 && this.row() ? "pointer" : "";
      if (n < 0) say(null);
      else if (changed) {
        const [, , mark, i] = plot.stops[n], from = mark.kind === "Boxes" ? mark.x0 : mark.x, pairs = [];
        const names = up.low > up.high, middle = mark.kind === "Boxes" ? (mark.y0[i % mark.y0.length] + mark.y1[i % mark.y1.length]) / 2 : mark.y[i];
        pairs.push([across.label || this.panel.title || "x", mark.kind === "Boxes"
          ? `${written(across, from[i % from.length])} to ${written(across, mark.x1[i % mark.x1.length])}` : written(across, from[i])]);
        pairs.push([up.label?.split("\n")[0] || (names ? "row" : "y"), written(up, middle)]);
        say(facts(this.row() || mark.label || this.panel.title, pairs), x, y);
      } else say([], x, y);
      if (changed) this.draw(plot.left);
    }
  }

  // A figure of the page: panels in rows, the columns aligned.
  function showFigure(figure, picture) {
    const alt = figure.getAttribute("aria-label"), grid = make("div", { class: "panels" }), views = [], sums = picture.heights || picture.rows.map(() => 1);
    const columns = Math.max(...picture.rows.map(row => row.length)), total = sums.reduce((sum, one) => sum + one, 0);
    const widths = picture.widths || Array(columns).fill(1);
    grid.style.gridTemplateColumns = widths.map(one => `minmax(0, ${one}fr)`).join(" ");
    figure.style.maxWidth = `${picture.width * INCH * 1.1}px`;
    const legend = make("div", { class: "legend", hidden: !picture.legend });
    picture.rows.forEach((row, r) => row.forEach((panel, c) => {
      if (!panel) { grid.append(make("div")); return; }
      const used = (panel.title ? 20 : 0) + (panel.legend ? 22 : 0);
      const view = new View(grid, panel, Math.max(110, picture.height * INCH * sums[r] / total - used), alt);
      view.cell.style.gridColumn = row.length < columns ? `span ${Math.floor(columns / row.length)}` : "";
      view.column = c;
      views.push(view);
    }));
    figure.prepend(legend, grid);
    if (picture.note) grid.after(make("p", { class: "note" }, picture.note));
    const draw = () => {
      if (picture.legend && views.length) legend.replaceChildren(...[...views[0].named].map(([label, mark]) => key(label, mark.color)));
      const lefts = [];
      for (const view of views) lefts[view.column] = Math.max(lefts[view.column] || 0, view.room());
      for (const view of views) view.draw(lefts[view.column]);
    };
    new ResizeObserver(draw).observe(grid);
    addEventListener("theme", draw);
    draw();
  }

  for (const figure of typeof document === "undefined" ? [] : document.querySelectorAll("figure[data-picture]")) {
    inflate(figure.dataset.picture).then(bytes => {
      figure.removeAttribute("data-picture");
      showFigure(figure, JSON.parse(new TextDecoder().decode(bytes)));
      figure.dataset.ready = "yes";
    });
  }

  return { Plot, colors, facts, inflate, key, levelAxis, make, say, timeAxis, written };
})();
