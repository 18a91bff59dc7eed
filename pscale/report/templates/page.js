"use strict";
// What a page does beyond what it says: a page without this has all of its content.
(() => {
  const element = (tag, attributes = {}, ...inside) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...inside);
    return made;
  };

  // What is under the pointer or the focus, and everything on the page that is about the same case.
  const tip = element("div", { id: "tip", role: "status", hidden: true });
  document.body.append(tip);

  const say = (text, x, y) => {
    tip.hidden = !text;
    if (!text) return;
    if (tip.textContent !== text) tip.textContent = text;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 4))}px`;
    tip.style.top = `${y + 18 + height < innerHeight ? y + 18 : Math.max(4, y - height - 10)}px`;
  };

  const labels = JSON.parse(document.querySelector("nav").dataset.cases ?? "{}"); // of cases, by id
  const hot = { case: "", rank: "" };
  const watchers = []; // called when what is hot changes
  const link = (name, rank = "") => {
    if (hot.case === name && hot.rank === rank) return;
    for (const each of document.querySelectorAll(".on, .linked")) each.classList.remove("on", "linked");
    Object.assign(hot, { case: name, rank });
    for (const each of name ? document.querySelectorAll(`[data-case="${CSS.escape(name)}"]`) : []) {
      if (rank !== "" && each.dataset.rank && each.dataset.rank !== rank) continue;
      each.classList.add("on");
      each.closest(".chart svg")?.classList.add("linked");
    }
    for (const watcher of watchers) watcher();
  };

  const centre = (element) => {
    const box = element.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2, box.width, box.height];
  };

  const NEAR = 16; // pixels
  const marksOf = (drawing) => {
    const marks = [...drawing.querySelectorAll(".mark")];
    for (const mark of marks) {
      mark.setAttribute("role", "img");
      mark.setAttribute("aria-label", mark.querySelector("title").textContent);
      mark.querySelector("title").remove(); // or the browser would show it as well
    }
    if (marks.length) drawing.setAttribute("role", "group"); // what is inside an image has no names
    return marks;
  };

  const near = (marks, x, y) => {
    const found = marks.map((mark) => {
      const [left, top, width, height] = centre(mark);
      return [Math.hypot(left - x, top - y) - Math.min(width, height) / 2, mark];
    });
    const [distance, mark] = found.reduce((best, each) => (each[0] < best[0] ? each : best), [NEAR, null]);
    return distance < NEAR ? mark : null;
  };

  // What a mark says at x; a curve its value there.
  const said = (mark, x) => {
    const name = mark.getAttribute("aria-label");
    if (!mark.dataset.values || x === undefined) return name;
    const values = mark.dataset.values.split("|");
    const { left, width } = mark.getBoundingClientRect();
    const place = Math.round(((x - left) / width) * (values.length - 1));
    return `${name} · ${values[Math.max(0, Math.min(values.length - 1, place))]}`;
  };

  for (const drawing of document.querySelectorAll(".chart svg")) {
    const marks = marksOf(drawing);
    if (!marks.length) continue;
    const dots = marks.filter((mark) => !mark.dataset.values);
    let chosen = -1, place = 0;
    drawing.tabIndex = 0;
    const leave = () => { say(""); link(""); };
    drawing.addEventListener("pointermove", (event) => {
      const mark = event.target.closest(".mark") ?? near(dots, event.clientX, event.clientY);
      if (!mark) return leave();
      say(said(mark, event.clientX), event.clientX, event.clientY);
      link(mark.dataset.case ?? "");
    });
    drawing.addEventListener("pointerleave", leave);
    drawing.addEventListener("blur", () => { chosen = -1; leave(); });
    drawing.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") leave();
      if (!move) return;
      event.preventDefault();
      const values = marks[chosen]?.dataset.values?.split("|").length ?? 1;
      const inside = event.key.endsWith("t") && values > 1; // along a curve
      if (inside) place = Math.max(0, Math.min(values - 1, place + move));
      else { chosen = (Math.max(chosen, move < 0 ? 0 : -1) + move + marks.length) % marks.length; place = 0; }
      const mark = marks[chosen];
      const box = mark.getBoundingClientRect();
      const along = mark.dataset.values ? box.left + (box.width * place) / Math.max(1, mark.dataset.values.split("|").length - 1) : undefined;
      const [x, y] = centre(mark);
      link(mark.dataset.case ?? "");
      say(said(mark, along), along ?? x, y);
    });
  }

  for (const table of document.querySelectorAll("table")) {
    if (!table.querySelector("tr[data-case]")) continue;
    const column = [...table.tHead.rows[0].cells].findIndex((heading) => heading.textContent === "rank");
    if (column >= 0) for (const row of table.tBodies[0].rows) row.dataset.rank = row.cells[column].textContent;
    table.addEventListener("pointerover", (event) => {
      const row = event.target.closest("tr");
      link(row?.dataset.case ?? "", row?.dataset.rank ?? "");
    });
    table.addEventListener("pointerleave", () => link(""));
  }

  // Numbers as the report writes them.
  const digits = (value, count = 3) => String(Number(value.toPrecision(count)));
  const duration = (ns) => {
    const [factor, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([least]) => Math.abs(ns) >= least) ?? [1, "ns"];
    return `${digits(ns / factor)} ${unit}`;
  };
  const bytes = (count) => {
    const [factor, unit] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([least]) => count >= least) ?? [1, "B"];
    return `${digits(count / factor)} ${unit}`;
  };

  // The recorded step on another network: pscale.simulator in JavaScript, with the same numbers to the digit.
  const NEVER = -Infinity;
  const simulator = ({ kinds, sides, verbs }) => {
    const communicates = new Set([kinds.CALL, kinds.ROOT, kinds.POSTED, kinds.POLLED, kinds.POLLED_COMPLETE, kinds.COMPLETED]);
    const verb = Object.fromEntries(verbs.map((name, place) => [name, place]));
    const moved = (name, size, payload) => {
      switch (name) {
        case verb.barrier: case verb.receive: return 0;
        case verb["all-reduce"]: return (2 * payload * (size - 1)) / size;
        case verb["reduce-scatter"]: case verb["all-to-all"]: case verb.scatter: return (payload * (size - 1)) / size;
        case verb["all-gather"]: case verb.gather: return payload * (size - 1);
        default: return payload;
      }
    };
    const rounds = (name, size) => (sides.pair.includes(name) ? 1 : 32 - Math.clz32(size - 1));
    const gives = (kind, name) => (sides.from.includes(name) ? kind === kinds.ROOT : !sides.to.includes(name) || kind !== kinds.ROOT);
    const takes = (kind, name) => (sides.from.includes(name) ? kind !== kinds.ROOT : !sides.to.includes(name) || kind === kinds.ROOT);

    const programOf = (rank, sizes, links) => {
      const count = rank.kind.length, clock = [], removed = [], total = [], events = [], places = [];
      const relied = new Set();
      let sum = 0;
      for (let i = 0; i < count; i++) {
        const kind = rank.kind[i], axis = rank.axis[i], name = rank.verb[i], link = axis < 0 ? null : links[axis];
        removed.push(!communicates.has(kind) ? 0 : link ? rank.length[i] : rank.wait[i]);
        sum += removed[i];
        total.push(sum);
        clock.push(rank.leave[i] - sum);
        const arrives = kind === kinds.CALL || kind === kinds.ROOT || kind === kinds.POSTED;
        const completes = kind === kinds.COMPLETED && !relied.has(rank.request[i]);
        if (completes) relied.add(rank.request[i]);
        if (!arrives && !completes) continue;
        places.push(i);
        events.push({
          at: clock[i] - (rank.length[i] - removed[i]), axis, request: rank.request[i], partner: rank.partner[i],
          sending: link ? (moved(name, sizes[axis], rank.bytes[i]) / link.bytesPerS) * 1e9 : 0,
          latency: link ? rounds(name, sizes[axis]) * link.latencyS * 1e9 : 0,
          gives: gives(kind, name), takes: takes(kind, name),
          does: completes ? "wait" : kind !== kinds.POSTED ? "collective" : name === verb.send ? "send" : name === verb.receive ? "receive" : "post",
        });
      }
      return { clock, removed, total, events, places };
    };

    // Yields [what, event, clock] and is sent an answer; returns the wait of every event.
    const walk = function* (events) {
      const waited = [], busy = new Map(), sentAt = new Map();
      let behind = 0;
      for (const event of events) {
        const now = event.at + behind;
        let until = now;
        if (event.does === "wait") {
          if (sentAt.has(event.request)) { until = sentAt.get(event.request); sentAt.delete(event.request); }
          else until = yield ["wait", event, 0];
        } else if (event.does === "receive") yield ["receive", event, 0];
        else {
          let sent = NEVER;
          if (event.gives) busy.set(event.axis, (sent = Math.max(now, busy.get(event.axis) ?? NEVER) + event.sending));
          if (event.does === "collective") {
            const latest = yield ["collective", event, sent + event.latency];
            until = event.takes ? latest : sent;
          } else {
            if (event.does === "send") sentAt.set(event.request, sent);
            yield [event.does, event, sent + event.latency];
          }
        }
        waited.push(Math.max(0, until - now));
        behind += waited[waited.length - 1];
      }
      return waited;
    };

    // Lets all ranks take turns; null where their events do not match.
    const together = (programs, groups, sizes) => {
      const calls = new Map(), meetings = new Map(), started = new Map(), waited = [];
      const next = (...key) => { const name = key.join(); calls.set(name, (calls.get(name) ?? 0) + 1); return `${name},${calls.get(name)}`; };
      const at = (name) => { if (!meetings.has(name)) meetings.set(name, { here: 0, of: null, latest: NEVER, ranks: [] }); return meetings.get(name); };
      let turns = programs.map((program, rank) => [rank, undefined]);
      const arrive = (meeting, clock, of) => {
        meeting.here += 1;
        meeting.latest = Math.max(meeting.latest, clock);
        meeting.of = of;
        if (meeting.here === of) for (const rank of meeting.ranks.splice(0)) turns.push([rank, meeting.latest]);
      };
      const wait = (rank, meeting) => { if (meeting.here === meeting.of) return meeting.latest; meeting.ranks.push(rank); return undefined; };
      const join = (rank, axis, clock) => {
        const group = groups[rank][axis], name = next("call", axis, group, rank);
        const meeting = at(`call,${axis},${group},${name.split(",").pop()}`);
        arrive(meeting, clock, sizes[rank][axis]);
        return meeting;
      };
      const message = (axis, group, source, to, end) => at(`message,${axis},${group},${source},${to},${next(axis, group, source, to, end).split(",").pop()}`);
      const answer = (rank, [what, event, clock]) => {
        const { axis, partner, request } = event, group = groups[rank][axis];
        if (what === "collective") return wait(rank, join(rank, axis, clock));
        if (what === "wait") return wait(rank, started.get(`${rank},${request}`));
        if (what === "post") started.set(`${rank},${request}`, join(rank, axis, clock));
        else if (what === "send") arrive(message(axis, group, rank, partner, "sent"), clock, 1);
        else started.set(`${rank},${request}`, message(axis, group, partner, rank, "received"));
        return 0;
      };
      const walks = programs.map((program) => walk(program.events));
      while (turns.length) {
        const [rank, first] = turns.pop();
        let query = walks[rank].next(first);
        while (!query.done) {
          const told = answer(rank, query.value);
          if (told === undefined) break;
          query = walks[rank].next(told);
        }
        if (query.done) waited[rank] = query.value;
      }
      return programs.every((program, rank) => waited[rank]) ? waited : null;
    };

    // Returns when every row of every rank ends and how long it waits; links by axis, null: as it was.
    return (step, links) => {
      const programs = step.byRank.map((rank, place) => programOf(rank, step.sizes[place], links));
      const waited = together(programs, step.groups, step.sizes);
      if (!waited) return null;
      let last = 0;
      const ranks = programs.map(({ clock, removed, total, events, places }, place) => {
        const waits = new Float64Array(clock.length), transfers = new Float64Array(clock.length), ends = [], behind = [];
        places.forEach((row, number) => {
          waits[row] = waited[place][number];
          transfers[row] = Math.min(waits[row], events[number].sending + events[number].latency);
        });
        let sum = 0;
        for (let row = 0; row < clock.length; row++) { sum += waits[row]; behind.push(sum); ends.push(clock[row] + sum); }
        last = Math.max(last, ends[ends.length - 1]);
        return { ends, waits, transfers, removed, total, behind };
      });
      return { ns: last, ranks };
    };
  };

  // A canvas as wide as its box, drawn in the colours of day; at night it is turned like the figures.
  const FONT = '12px ui-sans-serif, system-ui, "Segoe UI", Arial, "DejaVu Sans", sans-serif';
  const board = (box, label, draw) => {
    const canvas = element("canvas", { tabIndex: 0, role: "application", ariaLabel: label });
    box.append(canvas);
    let asked = 0;
    const redraw = () => {
      cancelAnimationFrame(asked);
      asked = requestAnimationFrame(() => {
        const width = box.clientWidth, scale = Math.min(3, devicePixelRatio || 1);
        if (!width) return;
        const height = draw.height(width);
        canvas.width = Math.round(width * scale);
        canvas.height = Math.round(height * scale);
        canvas.style.height = `${height}px`;
        const pen = canvas.getContext("2d");
        pen.scale(scale, scale);
        pen.font = FONT;
        pen.textBaseline = "middle";
        draw(pen, width, height);
      });
    };
    new ResizeObserver(redraw).observe(box);
    watchers.push(redraw);
    return { canvas, redraw };
  };

  const chooser = (name, cases, labels, change) => {
    const select = element("select", { onchange: () => change(Number(select.value)) });
    cases.forEach((each, value) => {
      const option = element("option", { value, textContent: labels[each] });
      option.dataset.case = each;
      select.append(option);
    });
    return element("label", {}, `${name} `, select);
  };
  const button = (textContent, title, onclick) => element("button", { type: "button", textContent, title, ariaLabel: title, onclick });
  const cut = (pen, text, width) => {
    if (pen.measureText(text).width <= width) return text;
    while (text && pen.measureText(`${text}…`).width > width) text = text.slice(0, -1);
    return `${text}…`;
  };
  const blend = (colour, white) => {
    const parts = [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
    return `rgb(${parts.map((part) => Math.round(part + (255 - part) * white)).join()})`;
  };
  const INK = "#222222", QUIET = "#767676", GRID = "#e6e6e6", NARROW = 620, LEFT = 62, ROW = 24, AXIS = 26, TITLE = 22;

  // Steps as their ranks recorded them.
  const ROWS = ["name", "kind", "axis", "verb", "bytes", "request", "partner", "leave", "length", "wait"];
  const unpacked = (step) => {
    if (step.byRank) return step;
    let from = 0;
    step.byRank = step.count.map((count) => {
      const rank = Object.fromEntries(ROWS.map((name) => [name, step[name].slice(from, from + count)]));
      for (let row = 1; row < count; row++) rank.leave[row] += rank.leave[row - 1];
      from += count;
      return rank;
    });
    return step;
  };

  // What can be seen of a rank: parts of the step, and in them calls, copies and delays; with a result of the
  // simulator, when they would be.
  const spansOf = (data, step, place, result) => {
    const { kinds } = data, rank = step.byRank[place], to = result?.ranks[place];
    const begins = (row) => {
      const enter = rank.leave[row] - rank.length[row];
      if (!to) return enter;
      let low = 0, high = row; // the rows that had ended by then
      while (low < high) { const middle = (low + high) >> 1; if (rank.leave[middle] <= enter) low = middle + 1; else high = middle; }
      return low ? enter - to.total[low - 1] + to.behind[low - 1] : enter;
    };
    const parts = [], inside = [];
    rank.kind.forEach((kind, row) => {
      const from = begins(row), until = to ? to.ends[row] : rank.leave[row];
      const span = { row, from, until, name: step.names[rank.name[row]] };
      if (kind === kinds.PHASE) parts.push({ ...span, kind: span.name.split(" ")[0] });
      else if (kind === kinds.COPIED) inside.push({ ...span, kind: "copy", name: "copy" });
      else if (kind === kinds.IO_WAITED) inside.push({ ...span, kind: "offload", name: "stall for a file" });
      else if (kind === kinds.INJECTED) inside.push({ ...span, kind: "injected", name: "injected delay" });
      else if (kind === kinds.CALL || kind === kinds.ROOT || kind === kinds.COMPLETED) {
        const about = `${data.verbs[rank.verb[row]]} on ${step.axes[rank.axis[row]]}${rank.bytes[row] ? `, ${bytes(rank.bytes[row])}` : ""}`;
        const start = to ? until - (rank.length[row] - to.removed[row]) - to.waits[row] : from;
        const over = start + (to ? to.waits[row] - to.transfers[row] : rank.wait[row]);
        if (over > start) inside.push({ ...span, from: start, until: over, kind: "wait", name: `wait in ${about}` });
        if (until > over) inside.push({ ...span, from: over, until, kind: "transfer", name: `transfer: ${about}` });
      }
    });
    return [...parts, ...inside];
  };

  const ticks = (from, until, count) => {
    const raw = (until - from) / count, power = 10 ** Math.floor(Math.log10(raw));
    const every = [1, 2, 5, 10].find((each) => each * power >= raw) * power;
    const found = [];
    for (let at = Math.ceil(from / every) * every; at <= until; at += every) found.push(at);
    return found;
  };

  const timeline = (figure, data) => {
    const simulate = simulator(data);
    const box = element("div", { className: "live" }), controls = element("div", { className: "controls" });
    let step, panels, from, until, chosen = null, drag = null;
    const network = { on: false, axis: "all", latencyS: 5e-6, bytesPerS: 1e10 };
    const said = element("p", { className: "note" });

    const legend = element("ul", { className: "key" });
    const WORDS = { input: "backward", weight: "weight gradients, deferred", injected: "injected delay", wait_or_transfer: "wait or transfer" };
    const name = () => {
      const seen = new Map();
      for (const span of panels.flatMap((panel) => panel.spans.flat())) if (span.until - span.from > step.ns / 1000) seen.set(WORDS[span.kind] ?? span.kind, span.kind);
      legend.replaceChildren(...[...seen].map(([words, kind]) => {
        const swatch = element("i");
        swatch.style.background = data.colours.phases[kind] ?? data.colours[kind] ?? data.colours.compute;
        return element("li", {}, swatch, words);
      }));
    };
    const linksOf = () => step.axes.map((axis) => (network.axis === "all" || network.axis === axis ? network : null));
    const title = (what, ns) => `${what}: ${duration(ns)}`;
    const rebuild = () => {
      const spans = (result) => step.byRank.map((rank, place) => spansOf(data, step, place, result));
      panels = [{ title: title(`Launch ${step.repeat + 1}, step ${step.step} as it ran`, step.ns), spans: spans(null) }];
      network.box.hidden = !(step.simulated && step.axes.length);
      const asked = network.on && !network.box.hidden;
      network.sliders.hidden = !asked;
      if (asked) {
        const before = (step.before ??= simulate(step, step.axes.map(() => null)) ?? { ns: NaN }), after = simulate(step, linksOf());
        if (after) {
          panels.push({ title: title("The same step on this network", after.ns), spans: spans(after) });
          const change = Math.round((after.ns / before.ns - 1) * 1000) / 10;
          said.textContent = `Measured ${duration(step.ns)}; simulated on the network as it was ${duration(before.ns)}; on this one ${duration(after.ns)} (${change > 0 ? "+" : change < 0 ? "−" : "±"}${Math.abs(change)}%). For the mean step: pscale report --what-if '${network.axis}: {latency: ${digits(network.latencyS * 1e6)}us, bandwidth: ${digits(network.bytesPerS / 1e9)}GB/s}'`;
        } else said.textContent = "The events of this step do not match each other, so it cannot be simulated.";
      } else said.textContent = step.simulated ? "" : "Not all events of this step are in the page, so it cannot be simulated here.";
      name();
      view.redraw();
    };
    const whole = () => { from = 0; until = Math.max(step.ns, ...panels.flatMap((panel) => panel.spans.map((spans) => spans.reduce((last, span) => Math.max(last, span.until), 0)))); chosen = null; view.redraw(); };
    const zoom = (factor, at = (from + until) / 2) => {
      const length = Math.min(step.ns * 4, Math.max(1000, (until - from) * factor)), share = (at - from) / (until - from);
      from = Math.max(0, at - share * length);
      until = from + length;
      view.redraw();
    };
    const pan = (share) => { const by = Math.max(-from, share * (until - from)); from += by; until += by; view.redraw(); };

    const rowHeight = () => Math.max(7, Math.min(ROW, 420 / step.byRank.length));
    const draw = (pen, width, height) => {
      const x = (ns) => LEFT + ((ns - from) / (until - from)) * (width - LEFT - 8), high = rowHeight();
      let top = 0;
      for (const at of ticks(from, until, width / 110)) {
        pen.fillStyle = GRID;
        pen.fillRect(x(at), 0, 1, height - AXIS);
        pen.fillStyle = INK;
        pen.textAlign = "center";
        pen.fillText(at ? duration(at) : "0", Math.min(x(at), width - 26), height - AXIS / 2);
      }
      for (const panel of panels) {
        pen.textAlign = "left";
        pen.fillStyle = INK;
        pen.fillText(cut(pen, panel.title, width), 0, top + TITLE / 2);
        top += TITLE;
        panel.top = top;
        panel.spans.forEach((spans, place) => drawRow(pen, x, top + place * high, high, spans, place, width));
        top += high * panel.spans.length + 8;
      }
      if (drag && drag.x1 !== drag.x0) {
        pen.fillStyle = "rgba(0, 96, 156, .18)";
        pen.fillRect(Math.min(drag.x0, drag.x1), 0, Math.abs(drag.x1 - drag.x0), height - AXIS);
      }
    };
    const drawRow = (pen, x, top, high, spans, place, width) => {
      pen.save();
      const every = Math.ceil(13 / high);
      pen.fillStyle = hot.case === step.case && hot.rank === String(step.ranks[place]) ? "#00609c" : INK;
      pen.textAlign = "right";
      if (place % every === 0) pen.fillText(`rank ${step.ranks[place]}`, LEFT - 8, top + high / 2);
      pen.beginPath();
      pen.rect(LEFT, top, width - LEFT - 8, high);
      pen.clip();
      if (hot.case === step.case && hot.rank !== "" && hot.rank !== String(step.ranks[place])) pen.globalAlpha = 0.35;
      const gap = high > 12 ? 1 : 0;
      for (const span of spans) {
        if (span.until < from || span.from > until) continue;
        const left = x(span.from), wide = x(span.until) - left;
        const under = span.kind === "injected";
        pen.fillStyle = colourOf(span);
        pen.fillRect(left, under ? top + high * 0.72 : top + gap, Math.max(wide - (wide > 3 ? 0.6 : 0), 0.4), under ? high * 0.2 : high - 2 * gap);
        if (span === chosen) { pen.strokeStyle = INK; pen.lineWidth = 2; pen.strokeRect(left + 1, top + 1, Math.max(wide - 2, 1), high - 2); }
      }
      if (high >= 14) for (const span of spans) label(pen, x, top + high / 2, span, spans);
      pen.restore();
    };
    // The name of a part on the longest stretch of it in which the rank computes.
    const HOLES = new Set(["wait", "transfer", "copy", "offload"]);
    const label = (pen, x, middle, span, spans) => {
      if (!data.colours.phases[span.kind] || span.until < from || span.from > until) return;
      let best = [0, 0], since = span.from;
      const holes = spans.filter((other) => other !== span && HOLES.has(other.kind) && other.from >= span.from && other.from < span.until);
      for (const [begins, ends] of [...holes.map((hole) => [hole.from, hole.until]), [span.until, span.until]]) {
        if (begins - since > best[1] - best[0]) best = [since, begins];
        since = ends;
      }
      const left = Math.max(x(best[0]), LEFT), right = x(Math.min(best[1], until)), room = right - left - 6;
      const [name, numbers] = span.name.split(" "), micro = numbers?.split(".")[0];
      const text = [micro ? `${name} ${micro}` : name, micro ?? ""].find((each) => each && pen.measureText(each).width <= room);
      if (!text) return;
      pen.fillStyle = span.kind === "forward" || span.kind === "update" ? "#ffffff" : INK;
      pen.textAlign = "center";
      pen.fillText(text, (left + right) / 2, middle + 0.5);
    };
    const chunkOf = (name) => Math.floor(Number(name.split(".")[1] ?? 0) / step.stages);
    const chunks = () => (step.chunks ??= 1 + Math.max(0, ...step.names.map(chunkOf)));
    const colourOf = (span) => {
      const { phases } = data.colours, chunk = chunkOf(span.name);
      if (phases[span.kind]) return chunk ? blend(phases[span.kind], (0.55 * chunk) / (chunks() - 1)) : phases[span.kind];
      return data.colours[span.kind] ?? data.colours.compute;
    };
    draw.height = () => panels.reduce((sum, panel) => sum + TITLE + rowHeight() * panel.spans.length + 8, AXIS);

    const under = (event) => {
      const area = view.canvas.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top;
      const ns = from + ((x - LEFT) / (area.width - LEFT - 8)) * (until - from), slack = ((until - from) / area.width) * 2;
      for (const panel of panels) {
        const place = Math.floor((y - panel.top) / rowHeight());
        if (place < 0 || place >= panel.spans.length) continue;
        const here = panel.spans[place].filter((span) => span.from - slack <= ns && ns <= span.until + slack);
        return { ns, x, place, span: here.filter((span) => span.from <= ns && ns <= span.until).pop() ?? here.pop() };
      }
      return { ns, x };
    };
    const describe = (place, span) => `rank ${step.ranks[place]} · ${span.name}: ${duration(span.until - span.from)}, from ${duration(span.from)}`;
    const leave = () => { say(""); link(""); };

    controls.append(
      chooser("Case", data.steps.map((each) => each.case), labels, (value) => { step = unpacked(data.steps[value]); rebuild(); whole(); }),
      button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)), button("Whole step", "Show the whole step", whole),
    );
    const axes = element("select", { onchange: () => { network.axis = axes.value; rebuild(); } });
    const slider = (name, low, high, key, write) => {
      const value = element("output"), input = element("input", { type: "range", min: low, max: high, step: 0.05, value: Math.log10(network[key]) });
      input.addEventListener("input", () => {
        network[key] = Number((10 ** Number(input.value)).toPrecision(3));
        tell();
        rebuild();
      });
      const tell = () => { value.textContent = input.ariaValueText = write(); }; // the slider itself holds a logarithm
      tell();
      return element("label", {}, `${name} `, input, " ", value);
    };
    const latency = slider("Latency", -7, -2, "latencyS", () => duration(network.latencyS * 1e9));
    const bandwidth = slider("Bandwidth", 7, 12, "bytesPerS", () => `${digits(network.bytesPerS / 1e9)} GB/s`);
    const on = element("input", { type: "checkbox", onchange: () => { network.on = on.checked; rebuild(); whole(); } });
    network.sliders = element("div", { className: "controls" }, element("label", {}, "Axis ", axes), latency, bandwidth);
    network.box = element("div", {}, element("label", { className: "switch" }, on, " On another network"), network.sliders);

    box.append(controls);
    const area = element("div");
    box.append(area);
    const view = board(area, "Timeline of a step. Up and down choose a rank, left and right a span of it, plus and minus zoom, 0 shows all.", draw);
    const { canvas } = view;
    step = unpacked(data.steps[0]);
    const fill = () => axes.replaceChildren(...["all", ...step.axes].map((name) => element("option", { value: name, textContent: name })));
    controls.querySelector("select").addEventListener("change", () => { network.axis = "all"; fill(); rebuild(); });
    fill();
    box.append(legend, network.box, said, element("p", { className: "note", textContent: `Drag to zoom, double-click for the whole step; on the keyboard arrows, + − 0.${data.steps.length < data.cases ? ` Of ${data.cases} cases, ${data.steps.length} are in the page; the others: pscale trace.` : ""}` }));
    canvas.addEventListener("pointerdown", (event) => { if (event.button === 0) { const { x } = under(event); drag = { x0: x, x1: x }; canvas.setPointerCapture(event.pointerId); } });
    canvas.addEventListener("pointermove", (event) => {
      const found = under(event);
      if (drag) { drag.x1 = found.x; view.redraw(); }
      if (!found.span) return leave();
      say(describe(found.place, found.span), event.clientX, event.clientY);
      link(step.case, String(step.ranks[found.place]));
    });
    canvas.addEventListener("pointerup", () => {
      if (drag && Math.abs(drag.x1 - drag.x0) > 6) {
        const { width } = canvas.getBoundingClientRect(), ns = (x) => from + ((Math.max(x, LEFT) - LEFT) / (width - LEFT - 8)) * (until - from);
        [from, until] = [ns(Math.min(drag.x0, drag.x1)), ns(Math.max(drag.x0, drag.x1))];
      }
      drag = null;
      view.redraw();
    });
    canvas.addEventListener("pointercancel", () => { drag = null; view.redraw(); });
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("dblclick", whole);
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(event.deltaY < 0 ? 0.8 : 1.25, under(event).ns); }
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); pan((event.deltaX || event.deltaY) / 800); }
    }, { passive: false });
    canvas.addEventListener("blur", () => { chosen = null; leave(); view.redraw(); });
    let place = 0;
    canvas.addEventListener("keydown", (event) => {
      const shown = panels[0].spans, count = shown.length;
      const acts = {
        "+": () => zoom(0.5, chosen ? (chosen.from + chosen.until) / 2 : undefined), "=": () => zoom(0.5), "-": () => zoom(2), 0: whole, Escape: () => { chosen = null; leave(); },
        ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0), ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1),
      };
      const move = (down, right) => {
        const at = chosen ? chosen.from : from;
        place = Math.max(0, Math.min(count - 1, place + (chosen ? down : 0)));
        const order = [...shown[place]].sort((a, b) => a.from - b.from || b.until - a.until);
        const now = order.indexOf(chosen);
        chosen = (right && now >= 0 ? order[Math.max(0, Math.min(order.length - 1, now + right))] : order.find((span) => span.until > at)) ?? order[0];
        if (chosen.from > until || chosen.until < from) pan((chosen.from - from) / (until - from) - 0.3);
        const area = canvas.getBoundingClientRect(), x = LEFT + ((Math.max(chosen.from, from) - from) / (until - from)) * (area.width - LEFT - 8);
        link(step.case, String(step.ranks[place]));
        say(describe(place, chosen), area.left + x, area.top + panels[0].top + (place + 1) * rowHeight());
        view.redraw();
      };
      if (!acts[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      acts[event.key]();
    });
    figure.querySelector(".scroll").after(box);
    figure.classList.add("alive");
    rebuild();
    whole();
    return { cases: data.steps.map((each) => each.case), expected: (place, links) => simulate(unpacked(data.steps[place]), links)?.ns };
  };

  // Maps of ranks and steps, the colours clipped at a high percentile.
  const map = (figure, data) => {
    const box = element("div", { className: "live" }), controls = element("div", { className: "controls" });
    const cases = [...new Set(data.maps.map((each) => each.case))];
    const words = { wait: "wait", wait_or_transfer: "wait or transfer", compute: "compute" };
    let each = data.maps[0], kind = Object.keys(each.kinds)[0], top, largest, cell = null;
    const launches = element("select", { onchange: () => { each = ofCase(each.case)[Number(launches.value)]; rebuild(); } });
    const kindsOf = element("select", { onchange: () => { kind = kindsOf.value; rebuild(); } });
    const ofCase = (name) => data.maps.filter((other) => other.case === name);
    const name = () => `${words[kind]}`;
    const fill = () => {
      launches.replaceChildren(...ofCase(each.case).map((other, value) => element("option", { value, textContent: String(other.repeat + 1) })));
      if (!each.kinds[kind]) kind = Object.keys(each.kinds)[0];
      kindsOf.replaceChildren(...Object.keys(each.kinds).map((value) => element("option", { value, textContent: words[value], selected: value === kind })));
    };
    const valueAt = (rank, step) => each.kinds[kind].values[rank * each.shape[1] + step] * each.kinds[kind].unit;
    const rebuild = () => {
      const { unit, values } = each.kinds[kind], order = [...values].sort((a, b) => a - b);
      const place = (data.clipped / 100) * (order.length - 1), below = order[Math.floor(place)];
      largest = (order[order.length - 1] ?? 0) * unit;
      top = (below + (order[Math.ceil(place)] - below) * (place % 1)) * unit || largest || 1;
      cell = null;
      view.redraw();
    };
    const rowHeight = () => Math.max(1, Math.min(ROW, Math.floor(420 / each.shape[0]) || 1));
    const colours = data.colours.map.map((colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));
    const colourOf = (share) => {
      const at = Math.min(1, Math.max(0, share)) * (colours.length - 1), low = Math.min(colours.length - 2, Math.floor(at));
      return `rgb(${colours[low].map((part, place) => Math.round(part + (colours[low + 1][place] - part) * (at - low))).join()})`;
    };
    const draw = (pen, width, height) => {
      const [ranks, steps] = each.shape, high = rowHeight(), wide = (width - LEFT - 8) / steps;
      for (let rank = 0; rank < ranks; rank++) {
        pen.globalAlpha = hot.case === each.case && hot.rank !== "" && hot.rank !== String(rank) ? 0.45 : 1;
        for (let step = 0; step < steps; step++) {
          const value = valueAt(rank, step), x = LEFT + step * wide, y = rank * high;
          pen.fillStyle = colourOf(value / top);
          pen.fillRect(x, y, Math.max(wide - (wide > 5 ? 1 : 0), 0.5), Math.max(high - (high > 5 ? 1 : 0), 1));
          if (value > top && wide > 7 && high > 7) { pen.fillStyle = "#ffffff"; pen.beginPath(); pen.moveTo(x + wide / 2 - 3, y + high / 2 + 2); pen.lineTo(x + wide / 2 + 3, y + high / 2 + 2); pen.lineTo(x + wide / 2, y + high / 2 - 3); pen.fill(); }
        }
      }
      pen.globalAlpha = 1;
      pen.fillStyle = INK;
      pen.textAlign = "right";
      const every = Math.ceil(15 / high);
      for (let rank = 0; rank < ranks; rank += every) pen.fillText(`rank ${rank}`, LEFT - 8, (rank + 0.5) * high);
      pen.textAlign = "center";
      const across = Math.ceil(38 / wide);
      for (let step = 0; step < steps; step += across) pen.fillText(step ? String(step) : "step 0", LEFT + (step + 0.5) * wide, ranks * high + 12);
      if (cell) { pen.strokeStyle = "#00609c"; pen.lineWidth = 2; pen.strokeRect(LEFT + cell[1] * wide, cell[0] * high, wide, Math.max(high, 2)); }
      drawScale(pen, width < NARROW ? width - LEFT - 20 : 220, ranks * high + 38, width < NARROW);
    };
    const drawScale = (pen, long, y, narrow) => {
      for (let at = 0; at < long; at++) { pen.fillStyle = colourOf(at / long); pen.fillRect(LEFT + at, y - 5, 1.5, 10); }
      pen.fillStyle = INK;
      pen.textAlign = "right";
      pen.fillText("0", LEFT - 6, y);
      pen.textAlign = "left";
      pen.fillText(top < largest ? `${duration(top * 1e9)} (${data.clipped}% of the cells)  ▲ up to ${duration(largest * 1e9)}` : duration(top * 1e9), narrow ? LEFT : LEFT + long + 8, narrow ? y + 18 : y);
    };
    draw.height = (width) => each.shape[0] * rowHeight() + 56 + (width < NARROW ? 18 : 0);
    const leave = () => { cell = null; say(""); link(""); view.redraw(); };
    const tell = (x, y) => {
      say(`rank ${cell[0]} · step ${cell[1]}: ${name()} ${duration(valueAt(...cell) * 1e9)}`, x, y);
      link(each.case, String(cell[0]));
      view.redraw();
    };
    controls.append(chooser("Case", cases, labels, (value) => { [each] = ofCase(cases[value]); fill(); rebuild(); }), element("label", {}, "Launch ", launches), element("label", {}, "Time ", kindsOf));
    const area = element("div");
    box.append(controls, area);
    const view = board(area, "Map of ranks and steps. Arrows move from cell to cell.", draw);
    view.canvas.addEventListener("pointermove", (event) => {
      const at = view.canvas.getBoundingClientRect(), [ranks, steps] = each.shape;
      const step = Math.floor((event.clientX - at.left - LEFT) / ((at.width - LEFT - 8) / steps)), rank = Math.floor((event.clientY - at.top) / rowHeight());
      if (step < 0 || step >= steps || rank < 0 || rank >= ranks) return leave();
      cell = [rank, step];
      tell(event.clientX, event.clientY);
    });
    view.canvas.addEventListener("pointerleave", leave);
    view.canvas.addEventListener("blur", leave);
    view.canvas.addEventListener("keydown", (event) => {
      const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (event.key === "Escape") leave();
      if (!by) return;
      event.preventDefault();
      cell = cell ? cell.map((at, place) => Math.max(0, Math.min(each.shape[place] - 1, at + by[place]))) : [0, 0];
      const at = view.canvas.getBoundingClientRect();
      tell(at.left + LEFT + ((cell[1] + 0.5) * (at.width - LEFT - 8)) / each.shape[1], at.top + (cell[0] + 1) * rowHeight());
    });
    fill();
    figure.querySelector(".scroll").after(box);
    figure.classList.add("alive");
    rebuild();
    const launchesOf = new Set(data.maps.map((other) => other.case)).size;
    if (launchesOf < data.several) box.append(element("p", { className: "note", textContent: `Of ${data.several} cases on several ranks, the ${launchesOf} that wait most are in the page; the others: pscale report --format csv.` }));
  };

  const packed = document.getElementById("packed");
  if (packed && typeof DecompressionStream === "function") {
    const binary = Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0));
    new Response(new Blob([binary]).stream().pipeThrough(new DecompressionStream("deflate"))).json().then((data) => {
      const figure = (name) => document.getElementById(`${name}-figure`);
      if (data.maps.length && figure("wait")) map(figure("wait"), data);
      if (data.steps.length && figure("timeline")) window.pscale = timeline(figure("timeline"), data);
      requestAnimationFrame(() => { document.documentElement.dataset.ready = ""; });  // after the first drawing
    });
  }

  // A table begins without the last of its less important columns where its screen has no room for them.
  const fitted = new Map();
  const leave = ({ table, spare, all }, columns) => {
    for (const row of table.rows) for (const place of spare) row.cells[place].classList.toggle("cut", columns.has(place));
    all.hidden = !columns.size;
  };
  const excess = ({ table, spare, box }) => {
    let missing = table.offsetWidth - box.clientWidth;
    const wanted = (place) => missing > 0 && (missing -= table.tHead.rows[0].cells[place].offsetWidth, true);
    return new Set(spare.filter(wanted));
  };
  const fits = new ResizeObserver((entries) => {
    const changed = entries.map(({ target }) => fitted.get(target)).filter((each) => each.width !== each.box.clientWidth);
    for (const each of changed) each.width = each.box.clientWidth, leave(each, new Set());
    const columns = changed.map(excess); // all are measured at once: each change of a table lays the page out anew
    changed.forEach((each, place) => leave(each, columns[place]));
  });
  for (const table of document.querySelectorAll("table")) {
    const spare = [...table.tHead.querySelectorAll(".x")].map((cell) => cell.cellIndex).reverse();
    if (!spare.length) continue;
    const box = table.parentElement, all = element("button", { type: "button", className: "wider", textContent: "All columns", hidden: true });
    const each = { table, spare, box, all };
    all.addEventListener("click", () => { fits.unobserve(box); leave(each, new Set()); });
    box.before(all);
    fitted.set(box, each);
    fits.observe(box);
  }

  // The filter of cases, for all tables, figures and choosers.
  const filterCases = () => {
    const names = Object.entries(labels).map(([name, label]) => [name, label.toLowerCase()]);
    const count = element("output"), input = element("input", { type: "search", placeholder: "words of a case" });
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const kept = new Set(names.filter(([, label]) => words.every((word) => label.includes(word))).map(([name]) => name));
      for (const each of document.querySelectorAll("[data-case]")) {
        const out = !kept.has(each.dataset.case);
        each.classList.toggle("out", out);
        if (each.tagName === "OPTION") each.hidden = out;
      }
      count.textContent = words.length ? `${kept.size} of ${names.length}` : "";
    });
    addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
      event.preventDefault();
      input.focus();
    });
    document.querySelector("nav").prepend(element("label", { className: "filter", title: "Press / to come here" }, "Cases ", input, count));
  };
  if (Object.keys(labels).length > 1) filterCases();

  // Sorting and filtering of tables.
  const numeric = new Intl.Collator("en", { numeric: true });

  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.textContent.trim();
    return [cell.dataset.o !== undefined ? Number(cell.dataset.o) : text === "" ? NaN : Number(text), text];
  };

  const compare = ([a, words], [b, others]) => {
    if (Number.isNaN(a) !== Number.isNaN(b)) return Number.isNaN(a) ? 1 : -1; // what has no value comes last
    return Number.isNaN(a) ? numeric.compare(words, others) : a - b;
  };

  const sort = (table, column, heading) => {
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    rows.sort(([a], [b]) => {
      const known = Number.isNaN(a[0]) === Number.isNaN(b[0]);
      return known && !up ? compare(b, a) : compare(a, b);
    });
    body.append(...rows.map(([, row]) => row));
  };

  for (const table of document.querySelectorAll("table[data-sort]")) {
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      if (!heading.textContent) return;
      const onclick = () => sort(table, column, heading);
      heading.append(element("button", { type: "button", onclick }, ...heading.childNodes));
    });
  }

  const words = (row) =>
    [...row.cells].filter((cell) => cell.matches(".l, .w, th")).map((cell) => cell.textContent).join(" ").toLowerCase();

  for (const table of document.querySelectorAll("table[data-filter]")) {
    const rows = [...table.tBodies[0].rows];
    const count = element("output"), input = element("input", { type: "search", placeholder: "words in a row" });
    table.parentElement.before(element("label", { className: "filter" }, "Filter ", input, count));
    let texts = null;
    input.addEventListener("input", () => {
      texts ??= new Map(rows.map((row) => [row, words(row)]));
      const wanted = input.value.toLowerCase().split(/\s+/);
      let shown = 0;
      for (const row of rows) {
        row.hidden = !wanted.every((word) => texts.get(row).includes(word));
        shown += !row.hidden;
      }
      count.textContent = input.value.trim() ? `${shown} of ${rows.length}` : "";
    });
  }

  for (const box of document.querySelectorAll(".scroll")) {
    const reach = () => {
      if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    };
    new ResizeObserver(reach).observe(box);
  }

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const fold of opened) fold.open = true;
  });
  addEventListener("afterprint", () => {
    for (const fold of opened) fold.open = false;
  });
})();
