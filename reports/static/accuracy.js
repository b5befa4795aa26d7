"use strict";
// The accuracy page: filters that act on summary, figures and tables alike.
(function () {
  const W = Arachne.words;
  const FILTERS = ["model", "gpu", "source", "planner", "host", "where"];
  const BARS = 400; // above so many points error bars hide more than they show
  let rows = [];
  let view = [];
  let terms = null; // stages of the runs that recorded them
  let sources = [];
  let axes = "auto";

  // -- filters ---------------------------------------------------------------------------------
  const valuesOf = (row, filter) => (filter === "gpu" ? row.types : [row[filter]]);
  const form = () => document.getElementById("filters");
  const chosen = () => Object.fromEntries(FILTERS.map((f) => [f, form().elements[f].value]));

  const matches = (row, wanted) =>
    FILTERS.every((f) => wanted[f] === "" || valuesOf(row, f).includes(wanted[f]));

  // Each option says how many rows it would leave, given the other filters.
  const fillOptions = () => {
    const wanted = chosen();
    for (const filter of FILTERS) {
      const select = form().elements[filter];
      const others = { ...wanted, [filter]: "" };
      const counts = new Map();
      for (const row of rows) {
        for (const value of valuesOf(row, filter)) if (!counts.has(value)) counts.set(value, 0);
        if (matches(row, others)) for (const value of valuesOf(row, filter)) counts.set(value, counts.get(value) + 1);
      }
      const names = [...counts.keys()].sort((a, b) => Arachne.compare(a, b));
      const options = [new Option("all", "")];
      for (const name of names) {
        const short = name.length > 48 ? name.slice(0, 47) + "…" : name || "–";
        options.push(new Option(`${short} (${W.number(counts.get(name))})`, name));
      }
      select.replaceChildren(...options);
      select.value = wanted[filter];
      select.closest("label").classList.toggle("set", wanted[filter] !== "");
      select.disabled = names.length < 2 && wanted[filter] === "";
    }
  };

  const remember = () => {
    const wanted = Object.entries(chosen()).filter(([, value]) => value !== "");
    const hash = new URLSearchParams(wanted).toString();
    try { history.replaceState(null, "", hash ? "#" + hash : location.pathname + location.search); } catch (ignored) { /* file pages in some browsers */ }
  };

  const apply = () => {
    const wanted = chosen();
    view = rows.filter((row) => matches(row, wanted));
    fillOptions();
    remember();
    const said = view.length === rows.length ? W.plural(rows.length, "run") : `${W.number(view.length)} of ${W.plural(rows.length, "run")}`;
    document.getElementById("count").textContent = said;
    document.getElementById("reset").disabled = view.length === rows.length;
    summarise();
    tables.every.set(view);
    terms.refresh();
    tables.worst.set(view.slice().sort((a, b) => Math.abs(b.error) - Math.abs(a.error)).slice(0, 10));
  };

  // -- summary ---------------------------------------------------------------------------------
  const statistics = (group) => {
    if (!group.length) return null;
    const absolute = group.map((row) => Math.abs(row.error));
    const worst = group.reduce((a, b) => (Math.abs(b.error) > Math.abs(a.error) ? b : a));
    const noise = group.map((row) => row.noise).filter((v) => !W.missing(v));
    const memory = group.map((row) => row.memory_error).filter((v) => !W.missing(v)).map(Math.abs);
    const share = (limit) => (100 * absolute.filter((v) => v <= limit).length) / absolute.length;
    return {
      runs: group.length,
      plans: new Set(group.map((row) => row.plan_id)).size,
      mean_percent: absolute.reduce((a, b) => a + b, 0) / absolute.length,
      median_percent: W.median(absolute),
      bias_percent: W.median(group.map((row) => row.error)),
      within_10_percent: share(10),
      within_25_percent: share(25),
      worst_percent: worst.error,
      worst_plan_id: worst.plan_id,
      noise_percent: W.median(noise),
      memory_median_percent: W.median(memory),
      memory_runs: memory.length,
    };
  };

  const FORMATS = {
    runs: W.number, plans: W.number, mean_percent: W.percent, median_percent: W.percent,
    bias_percent: W.signed, worst_percent: W.signed, within_10_percent: W.percent,
    within_25_percent: W.percent, noise_percent: W.percent, memory_median_percent: W.percent,
    memory_runs: W.number, worst_plan_id: (v) => (W.missing(v) ? "–" : "plan " + v),
  };

  const summarise = () => {
    for (const place of document.querySelectorAll("[data-source]")) {
      const { source, hardware } = place.dataset;
      const group = view.filter((row) => (source === "*" || row.source === source) && (!hardware || row.hardware === hardware));
      const found = statistics(group);
      place.classList.toggle("empty", !found);
      if (place.tagName === "TR") place.hidden = !found;
      for (const field of place.querySelectorAll("[data-field]")) {
        const value = found ? found[field.dataset.field] : null;
        field.textContent = FORMATS[field.dataset.field](value);
        if (field.dataset.sort !== undefined) field.dataset.sort = W.missing(value) ? "" : String(value);
      }
      const bar = place.querySelector(".reach i");
      if (bar) bar.style.width = (found ? found.within_10_percent : 0) + "%";
    }
  };

  // -- figures ---------------------------------------------------------------------------------
  const hover = (row) =>
    `<b>${W.plot(row.model, 40)}</b> on ${W.plot(row.gpus, 60)}<br>plan ${row.plan_id} · ${W.plot(row.planner, 30)} · ${W.plot(row.layout, 60)}` +
    `<br>run ${W.plot(row.run, 40)} on ${W.plot(row.host, 30)}<br>predicted ${W.ms(row.predicted_ms)}, measured ${W.ms(row.measured_ms)}` +
    (W.missing(row.mad_ms) ? "" : ` ± ${W.ms(row.mad_ms)}`) + ` (${W.plot(row.measured_is)})<br><b>${W.signed(row.error)}</b>, ${W.plot(row.source)} profiles`;

  const bySource = (group) =>
    sources.map((source) => ({ source, group: group.filter((row) => row.source === source.label) })).filter((entry) => entry.group.length);

  const marker = (source, count) => ({
    color: source.colour, symbol: source.symbol, size: count > 2000 ? 5 : count > 200 ? 7 : 10,
    opacity: count > 2000 ? 0.5 : 0.85, line: { color: "var(--panel)", width: count > 2000 ? 0 : 1 },
  });

  const extent = (values) => values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);

  // Identity line and bands of so many percent around it, over measured (x) and predicted (y).
  const bands = (low, high) => {
    const wedge = (share, name) => ({
      type: "scatter", mode: "lines", x: [low, high, high, low], y: [low * (1 + share), high * (1 + share), high * (1 - share), low * (1 - share)],
      fill: "toself", fillcolor: "var(--band)", line: { width: 0 }, hoverinfo: "skip", name, legendrank: 2000,
    });
    return [
      wedge(0.25, "±25 %"), wedge(0.1, "±10 %"),
      { type: "scatter", mode: "lines", x: [low, high], y: [low, high], line: { color: "var(--axis)", width: 1.5 }, hoverinfo: "skip", name: "as predicted", legendrank: 1999 },
    ];
  };

  const square = (group, x, y, title, unit, spread = () => 0) => {
    const lowX = extent(group.map((row) => Math.max(x(row) - spread(row), x(row) / 2)))[0];
    const highX = extent(group.map((row) => x(row) + spread(row)))[1];
    const [lowY, highY] = extent(group.map(y));
    const low = Math.min(lowX, lowY);
    const high = Math.max(highX, highY);
    const log = axes === "auto" ? high / low > 15 : axes === "log";
    const range = log ? [low / 1.5, high * 1.5] : [Math.max(0, low - 0.08 * (high - low) - 0.02 * high), high + 0.08 * (high - low) + 0.02 * high];
    const axis = (name) => ({
      type: log ? "log" : "linear", range: log ? range.map(Math.log10) : range,
      title: { text: `${name} ${title}, ${unit}${log ? " (log)" : ""}` }, ...(log ? { dtick: high / low > 30 ? 1 : undefined, exponentformat: "none" } : {}),
    });
    return { log, low: Math.max(range[0] / 2, log ? range[0] / 2 : 0), high: range[1] * 2, layout: { xaxis: axis("measured"), yaxis: axis("predicted") } };
  };

  const toUnit = (group, key) => {
    const [, largest] = extent(group.map((row) => row[key] || 0));
    return largest >= 2000 ? [1000, "s"] : [1, "ms"];
  };

  const measuredRows = () => view.map((row) => [row.plan_id, row.run, row.model, row.gpus, row.planner, row.source, row.host, row.predicted_ms, row.measured_ms, row.measured_is, row.mad_ms, row.iterations, row.error]);

  // The same runs with the identity line laid flat: decades of time no longer hide the error.
  const ratio = (x, unit) => {
    const [low, high] = extent(view.map(x));
    const log = high / low > 15;
    const band = (limit) => ({ type: "rect", xref: "paper", x0: 0, x1: 1, y0: -limit, y1: limit, fillcolor: "var(--band)", line: { width: 0 }, layer: "below" });
    return {
      traces: bySource(view).map(({ source, group }) => ({
        type: "scatter", mode: "markers", name: source.label, x: group.map(x), y: group.map((row) => row.error), marker: marker(source, view.length), text: group.map(hover), hovertemplate: "%{text}<extra></extra>",
      })),
      layout: { xaxis: { type: log ? "log" : "linear", title: { text: `measured iteration time, ${unit}${log ? " (log)" : ""}` } }, yaxis: { title: { text: "error, % of the measured time" }, zeroline: true, zerolinewidth: 2 }, shapes: [band(25), band(10)] },
      said: "Above zero the plan was predicted slower than it ran, below it faster.",
      rows: measuredRows,
    };
  };

  Arachne.drawers.scatter = () => {
    if (!view.length) return { ...Arachne.nothing(), said: "No run in this selection." };
    const [divisor, unit] = toUnit(view, "measured_ms");
    const x = (row) => row.measured_ms / divisor;
    const y = (row) => row.predicted_ms / divisor;
    if (axes === "error") return ratio(x, unit);
    const frame = square(view, x, y, "iteration time", unit, (row) => (row.mad_ms || 0) / divisor);
    const traces = bands(frame.low || 1e-9, frame.high);
    for (const { source, group } of bySource(view)) {
      traces.push({
        type: "scatter", mode: "markers", name: source.label, x: group.map(x), y: group.map(y), marker: marker(source, view.length),
        text: group.map(hover), hovertemplate: "%{text}<extra></extra>",
        ...(view.length <= BARS ? { error_x: { type: "data", array: group.map((row) => (row.mad_ms || 0) / divisor), color: source.colour, thickness: 1, width: 3 } } : {}),
      });
    }
    const inside = view.filter((row) => Math.abs(row.error) <= 10).length;
    return {
      traces, layout: frame.layout,
      said: `${W.plural(view.length, "run")}: ${W.number(inside)} within ±10 % of the measured time. Above the line the plan was predicted slower than it ran, below it faster.`,
      rows: measuredRows,
    };
  };

  Arachne.drawers.memory = () => {
    const group = view.filter((row) => !W.missing(row.memory_error));
    if (!group.length) return { ...Arachne.nothing("No run here recorded its peak memory"), said: "No run in this selection recorded its peak memory.", rows: [] };
    const gib = 2 ** 30;
    const x = (row) => row.measured_peak / gib;
    const y = (row) => row.predicted_peak / gib;
    const frame = square(group, x, y, "peak memory", "GiB");
    const traces = bands(frame.low || 1e-9, frame.high);
    for (const { source, group: part } of bySource(group)) {
      traces.push({
        type: "scatter", mode: "markers", name: source.label, x: part.map(x), y: part.map(y), marker: marker(source, group.length),
        text: part.map((row) => `${hover(row)}<br>peak: predicted ${W.memory(row.predicted_peak)}, measured ${W.memory(row.measured_peak)} (${W.signed(row.memory_error)})`),
        hovertemplate: "%{text}<extra></extra>",
      });
    }
    const median = W.median(group.map((row) => Math.abs(row.memory_error)));
    return {
      traces, layout: frame.layout,
      said: `${W.plural(group.length, "run")} with a recorded peak: median absolute error ${W.percent(median)}. Below the line the plan needed more memory than predicted.`,
      rows: () => group.map((row) => [row.plan_id, row.run, row.model, row.gpus, row.source, row.host, row.predicted_peak, row.measured_peak, row.memory_error]),
    };
  };

  const STEPS = [0.5, 1, 2, 2.5, 5, 10, 20, 25, 50];
  const histogram = () => {
    const limited = view.map((row) => Math.max(-100, Math.min(200, row.error)));
    const [low, high] = extent(limited);
    const width = STEPS.find((step) => (Math.max(high, step) - Math.min(low, -step)) / step <= 32) || 50;
    const first = Math.min(Math.floor(low / width), -1);
    const bins = Math.max(Math.floor(high / width), 0) - first + 1;
    return bySource(view).map(({ source, group }) => {
      const counts = new Array(bins).fill(0);
      for (const row of group) counts[Math.floor(Math.max(-100, Math.min(200, row.error)) / width) - first] += 1;
      return { source, counts, first, width };
    });
  };

  Arachne.drawers.histogram = () => {
    if (!view.length) return { ...Arachne.nothing(), said: "No run in this selection." };
    const found = histogram();
    const { first, width } = found[0];
    const traces = found.map(({ source, counts }) => ({
      type: "bar", name: source.label, x: counts.map((_, i) => (first + i + 0.5) * width), y: counts, width,
      marker: { color: source.colour, line: { color: "var(--panel)", width: 1 } },
      customdata: counts.map((_, i) => `${W.signed((first + i) * width)} to ${W.signed((first + i + 1) * width)}`),
      hovertemplate: "%{customdata}: %{y} runs<extra>%{fullData.name}</extra>",
    }));
    const bias = W.median(view.map((row) => row.error));
    const line = (x, dash) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: "var(--ink)", width: 1.2, dash } });
    return {
      traces,
      layout: {
        barmode: "stack", bargap: 0.04, xaxis: { title: { text: "error, % of the measured time" } }, yaxis: { title: { text: "runs" }, rangemode: "tozero", ...(view.length < 40 ? { dtick: Math.ceil(view.length / 8) } : {}) },
        shapes: [line(0, "solid"), line(bias, "dot")],
      },
      said: `The median error is ${W.signed(bias)} (dotted). Errors beyond −100 % or +200 % stand at the ends.`,
      rows: () => found.flatMap(({ source, counts }) => counts.map((count, i) => [source.label, (first + i) * width, (first + i + 1) * width, count])),
    };
  };

  Arachne.drawers.groups = () => {
    if (!view.length) return { ...Arachne.nothing(), said: "No run in this selection." };
    const groups = new Map();
    for (const row of view) {
      const key = `${row.source}\n${row.hardware}\n${row.where}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(row);
    }
    const largest = [...groups.values()].sort((a, b) => b.length - a.length).slice(0, 24);
    largest.sort((a, b) => Arachne.compare(b[0].hardware + b[0].where + b[0].source, a[0].hardware + a[0].where + a[0].source));
    const names = new Map(sources.map((source) => [source.label, source]));
    const shown = new Set();
    const traces = largest.map((group) => {
      const source = names.get(group[0].source);
      const legend = !shown.has(source.label);
      shown.add(source.label);
      const label = `${W.plot(group[0].hardware, 34)}<br>${group[0].where}, ${W.plot(source.label)} (${W.number(group.length)})`;
      return {
        type: "box", orientation: "h", name: source.label, legendgroup: source.label, showlegend: legend, x: group.map((row) => row.error), y: group.map(() => label),
        boxpoints: group.length <= 300 ? "all" : "outliers", jitter: 0.5, pointpos: 0, fillcolor: "rgba(0,0,0,0)",
        line: { color: source.colour, width: 1.4 }, marker: { color: source.colour, symbol: source.symbol, size: 6, opacity: 0.7 },
        text: group.map(hover), hovertemplate: "%{text}<extra></extra>", hoveron: "points",
      };
    });
    const band = (limit) => ({ type: "rect", x0: -limit, x1: limit, yref: "paper", y0: 0, y1: 1, fillcolor: "var(--band)", line: { width: 0 }, layer: "below" });
    return {
      traces, height: 130 + 48 * largest.length,
      layout: { xaxis: { title: { text: "error, % of the measured time" }, zeroline: true, zerolinewidth: 2 }, yaxis: { type: "category", ticks: "" }, shapes: [band(25), band(10)] },
      said: `${W.plural(groups.size, "group")} of hardware, place and source` + (groups.size > 24 ? ", the 24 largest drawn." : ".") + " The box holds the middle half of the runs, its line is their median.",
      rows: () => view.map((row) => [row.source, row.hardware, row.where, row.plan_id, row.run, row.error]),
    };
  };

  const runningMedian = (group, reach) => group.map((_, i) => W.median(group.slice(Math.max(0, i - reach + 1), i + 1).map((row) => Math.abs(row.error))));

  Arachne.drawers.trend = () => {
    if (!view.length) return { ...Arachne.nothing(), said: "No run in this selection." };
    const ordered = view.slice().sort((a, b) => a.recorded - b.recorded || a.i - b.i);
    const when = (row) => new Date(row.recorded * 1000).toISOString();
    const traces = [];
    for (const { source, group } of bySource(ordered)) {
      traces.push({ type: "scatter", mode: "markers", name: source.label, legendgroup: source.label, x: group.map(when), y: group.map((row) => Math.abs(row.error)), marker: marker(source, view.length), text: group.map(hover), hovertemplate: "%{text}<extra></extra>" });
      if (group.length >= 5) traces.push({ type: "scatter", mode: "lines", name: source.label + ", median of the last 20", legendgroup: source.label, x: group.map(when), y: runningMedian(group, 20), line: { color: source.colour, width: 2, shape: "hv" }, hoverinfo: "skip" });
    }
    const line = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 10, y1: 10, line: { color: "var(--axis)", width: 1, dash: "dash" } };
    return {
      traces,
      layout: { xaxis: { type: "date", title: { text: "recorded (UTC)" } }, yaxis: { title: { text: "absolute error, %" }, rangemode: "tozero" }, shapes: [line] },
      said: `From ${W.moment(ordered[0].recorded)} to ${W.moment(ordered.at(-1).recorded)}. The dashed line is 10 %.`,
      rows: () => ordered.map((row) => [when(row), row.source, row.plan_id, row.run, row.error]),
    };
  };

  Arachne.drawers.noise = () => {
    const spread = (row) => (W.missing(row.noise) ? row.spread : row.noise);
    const group = view.filter((row) => !W.missing(spread(row)));
    if (!group.length) return { ...Arachne.nothing("No run here has a spread: published means have none"), said: "No run in this selection has a spread.", rows: [] };
    const y = (row) => Math.abs(row.error);
    const top = Math.max(extent(group.map(spread))[1], 1) * 1.15;
    const traces = [{ type: "scatter", mode: "lines", x: [0, top], y: [0, top], line: { color: "var(--axis)", width: 1.5 }, hoverinfo: "skip", name: "error = noise", legendrank: 2000 }];
    for (const { source, group: part } of bySource(group)) {
      traces.push({ type: "scatter", mode: "markers", name: source.label, x: part.map(spread), y: part.map(y), marker: marker(source, group.length), text: part.map((row) => hover(row) + `<br>noise ${W.percent(spread(row))}, drift ${W.signed(row.drift)}`), hovertemplate: "%{text}<extra></extra>" });
    }
    const within = group.filter((row) => y(row) <= spread(row)).length;
    return {
      traces, layout: { xaxis: { title: { text: "noise: spread of the plan's runs, else of the run's iterations, %" }, rangemode: "tozero" }, yaxis: { title: { text: "absolute error, %" }, rangemode: "tozero" } },
      said: `${W.number(within)} of ${W.plural(group.length, "run")} with a spread: no better prediction could be told from noise (below the line).`,
      rows: () => group.map((row) => [row.plan_id, row.run, row.source, row.noise, row.spread, row.drift, row.error]),
    };
  };

  // -- tables ----------------------------------------------------------------------------------
  const tables = {};
  const planCell = (pages) => (value) => {
    if (!pages.has(value)) return "plan " + value;
    const link = document.createElement("a");
    link.href = `plan-${value}.html`;
    link.textContent = "plan " + value;
    return link;
  };
  const tone = (row) => (Math.abs(row.error) <= 10 ? "near" : Math.abs(row.error) <= 25 ? "off" : "far");
  const errorCell = (value, row) => {
    const mark = document.createElement("span");
    mark.className = "error " + tone(row);
    mark.textContent = W.signed(value);
    return mark;
  };
  const sourceCell = (value) => {
    const mark = document.createElement("span");
    const source = sources.find((entry) => entry.label === value);
    mark.className = "source " + (source ? source.css : "");
    mark.textContent = value;
    return mark;
  };
  const measured = (value, row) =>
    W.missing(row.mad_ms) ? `${W.ms(value)} (${row.measured_is})` : `${W.ms(value)} ± ${W.ms(row.mad_ms)} (${W.number(row.iterations)})`;

  const makeTables = (pages) => {
    const columns = [
      { key: "plan_id", title: "Plan", type: "number", heading: true, format: planCell(pages) },
      { key: "model", title: "Model", type: "text", wide: true },
      { key: "gpus", title: "GPUs", type: "text", wide: true },
      { key: "planner", title: "Planner", type: "text", wide: true },
      { key: "source", title: "Source", type: "text", format: sourceCell, note: "where the profiles of the prediction come from" },
      { key: "predicted_ms", title: "Predicted", type: "number", format: W.ms },
      { key: "measured_ms", title: "Measured ± MAD (n)", type: "number", format: measured, note: "median of the run's iterations with its median absolute deviation, or a published mean" },
      { key: "error", title: "Error", type: "number", format: errorCell, note: "predicted less measured, in percent of measured" },
      { key: "noise", title: "Run to run", type: "number", format: W.percent, note: "MAD of the plan's runs on this host, in percent of their median" },
      { key: "drift", title: "Drift", type: "number", format: W.signed, note: "how much slower the machine was after the run than before it" },
      { key: "profile_runs", title: "Profile runs", type: "text" },
      { key: "run", title: "Run", type: "text", wide: true },
      { key: "host", title: "Host", type: "text", wide: true },
      { key: "origin", title: "Origin", type: "text", wide: true },
    ];
    const extra = [
      { key: "layout", title: "Layout", type: "text", wide: true },
      { key: "predicted_peak", title: "Predicted peak", type: "number", format: W.memory },
      { key: "measured_peak", title: "Measured peak", type: "number", format: W.memory },
      { key: "memory_error", title: "Memory error", type: "number", format: W.signed },
      { key: "recorded", title: "Recorded", type: "number", format: W.moment },
    ];
    const every = document.getElementById("every-run");
    tables.every = new Arachne.DataTable(every, [...columns, ...extra], { pager: document.getElementById("every-pager"), none: "No run in this selection." });
    const brief = ["plan_id", "error", "model", "gpus", "layout", "planner", "source", "predicted_ms", "measured_ms", "noise"];
    const all = [...columns, ...extra];
    terms = Arachne.startTerms(rows, Arachne.unpack(Arachne.data.rows.stages), () => view, sourceCell);
    tables.worst = new Arachne.DataTable(document.getElementById("worst-runs"), brief.map((key) => all.find((c) => c.key === key)), { none: "No run in this selection." });
  };

  Arachne.startPage = (data) => {
    if (!data.rows) return;
    sources = data.sources;
    rows = Arachne.unpack(data.rows);
    for (const row of rows) row.types = row.hardware.split(" + ");
    view = rows;
    makeTables(new Set(data.plan_pages));
    for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
      const select = form().elements[key];
      if (select && FILTERS.includes(key)) { select.add(new Option(value, value)); select.value = value; }
    }
    form().addEventListener("change", () => { apply(); Arachne.drawAll(); });
    form().addEventListener("submit", (event) => event.preventDefault());
    document.getElementById("reset").addEventListener("click", () => {
      for (const filter of FILTERS) form().elements[filter].value = "";
      apply();
      Arachne.drawAll();
    });
    for (const choice of document.querySelectorAll("[name=axes]")) {
      choice.addEventListener("change", () => { axes = choice.value; Arachne.drawAll(); });
    }
    apply();
  };
})();
