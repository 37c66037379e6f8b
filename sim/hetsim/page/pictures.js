"use strict";
// Pictures on canvases: panels of marks along two axes, as hetsim.results.panels describes them.  All that has a name
// from a scenario goes into the page as text (textContent, fillText), never as HTML.

const Pictures = (() => {
  const DASHES = [[], [7, 3], [2, 2], [8, 3, 2, 3]], INCH = 96, POINT = 1.35, NEAR = 14, MAX_STOPS = 4000, FONT = "system-ui, sans-serif";
  const CIVIDIS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
  const VARIABLES = ("paper panel soft ink muted line mark upload compute download cores lost overhead prompt dim band "
    + "c0 c1 c2 c3 c4 c5 c6 c7 c8").split(" ");
  // Corners of markers, as shares of their radius; others are round.
  const MARKERS = { s: [[-1, -1], [1, -1], [1, 1], [-1, 1]], D: [[0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]], "^": [[0, -1], [1, 0.8], [-1, 0.8]],
    v: [[0, 1], [1, -0.8], [-1, -0.8]] };
  const { clamp, share } = Core;
  // An item of a list that has one for each mark or one for all; what is no list is for all.
  const item = (list, i) => (Array.isArray(list) ? list[list.length === 1 ? 0 : i] : list);
  let theme = null, tip = null;

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

  // What the pointer or the keys are at, next to them; no children: as before, at another place; null: nothing.
  function say(children, x = 0, y = 0) {
    tip ||= document.body.appendChild(make("div", { id: "tip", role: "status" }));
    tip.hidden = !children;
    if (children?.length) tip.replaceChildren(...children);
    const { offsetWidth: width, offsetHeight: height } = tip;
    tip.style.left = `${x + 16 + width > innerWidth ? Math.max(4, x - width - 12) : x + 16}px`;
    tip.style.top = `${clamp(y + 14, 4, Math.max(4, innerHeight - height - 6))}px`;
  }
  function facts(title, pairs) {
    return [make("b", {}, title), make("dl", {}, ...pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]))];
  }

  // An entry of a key: a name and its color, if it has one.
  function key(name, color, alpha = 1) {
    const style = `background:${VARIABLES.includes(color) ? `var(--${color})` : color};opacity:${Math.max(alpha, 0.4)}`;
    return make("span", {}, ...(color ? [make("i", { style })] : []), name);
  }

  // The next stop of the keys among `count`; -1: at none yet.
  const following = (at, by, count) => (at + (at < 0 && by < 0 ? 0 : by) + count) % count;

  // Axes ---------------------------------------------------------------------------------------------------------

  // A value as the ticks are written: in their unit, as a time, or the nearest name.
  function written(axis, value) {
    const parts = axis.ticks.map(([at, text]) => [at, parseFloat(text.replace(/,/g, "")), text.replace(/^[-\d.,e+]+/, "")]);
    const units = new Set(parts.map(([, , unit]) => unit)), sized = parts.filter(([, number]) => number);
    const [at, number] = sized[sized.length - 1] || [1, 1], factor = at / number;
    const even = sized.every(([one, size]) => Math.abs(one / size - factor) < 1e-6 * Math.abs(factor));
    if (parts.length && units.size === 1 && even && !parts.some(([, size]) => isNaN(size))) return Core.figures(value / factor) + parts[0][2];
    if (parts.length && parts.every(([, size, unit]) => size && /^ (ns|µs|ms|s|min|h|d)$/.test(unit))) return Core.seconds(value);
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
    const top = Math.max(step, highest * 1.04), count = Math.floor(top / step) + 1;
    return { low: 0, high: top, ticks: Array.from({ length: count }, (_, n) => [n * step, text(n * step)]) };
  }

  // Are the names below an axis to be turned, since they have no room side by side?
  const isCrowded = ({ ticks, name }, plot, wide) => !name && ticks.some(([, text]) => isNaN(parseFloat(text)))
    && ticks.reduce((sum, [, text]) => sum + plot.width([text]) + 8, 0) > wide;

  // A canvas in the resolution of the screen, with a key above it, room for labels at its left and an axis below.
  class Plot {
    constructor(parent, height, label, attributes = {}) {
      this.canvas = make("canvas", { role: "img", "aria-label": label, ...attributes });
      this.legend = make("div", { class: "legend", hidden: true });
      this.box = make("div", { class: "plot" }, this.canvas);
      this.cell = make("div", {}, this.legend, this.box);
      this.pen = this.canvas.getContext("2d");
      this.height = height;
      parent.append(this.cell);
    }
    begin(left, bottom = 20, top = 4, right = 10) {
      const ratio = Math.min(2, devicePixelRatio || 1), width = this.box.clientWidth;
      Object.assign(this, { left, bottom, top, wide: Math.max(50, width - left - right), high: this.height - bottom - top });
      this.canvas.style.height = `${this.height}px`;
      Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(this.height * ratio) });
      this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.pen.font = `11px ${FONT}`;
      return this.pen;
    }
    // The key: entries of `key`, or elements.
    keys(entries) {
      const said = JSON.stringify(entries);
      if (said === this.said) return;
      Object.assign(this, { said });
      this.legend.hidden = !entries.length;
      this.legend.replaceChildren(...entries.map(entry => (Array.isArray(entry) ? key(...entry) : entry)));
    }
    width(texts) {
      this.pen.font = `11px ${FONT}`;
      return Math.max(0, ...texts.map(text => this.pen.measureText(text).width));
    }
    text(text, x, y, color, align = "left", most = Infinity) {
      const { pen } = this;
      let shown = text;
      while (shown.length > 1 && pen.measureText(shown).width > most) shown = `${shown.slice(0, shown === text ? -1 : -2)}…`;
      Object.assign(pen, { fillStyle: color, textAlign: align, textBaseline: "middle" });
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

    // A stretch of the picture over its whole height.
    area(from, to, color) {
      this.pen.fillStyle = paint(color);
      this.pen.fillRect(from, this.top, Math.max(0, to - from), this.high);
    }

    // Draw marks along axes inside the margins that `begin` was given; `name` of an axis stands at its end.
    show(x, y, marks, grid = "both") {
      Object.assign(this, { x, y, marks, stops: null });
      const { pen, left, top, wide, high, bottom } = this, { muted, line, ink } = colors(), below = top + high + 11;
      this.across = value => left + wide * share(x, value);
      this.up = value => top + high * (1 - share(y, value));
      const isTurned = isCrowded(x, this, wide), room = x.name ? this.width([x.name]) + 14 : 0;
      let free = -Infinity;
      for (const [value, text] of x.ticks) {
        const at = this.across(value), half = pen.measureText(text).width / 2;
        if (at < left - 0.5 || at > left + wide + 0.5) continue;
        if (grid === "x" || grid === "both") this.line(at, top, at, top + high, line);
        if (bottom < 20) continue;
        if (isTurned) this.turned(text, at + 3, below - 2, -0.5, "right");
        else if ((at < left + wide - room || !room) && at - half > free) {
          this.text(text, Math.min(at, left + wide + 10 - half), below, muted, "center");
          free = at + half + 4;
        }
      }
      if (x.name && bottom >= 20) this.text(x.name, left + wide, below, muted, "right");
      if (x.label && bottom >= 34) this.text(x.label, left + wide / 2, this.height - 7, muted, "center", wide);
      free = Infinity;
      for (const [value, text] of y.ticks) {
        const at = this.up(value);
        if (at < top - 0.5 || at > top + high + 0.5) continue;
        if (grid === "y" || grid === "both") this.line(left, at, left + wide, at, line);
        const place = Math.max(7, at);
        if (y.bare || Math.abs(place - free) < 10.9) continue;
        this.text(text, left - 6, place, y.low > y.high ? ink : muted, "right", left - 8);
        free = place;
      }
      if (!y.bare) y.label?.split("\n").forEach((text, n) => this.turned(text, 8 + 12 * n, top + high / 2, -Math.PI / 2, "center"));
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
      if (mark.marker) this.Points({ ...mark, size: 5 }, pen);
    }
    Band(mark, pen) {
      pen.globalAlpha = mark.alpha ?? 0.2;
      pen.beginPath(); this.path(mark, mark.high); this.path(mark, mark.low, true); pen.fill();
    }
    Points({ x: xs, y: ys, size = 4, across, up, marker, hollow }, pen) {
      const radius = size * POINT / 2, corners = MARKERS[marker], { fillStyle } = pen;
      xs.forEach((value, i) => {
        const x = this.across(value), y = this.up(ys[i]);
        if (value === null || ys[i] === null) return;
        if (across) this.line(this.across(value - across[0][i]), y, this.across(value + across[1][i]), y, fillStyle);
        if (up) this.line(x, this.up(ys[i] - up[0][i]), x, this.up(ys[i] + up[1][i]), fillStyle);
        if (!marker) return;
        pen.beginPath();
        if (corners) for (const [a, b] of corners) pen.lineTo(x + a * radius, y + b * radius);
        else pen.arc(x, y, radius, 0, 7);
        pen.closePath();
        if (hollow) { pen.lineWidth = 2; pen.stroke(); } else pen.fill();
      });
    }
    Boxes(mark, pen) {
      for (const [, x0, y0, x1, y1] of this.boxes(mark)) {
        const wide = x1 - x0 - (mark.edge && x1 - x0 > 3 && !mark.hollow ? 0.6 : 0);
        pen.lineWidth = mark.edge;
        if (mark.hollow) pen.strokeRect(x0, y0, wide, y1 - y0); else pen.fillRect(x0, y0, Math.max(wide, 0.1), y1 - y0);
      }
    }
    *boxes({ x0, x1, y0, y1 }) {
      for (let i = 0; i < Math.max(x0.length, y0.length); i++) {
        const xs = [this.across(item(x0, i)), this.across(item(x1, i))], ys = [this.up(item(y0, i)), this.up(item(y1, i))];
        yield [i, Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
      }
    }
    Texts(mark, pen) {
      const { left, top, wide, high } = this, taken = [];
      mark.texts.forEach((text, i) => {
        const [at, up, points, room] = [mark.x, mark.y, mark.size, mark.room].map(list => item(list, i)), size = Math.round(points * POINT);
        let x = (mark.inside.includes("x") ? left + wide * at : this.across(at)) + mark.shift[0] * POINT;
        let y = (mark.inside.includes("y") ? top + high * (1 - up) : this.up(up)) - mark.shift[1] * POINT;
        pen.font = `${size}px ${FONT}`;
        const length = pen.measureText(text).width;
        if (length > (room ?? Infinity) / Math.abs(this.x.high - this.x.low) * wide) return;
        if (mark.free) {   // next to its point, clear of other names, or not at all
          const spots = [[6, -8], [6, 10], [-6 - length, -8], [-6 - length, 10], [6, -22], [-6 - length, 24]];
          const spot = spots.map(([a, b]) => [x + a, y + b, x + a + length, y + b + size]).find(box => box[0] > left && box[2] < left + wide + 8
            && !taken.some(one => box[0] < one[2] && one[0] < box[2] && box[1] < one[3] && one[1] < box[3]));
          if (!spot) return;
          taken.push(spot);
          [x, y] = spot;
        }
        if (mark.align === "left") x = Math.min(x, left + wide + 12 - length);
        this.text(text, x, y + ({ bottom: -size / 2, top: size / 2 }[mark.rise] || 0), paint(item(mark.color, i)), mark.align);
      });
    }
    Shades(mark, pen) {
      const [low, high] = mark.scale;
      mark.values.forEach((row, r) => row.forEach((value, c) => {
        if (value === null) return;
        const part = clamp((value - low) / (high - low || 1), 0, 1) * (CIVIDIS.length - 1), n = Math.min(CIVIDIS.length - 2, Math.floor(part));
        pen.fillStyle = `rgb(${CIVIDIS[n].map((from, i) => Math.round(from + (CIVIDIS[n + 1][i] - from) * (part - n))).join(" ")})`;
        const [x, to] = [mark.x[c], mark.x[c + 1]].map(one => Math.round(this.across(one)));   // no seams between them
        const [y, below] = [mark.y[r + 1], mark.y[r]].map(one => Math.round(this.up(one)));
        pen.fillRect(x, y, to - x, below - y);
      }));
    }

    // Where the pointer and the keys can stop: points, corners of lines, boxes; x, y, mark, number of its item, half its size.
    get places() { return this.stops ||= [...this.found()]; }
    *found() {
      for (const mark of this.marks) {
        if (mark.kind === "Boxes" && !mark.hollow) {
          for (const [i, x0, y0, x1, y1] of this.boxes(mark)) yield [(x0 + x1) / 2, (y0 + y1) / 2, mark, i, [(x1 - x0) / 2, (y1 - y0) / 2]];
        } else if (mark.kind === "Points" || (mark.kind === "Line" && (mark.label || mark.marker))) {
          for (const i of mark.x.keys()) {
            if (mark.x[i] !== null && mark.y[i] !== null) yield [this.across(mark.x[i]), this.up(mark.y[i]), mark, i, [0, 0]];
          }
        }
      }
    }
    nearest(x, y) {
      let best = -1, least = NEAR;
      this.places.forEach(([px, py, , , [a, b]], n) => {
        const distance = Math.hypot(Math.max(0, Math.abs(px - x) - a), Math.max(0, Math.abs(py - y) - b)) + (a ? 2 : 0);
        if (distance <= least) { best = n; least = distance; }   // of several the one in front
      });
      return best;
    }
  }

  // Pictures of the page -------------------------------------------------------------------------------------------

  // The row of the page's tables that a mark stands for (its first cell, of a sweep with its policy), or the task of its run.
  function goTo(name) {
    const { explorer } = window, task = explorer ? explorer.run.id.findIndex(one => `task ${one}` === name) : -1;
    const [point] = name.split(" · "), policy = name.slice(point.length + 3), cells = one => [...one.cells].map(cell => cell.textContent);
    const isOf = own => own[0] === name || (policy && own[0] === point && own.includes(policy));
    const row = task < 0 && [...document.querySelectorAll("main tbody tr")].find(one => isOf(cells(one)));
    if (!row) { if (task >= 0) explorer.show(task); return; }
    document.querySelectorAll("main tr").forEach(one => one.classList.toggle("chosen", one === row));
    for (let up = row; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
    row.scrollIntoView({ block: "center" });
  }

  // A panel of a picture; `keys` of its lines and points, `at`: the stop that the pointer or the keys are at.
  class View {
    constructor(parent, panel, height, alt) {
      const none = () => this.stop(-1), named = panel.marks.filter(mark => mark.label), of = mark => mark.kind !== "Shades";
      Object.assign(this, { panel, at: -1 });
      this.plot = new Plot(parent, height, panel.title || alt, { class: "picture", tabindex: 0, onpointerleave: none, onblur: none,
        onclick: () => this.go(), onkeydown: event => this.key(event),
        onpointermove: event => this.stop(this.plot.nearest(event.offsetX, event.offsetY), event.clientX, event.clientY) });
      if (panel.title) this.plot.cell.prepend(make("h4", {}, panel.title));
      this.keys = [...new Map(named.filter(of).map(mark => [mark.label, [mark.label, mark.color, mark.alpha]])).values()];
      const ramp = make("i", { style: `width:6em;background:linear-gradient(90deg, ${CIVIDIS.map(color => `rgb(${color})`)})` });
      this.plot.keys([...(panel.legend ? this.keys : []), ...named.filter(mark => !of(mark)).map(({ label, scale: [low, high] }) => make(
        "span", {}, `${label}: ${Core.figures(low)} `, ramp, Core.figures(high)))]);
    }
    // The room that texts left of the panel and below it need.
    room() {
      const { panel: { x, y }, plot } = this, texts = axis => axis.ticks.map(([, text]) => text);
      const isTurned = isCrowded(x, plot, plot.box.clientWidth - 60);
      this.bottom = x.bare ? 7 : (isTurned ? 14 + Math.min(90, 0.48 * plot.width(texts(x))) : 20) + (x.label ? 15 : 0);
      return y.bare ? 8 : Math.min(170, 10 + Math.max(12, plot.width(texts(y))) + (y.label ? 12 * y.label.split("\n").length + 4 : 0));
    }
    draw(left) {
      const { panel, plot, at } = this;
      plot.begin(left, this.bottom, panel.room ? 8 + panel.room * POINT : 8, 14);
      plot.show(panel.x, panel.y, panel.marks, panel.grid);
      if (at < 0) return;
      const [x, y, , , half] = plot.places[at], [a, b] = half.map(one => Math.max(one, 6));
      Object.assign(plot.pen, { strokeStyle: colors().ink, lineWidth: 1.5 });
      plot.pen.strokeRect(x - a, y - b, 2 * a, 2 * b);
    }
    key(event) {
      const { canvas, places } = this.plot, by = { ArrowRight: 1, ArrowLeft: -1 }[event.key], box = canvas.getBoundingClientRect();
      if (event.key === "Enter") this.go();
      if (event.key === "Escape") this.stop(-1);
      if (!by || !places.length || places.length > MAX_STOPS) return;
      event.preventDefault();
      const next = following(this.at, by, places.length);
      this.stop(next, box.left + places[next][0], box.top + places[next][1]);
    }
    // What the mark at the stop stands for.
    get row() {
      const [, , mark, i] = this.plot.places[this.at] || [];
      return mark?.rows?.length ? String(item(mark.rows, i)) : "";
    }
    go() { if (this.row) goTo(this.row); }
    stop(n, x, y) {
      const { plot, panel } = this, changed = n !== this.at, [, , mark, i] = plot.places[n] || [];
      this.at = n;
      plot.canvas.style.cursor = this.row ? "pointer" : "";
      if (changed) this.draw(plot.left);
      if (!changed || !mark) { say(mark ? [] : null, x, y); return; }
      const { x: across, y: up } = panel, isBox = mark.kind === "Boxes", of = name => item(mark[name], i);
      say(facts([...new Set([mark.label, this.row])].filter(Boolean).join(" · ") || panel.title, [
        [across.label || panel.title || "x", isBox ? `${written(across, of("x0"))} to ${written(across, of("x1"))}` : written(across, of("x"))],
        [up.label?.split("\n")[0] || (up.low > up.high ? "row" : "y"), written(up, isBox ? (of("y0") + of("y1")) / 2 : of("y"))],
      ]), x, y);
    }
  }

  // A figure of the page: panels in rows, the columns aligned.
  function showFigure(figure, picture) {
    const { rows } = picture, heights = picture.heights || rows.map(() => 1), total = heights.reduce((sum, one) => sum + one, 0);
    const columns = Math.max(...rows.map(row => row.length)), widths = picture.widths || Array(columns).fill(1), views = [];
    const grid = make("div", { class: "panels", style: `grid-template-columns:${widths.map(one => `minmax(0, ${one}fr)`).join(" ")}` });
    figure.style.maxWidth = `${picture.width * INCH * 1.1}px`;
    figure.prepend(grid, ...(picture.note ? [make("p", { class: "note" }, picture.note)] : []));
    rows.forEach((row, r) => row.forEach((panel, column) => {
      if (!panel) { grid.append(make("div")); return; }
      const height = picture.height * INCH * heights[r] / total - (panel.title ? 20 : 0) - (panel.legend ? 22 : 0);
      const view = new View(grid, panel, Math.max(110, height), figure.getAttribute("aria-label"));
      view.plot.cell.style.gridColumn = row.length < columns ? `span ${Math.floor(columns / row.length)}` : "";
      views.push([view, column]);
    }));
    if (picture.legend && views.length) grid.before(make("div", { class: "legend" }, ...views[0][0].keys.map(entry => key(...entry))));
    figure.views = views.map(([view]) => view);
    const draw = () => {
      const lefts = [];
      for (const [view, column] of views) lefts[column] = Math.max(lefts[column] || 0, view.room());
      for (const [view, column] of views) view.draw(lefts[column]);
    };
    new ResizeObserver(draw).observe(grid);   // which calls it once at first
    addEventListener("theme", draw);
  }

  if (typeof document !== "undefined") {
    addEventListener("theme", () => { theme = null; });
    for (const figure of document.querySelectorAll("figure[data-picture]")) {
      inflate(figure.dataset.picture).then(bytes => {
        figure.removeAttribute("data-picture");
        showFigure(figure, JSON.parse(new TextDecoder().decode(bytes)));
        requestAnimationFrame(() => setTimeout(() => { figure.dataset.ready = "yes"; }, 0));
      });
    }
  }

  return { Plot, colors, facts, following, inflate, key, levelAxis, make, say, timeAxis, written };
})();

if (typeof module !== "undefined") module.exports = Pictures;
