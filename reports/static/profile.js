"use strict";
// The profile page: layers by TP and micro-batch, rates against the datasheet, links.
(function () {
  const W = Arachne.words;
  let layers = [];
  let links = [];
  let pairs = [];

  const field = (form, name) => document.getElementById(form).elements[name].value;
  const distinct = (rows, key) => [...new Set(rows.map((row) => row[key]))];
  const bySize = (a, b) => Arachne.compare(a, b);

  const METRICS = {
    total_ms: ["forward + backward + collectives, ms", W.ms, "ms"],
    forward_ms: ["forward, ms", W.ms, "ms"],
    backward_ms: ["backward, ms", W.ms, "ms"],
    comm_ms: ["collectives, ms", W.ms, "ms"],
    update_ms: ["optimizer step, ms", W.ms, "ms"],
    sample_ms: ["ms per sample and GPU of the group", W.ms, "ms"],
    share: ["% of the datasheet's TFLOP/s", W.percent, "%"],
    tflops: ["TFLOP/s of one rank", W.number, "TFLOP/s"],
    activation_bytes: ["activations kept, MiB", W.memory, "MiB"],
  };

  const chosenLayers = () => layers.filter((row) => row.layer === field("choose-layer", "layer") && row.workload === field("choose-layer", "workload") && row.tile === field("choose-layer", "tile"));

  // -- heat maps ---------------------------------------------------------------------------------
  Arachne.drawers.heat = (figure) => {
    const rows = chosenLayers();
    const metric = field("choose-layer", "metric");
    const [title, say, unit] = METRICS[metric];
    const per = metric === "activation_bytes" ? 2 ** 20 : 1;
    if (!rows.length) return { ...Arachne.nothing(), said: "No rows." };
    const panels = new Map();
    for (const row of rows) {
      const key = `${row.gpu}\n${row.source}\n${row.host}\n${row.tp === 1 ? "" : row.topology}`;
      if (!panels.has(key)) panels.set(key, []);
      panels.get(key).push(row);
    }
    // Rows without a collective join the panel of the topology they were profiled with.
    const merged = new Map();
    for (const [key, group] of panels) {
      const [gpu, source, host, topology] = key.split("\n");
      const name = `${gpu}\n${source}\n${host}`;
      if (!merged.has(name)) merged.set(name, { gpu, source, host, topologies: new Set(), rows: [] });
      const panel = merged.get(name);
      if (topology) panel.topologies.add(topology);
      panel.rows.push(...group);
    }
    const all = [...merged.values()].sort((a, b) => Arachne.compare(a.gpu, b.gpu));
    const shown = all.slice(0, 24);
    const width = figure.plot.clientWidth;
    const columns = Math.max(1, Math.min(shown.length, Math.floor(width / 290)));
    const lines = Math.ceil(shown.length / columns);
    const values = rows.map((row) => row[metric]).filter((v) => !W.missing(v));
    let low = Infinity;
    let high = -Infinity;
    for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
    const log = metric.endsWith("_ms") && low > 0 && high / low > 20;
    const scale = (v) => (W.missing(v) ? null : log ? Math.log10(v) : v / per);
    const layout = { annotations: [], showlegend: false };
    const gapX = 0.075;
    const gapY = Math.min(0.34, 92 / (lines * 230));
    const traces = shown.map((panel, i) => {
      const suffix = i ? String(i + 1) : "";
      const column = i % columns;
      const line = Math.floor(i / columns);
      const w = (1 - gapX * (columns - 1)) / columns;
      const h = (1 - gapY * (lines - 1)) / lines;
      const x0 = column * (w + gapX);
      const y1 = 1 - line * (h + gapY);
      const tps = distinct(panel.rows, "tp").sort(bySize);
      const batches = distinct(panel.rows, "micro_batch").sort(bySize);
      const at = (tp, batch) => panel.rows.filter((row) => row.tp === tp && row.micro_batch === batch).at(-1);
      const cells = tps.map((tp) => batches.map((batch) => at(tp, batch)));
      layout["xaxis" + suffix] = { domain: [x0, x0 + w], anchor: "y" + suffix, type: "category", title: { text: line === lines - 1 || i + columns >= shown.length ? "micro-batch" : "" }, showgrid: false, ticks: "" };
      layout["yaxis" + suffix] = { domain: [y1 - h, y1], anchor: "x" + suffix, type: "category", title: { text: column === 0 ? "TP" : "" }, showgrid: false, ticks: "" };
      layout.annotations.push({ text: `<b>${W.plot(panel.gpu)}</b> ${W.plot(panel.source)}${panel.host ? " on " + W.plot(panel.host, 14) : ""}`, x: x0, y: y1, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 12 } });
      return {
        type: "heatmap", x: batches.map(String), y: tps.map(String), xaxis: "x" + suffix, yaxis: "y" + suffix,
        z: cells.map((line_) => line_.map((row) => (row ? scale(row[metric]) : null))), zmin: scale(low), zmax: scale(high),
        text: cells.map((line_) => line_.map((row) => (row ? brief(row[metric], metric) : ""))), texttemplate: (width * w * 0.9) / batches.length > 42 ? "%{text}" : "", textfont: { size: 11 },
        customdata: cells.map((line_) => line_.map((row) => (row ? detail(row) : ""))), hovertemplate: "%{customdata}<extra></extra>",
        colorscale: [[0, "var(--heat0)"], [0.34, "var(--heat1)"], [0.67, "var(--heat2)"], [1, "var(--heat3)"]],
        xgap: 2, ygap: 2, hoverongaps: false, showscale: i === 0,
        colorbar: { thickness: 10, len: Math.min(1, 260 / (lines * 230)), y: 1, yanchor: "top", outlinewidth: 0, title: { text: unit, side: "top", font: { size: 11 } }, ...(log ? { tickvals: ticks(low, high).map(Math.log10), ticktext: ticks(low, high).map(say) } : {}) },
      };
    });
    layout.margin = { t: 30 };
    return {
      traces, layout, height: Math.max(300, lines * 230 + 60),
      said: `${title}${log ? ", colours on a logarithmic scale" : ""}: ${W.plural(rows.length, "row")} of ${W.plural(all.length, "GPU type and source", "GPU types and sources")}` + (all.length > 24 ? ", the first 24 drawn." : "."),
      columns: ["gpu", "source", "host", "run", "topology", "tp", "micro_batch", metric],
      rows: () => rows.map((row) => [row.gpu, row.source, row.host, row.run, row.topology, row.tp, row.micro_batch, row[metric]]),
    };
  };

  // A figure short enough for a cell: three digits, bytes in MiB.
  const brief = (value, metric) => {
    if (W.missing(value)) return "";
    const shown = metric === "activation_bytes" ? value / 2 ** 20 : value;
    return shown >= 100 ? String(Math.round(shown)) : String(Number(shown.toPrecision(3)));
  };

  const ticks = (low, high) => {
    const found = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1) found.push(10 ** p);
    return found.filter((v) => v >= low * 0.5 && v <= high * 2);
  };

  const spread = (value) => (W.missing(value) ? "" : ` ± ${W.ms(value)}`);
  const detail = (row) =>
    `<b>${W.plot(row.gpu)}</b>, TP ${row.tp}, micro-batch ${row.micro_batch}, ${W.plot(row.topology)}<br>forward ${W.ms(row.forward_ms)}${spread(row.forward_mad_ms)}<br>backward ${W.ms(row.backward_ms)}${spread(row.backward_mad_ms)}<br>collectives ${row.comm_included ? "inside the above" : W.ms(row.comm_ms) + spread(row.comm_mad_ms)}<br>optimizer ${W.ms(row.update_ms)}${spread(row.update_mad_ms)}<br>activations ${W.memory(row.activation_bytes)}<br>${W.missing(row.tflops) ? "" : W.number(row.tflops) + " TFLOP/s" + (W.missing(row.share) ? "" : " = " + W.percent(row.share) + " of the datasheet") + "<br>"}${W.plot(row.source)}, run ${row.run}, n = ${row.samples}`;

  // -- rates -------------------------------------------------------------------------------------
  // A GPU without a datasheet (a CPU host) has no peak: its rate stands in TFLOP/s, on an axis of its own.
  Arachne.drawers.rate = () => {
    const all = chosenLayers().filter((row) => !W.missing(row.tflops));
    const sheets = all.filter((row) => !W.missing(row.share));
    const shown = sheets.length ? "share" : "tflops";
    const rows = sheets.length ? sheets : all;
    if (!rows.length) return { ...Arachne.nothing("This layer does no arithmetic"), said: "Nothing to set against a datasheet here." };
    const series = new Map();
    for (const row of rows) {
      const key = `${row.gpu}, TP ${row.tp}, ${row.source}`;
      if (!series.has(key)) series.set(key, []);
      series.get(key).push(row);
    }
    const gpus = distinct(rows, "gpu").sort(bySize);
    const dashes = ["solid", "dash", "dot", "dashdot", "longdash"];
    const tps = distinct(rows, "tp").sort(bySize);
    const named = new Set();
    const traces = [...series.values()].map((group) => {
      const legend = `${group[0].gpu} (${group[0].source})`;
      const first = !named.has(legend);
      named.add(legend);
      group.sort((a, b) => a.micro_batch - b.micro_batch);
      const colour = `var(--c${(gpus.indexOf(group[0].gpu) % 8) + 1})`;
      return {
        type: "scatter", mode: "lines+markers", name: W.plot(legend), legendgroup: legend, showlegend: first, x: group.map((row) => row.micro_batch), y: group.map((row) => row[shown]),
        line: { color: colour, dash: dashes[tps.indexOf(group[0].tp) % 5], width: 1.8 }, marker: { color: colour, size: 7, symbol: { measured: "circle", imported: "square", estimated: "diamond" }[group[0].source] },
        text: group.map(detail), hovertemplate: "%{text}<extra></extra>",
      };
    });
    const best = rows.reduce((a, b) => (b[shown] > a[shown] ? b : a));
    const beside = all.length - rows.length;
    return {
      traces, layout: { xaxis: { type: "log", title: { text: "micro-batch, samples" }, tickvals: distinct(rows, "micro_batch").sort(bySize) }, yaxis: { title: { text: sheets.length ? "% of the datasheet's dense 16-bit TFLOP/s" : "achieved TFLOP/s of one rank" }, rangemode: "tozero" } },
      said: `Best: ${best.gpu} with ${W.number(best.tflops)} TFLOP/s${sheets.length ? `, ${W.percent(best.share)} of its datasheet` : "; its type has no datasheet to stand against"} (TP ${best.tp}, micro-batch ${best.micro_batch}). Forward and backward, without collectives; the full attention matrix is counted. Lines: ${tps.map((tp, i) => `TP ${tp} ${["solid", "dashed", "dotted", "dash-dot", "long dashes"][i % 5]}`).join(", ")}.${beside ? ` ${W.plural(beside, "row")} of types without a datasheet ${beside === 1 ? "is" : "are"} in the data only.` : ""}`,
      columns: ["gpu", "source", "tp", "micro_batch", "tflops", "share_percent"],
      rows: () => all.map((row) => [row.gpu, row.source, row.tp, row.micro_batch, row.tflops, row.share]),
    };
  };

  // -- estimates against measurements --------------------------------------------------------------
  Arachne.drawers.estimates = () => {
    if (!pairs.length) return { ...Arachne.nothing("No key was both estimated and measured or imported"), said: "", rows: [] };
    const gpus = distinct(pairs, "gpu").sort(bySize);
    const low = Math.min(...pairs.map((p) => Math.min(p.estimated_ms, p.other_ms)));
    const high = Math.max(...pairs.map((p) => Math.max(p.estimated_ms, p.other_ms)));
    const ends = [low / 1.5, high * 1.5];
    const traces = [{ type: "scatter", mode: "lines", x: ends, y: ends, line: { color: "var(--axis)", width: 1.5 }, hoverinfo: "skip", name: "equal" }];
    for (const gpu of gpus) {
      const group = pairs.filter((pair) => pair.gpu === gpu);
      traces.push({
        type: "scatter", mode: "markers", name: W.plot(gpu), x: group.map((p) => p.other_ms), y: group.map((p) => p.estimated_ms), marker: { color: `var(--c${(gpus.indexOf(gpu) % 8) + 1})`, size: 8, opacity: 0.8, symbol: ["circle", "square", "diamond", "cross", "triangle-up", "star", "x", "pentagon"][gpus.indexOf(gpu) % 8] },
        text: group.map((p) => `${W.plot(p.layer, 50)}<br>TP ${p.tp}, micro-batch ${p.micro_batch}<br>estimated ${W.ms(p.estimated_ms)}, ${W.plot(p.source)} ${W.ms(p.other_ms)}: ${W.signed(p.error)}`), hovertemplate: "%{text}<extra>%{fullData.name}</extra>",
      });
    }
    return {
      traces, layout: { xaxis: { type: "log", title: { text: "measured or imported, ms (log)" } }, yaxis: { type: "log", title: { text: "estimated, ms (log)" } } },
      said: `${W.plural(pairs.length, "key")}: median absolute error ${W.percent(W.median(pairs.map((p) => Math.abs(p.error))))}.`,
      rows: () => pairs.map((p) => [p.gpu, p.layer, p.source, p.tp, p.micro_batch, p.estimated_ms, p.other_ms, p.error]),
    };
  };

  // -- links -------------------------------------------------------------------------------------
  const chosenLinks = () => links.filter((s) => s.operation === field("choose-link", "operation") && (field("choose-link", "gpu") === "" || s.gpu === field("choose-link", "gpu") || s.peer === field("choose-link", "gpu"))).slice(0, 40);
  // The spread of each time, where it was measured; bandwidths have it in the hover text.
  const bars = (s, key) => (key === "time_ms" && s.mad_ms.some((v) => !W.missing(v)) ? { error_y: { type: "data", array: s.mad_ms.map((v) => v || 0), thickness: 1, width: 2 } } : {});
  const curve = (key, fitted) => {
    const found = chosenLinks();
    if (!found.length) return { ...Arachne.nothing(), said: "No curve.", rows: [] };
    const traces = found.map((s, i) => ({
      type: "scatter", mode: "lines+markers", name: W.plot(`${s.name}, ${s.source}`, 56), legendgroup: String(i), x: s.nbytes, y: s[key], ...bars(s, key), line: { color: `var(--c${(i % 8) + 1})`, width: 1.7 },
      marker: { color: `var(--c${(i % 8) + 1})`, size: 6, symbol: ["circle", "square", "diamond", "cross", "triangle-up"][Math.floor(i / 8) % 5] },
      text: s.nbytes.map((n, j) => `${W.plot(s.name)}<br>${W.memory(n)}: ${W.ms(s.time_ms[j])}${spread(s.mad_ms[j])}, ${W.number(s.bus[j])} GB/s bus<br>${W.plot(s.source)}, run ${s.run}`), hovertemplate: "%{text}<extra></extra>",
    }));
    if (fitted) {
      found.forEach((s, i) => traces.push({ type: "scatter", mode: "lines", showlegend: false, legendgroup: String(i), x: s.nbytes, y: s.fit_ms, line: { color: `var(--c${(i % 8) + 1})`, width: 1, dash: "dot" }, hoverinfo: "skip" }));
    }
    return { traces, found };
  };
  const sizes = { type: "log", title: { text: "message, bytes (log)" }, exponentformat: "none", tickvals: [1024, 32768, 1048576, 33554432, 1073741824], ticktext: ["1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB"] };
  // Many long names: beside the figure where there is room, else below it.
  const legend = (figure) => ({ legend: figure.plot.clientWidth > 760 ? { orientation: "v", x: 1.01, y: 1, yanchor: "top" } : { orientation: "h", x: 0, y: -0.22, yanchor: "top" } });
  const linkRows = () => chosenLinks().flatMap((s) => s.nbytes.map((n, j) => [s.gpu, s.peer, s.topology, s.operation, s.ranks, s.source, s.run, n, s.time_ms[j], s.mad_ms[j], s.bus[j], s.fit_ms[j]]));
  Arachne.drawers.linkTime = (figure) => {
    const made = curve("time_ms", true);
    return made.found ? { ...made, layout: { ...legend(figure), xaxis: sizes, yaxis: { type: "log", title: { text: "time, ms (log)" }, exponentformat: "none" } }, said: "Dotted: latency + bytes / bandwidth, fitted to each curve.", rows: linkRows } : made;
  };
  Arachne.drawers.linkBus = (figure) => {
    const made = curve("bus", false);
    return made.found ? { ...made, layout: { ...legend(figure), xaxis: sizes, yaxis: { title: { text: "bus bandwidth, GB/s" }, rangemode: "tozero" } }, said: "Traffic per link, whatever the size of the group.", rows: linkRows } : made;
  };

  const fill = (form, name, values, labels) => {
    const select = document.getElementById(form).elements[name];
    const before = select.value;
    select.replaceChildren(...values.map((value, i) => new Option(labels ? labels[i] : value.length > 60 ? value.slice(0, 59) + "…" : value || "–", value)));
    if (values.includes(before)) select.value = before;
  };

  const most = (rows, key) => {
    const counts = new Map();
    for (const row of rows) counts.set(row[key], (counts.get(row[key]) || 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1]).map(([value]) => value);
  };

  Arachne.startPage = (data) => {
    if (!data.layers) return;
    layers = Arachne.unpack(data.layers);
    pairs = Arachne.unpack(data.pairs);
    links = data.links;
    for (const row of layers) {
      row.total_ms = row.forward_ms + row.backward_ms + row.comm_ms;
      row.sample_ms = (row.total_ms / row.micro_batch) * row.tp;
      row.tile = row.ep * row.etp === 1 ? "none" : `ep ${row.ep}, etp ${row.etp}`;
    }
    if (layers.length) {
      const blocks = layers.filter((row) => row.layer.includes("block"));
      fill("choose-layer", "layer", [...new Set([...most(blocks, "layer"), ...most(layers, "layer")])]);
      const narrow = () => {
        const mine = layers.filter((row) => row.layer === field("choose-layer", "layer"));
        fill("choose-layer", "workload", most(mine, "workload"));
        fill("choose-layer", "tile", most(mine.filter((row) => row.workload === field("choose-layer", "workload")), "tile"));
      };
      narrow();
      document.getElementById("choose-layer").addEventListener("change", () => { narrow(); Arachne.drawAll(); });
    }
    if (links.length) {
      const operations = most(links, "operation");
      fill("choose-link", "operation", operations.includes("all_reduce") ? ["all_reduce", ...operations.filter((o) => o !== "all_reduce")] : operations);
      const gpus = [...new Set([...distinct(links, "gpu"), ...distinct(links, "peer")])].sort(bySize);
      fill("choose-link", "gpu", ["", ...gpus], ["all", ...gpus]);
      if (links.length > 10) document.getElementById("choose-link").elements.gpu.value = most(links, "gpu")[0];
      document.getElementById("choose-link").addEventListener("change", () => { Arachne.drawAll(); });
    }
    for (const form of document.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());
  };
})();
