"use strict";
// The comparison page: one question, or all of them.
(function () {
  const W = Arachne.words;
  let answers = [];
  let view = [];
  let planners = [];
  let table;
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "star", "x", "pentagon", "hexagram", "triangle-down"];
  const colour = (planner) => `var(--c${(planners.indexOf(planner) % 8) + 1})`;
  const symbol = (planner) => SYMBOLS[planners.indexOf(planner) % SYMBOLS.length];
  const chosen = () => document.getElementById("choose").elements.question.value;
  const TABLE = "table ";
  const inView = (row) => chosen() === "" || String(row.comparison_id) === chosen() || chosen() === TABLE + row.suite + ": " + row.table;
  const present = () => planners.filter((planner) => view.some((row) => row.planner === planner));
  const hover = (row) => `<b>${W.plot(row.planner)}</b>: ${W.plot(row.question, 70)}<br>${W.missing(row.iteration_ms) ? W.plot(row.status) + ", " + W.plot(row.reason, 80) : W.ms(row.iteration_ms) + ", " + W.number(row.samples_per_s) + " samples/s, " + W.percent(row.relative_percent) + " of the best"}<br>${W.plot(row.layout, 70)}<br>${W.plot(row.mix, 70)}<br>searched ${W.ms(1000 * row.search_s)}, ${W.number(row.evaluations)} plans priced`;
  const columns = ["question", "planner", "status", "iteration_ms", "samples_per_s", "relative_percent", "search_s", "evaluations", "depth", "templates", "mix", "fastest_type", "fastest_share_percent", "stages"];
  const rows = () => view.map((row) => columns.map((name) => row[name]));

  const QUESTIONS = 60; // lines of a figure that somebody still reads
  const narrow = (figure) => figure.plot.clientWidth < 560;
  // A legend of many planners stands above the plot: on a phone it gets room of its own.
  const withLegend = (figure, height) => height + (narrow(figure) ? 11 * present().length : 0);

  Arachne.drawers.throughput = (figure) => {
    const found = view.filter((row) => !W.missing(row.relative_percent));
    if (!found.length) return { ...Arachne.nothing("No planner found a plan"), said: "", columns, rows };
    const asked = [...new Set(view.map((row) => row.question))];
    const one = asked.length === 1;
    const questions = asked.slice(-QUESTIONS);
    const drawn = new Set(questions);
    const traces = present().map((planner) => {
      const mine = found.filter((row) => row.planner === planner && drawn.has(row.question));
      const y = mine.map((row) => (one ? W.plot(row.planner) : W.plot(row.question, 46)));
      const common = { name: W.plot(planner), y, text: mine.map(hover), hovertemplate: "%{text}<extra></extra>" };
      return one
        ? { ...common, type: "bar", orientation: "h", x: mine.map((row) => row.samples_per_s), marker: { color: colour(planner) }, textposition: "none", showlegend: false }
        : { ...common, type: "scatter", mode: "markers", x: mine.map((row) => row.relative_percent), marker: { color: colour(planner), symbol: symbol(planner), size: 12, line: { color: "var(--panel)", width: 1 } } };
    });
    const order = one ? present() : questions;
    return {
      traces, height: withLegend(figure, 130 + 34 * order.length),
      layout: {
        bargap: 0.35, xaxis: one ? { title: { text: "samples/s" }, rangemode: "tozero" } : { title: { text: "throughput, % of the best plan of the question" } },
        yaxis: { type: "category", categoryorder: "array", categoryarray: order.map((name) => W.plot(name, 46)).reverse(), ticks: "", ...(one ? {} : { range: [-0.7, order.length - 0.3] }), ...(one || !narrow(figure) ? {} : shortTicks(order)) },
      },
      said: one ? `Samples per second. ${questions[0]}: ${found.reduce((a, b) => (b.iteration_ms < a.iteration_ms ? b : a)).planner} is fastest.` : `In percent of the best plan of the same question; ${W.plural(asked.length, "question")}${asked.length > QUESTIONS ? `, of which the last ${QUESTIONS} are drawn: choose a table or a question for others` : ""}.`,
      columns, rows,
    };
  };

  // Names of questions in two short lines: on a phone the long ones would leave no room to draw.
  const shortTicks = (order) => {
    const row = new Map(view.map((entry) => [entry.question, entry]));
    return { tickvals: order.map((name) => W.plot(name, 46)), ticktext: order.map((name) => `${W.plot(row.get(name).cluster, 16)}<br>${W.plot(row.get(name).model, 16)}`), tickfont: { size: 10 } };
  };

  Arachne.drawers.search = (figure) => {
    const found = view.filter((row) => !W.missing(row.relative_percent) && row.search_s > 0);
    if (!found.length) return { ...Arachne.nothing("No search that found a plan"), said: "", columns, rows };
    return {
      traces: present().map((planner) => {
        const mine = found.filter((row) => row.planner === planner);
        return { type: "scatter", mode: "markers", name: W.plot(planner), x: mine.map((row) => row.search_s), y: mine.map((row) => row.relative_percent), marker: { color: colour(planner), symbol: symbol(planner), size: 10, opacity: 0.85, line: { color: "var(--panel)", width: 1 } }, text: mine.map(hover), hovertemplate: "%{text}<extra></extra>" };
      }),
      layout: { xaxis: { type: "log", title: { text: "search time, s (log)" }, exponentformat: "none" }, yaxis: { title: { text: "throughput, % of the best" } } },
      height: withLegend(figure, 420), said: "Up and to the left is better.", columns, rows,
    };
  };

  // Depth by GPU mix. The mix is one number, so that plans of many questions share an axis: how much
  // of a plan is of the fastest type of its cluster.
  const CLOUD = 3000; // more random plans than that hide the planners'
  Arachne.drawers.space = (figure) => {
    const found = view.filter((row) => !W.missing(row.depth));
    if (!found.length) return { ...Arachne.nothing("No plan to place"), said: "", columns, rows };
    const random = randomPlans();
    const drawn = random.length <= CLOUD ? random : [];
    const cloud = {
      type: "scatter", mode: "markers", name: W.plural(drawn.length, "random plan"), x: drawn.map((plan) => plan.depth), y: drawn.map((plan) => plan.fastest_share_percent),
      marker: { size: 6, opacity: 0.8, color: drawn.map((plan) => plan.relative_percent), cmin: 0, cmax: 100, colorscale: [[0, "var(--line)"], [0.6, "var(--axis)"], [1, "var(--ink)"]], line: { width: 0 } },
      text: drawn.map((plan) => `random plan: ${W.ms(plan.iteration_ms)}, ${W.percent(plan.relative_percent)} of the best<br>${W.plot(plan.mix, 70)}`), hovertemplate: "%{text}<extra></extra>",
    };
    const shift = (planner) => (present().indexOf(planner) - (present().length - 1) / 2) * Math.min(0.09, 0.7 / present().length);
    const types = [...new Set(found.map((row) => row.fastest_type))];
    const deepest = Math.max(...found.map((row) => row.depth), ...drawn.map((plan) => plan.depth));
    return {
      traces: (drawn.length ? [cloud] : []).concat(present().map((planner) => {
        const mine = found.filter((row) => row.planner === planner);
        return { type: "scatter", mode: "markers", name: W.plot(planner), x: mine.map((row) => row.depth + shift(planner)), y: mine.map((row) => row.fastest_share_percent), marker: { color: colour(planner), symbol: symbol(planner), size: mine.map((row) => 6 + 8 * ((row.relative_percent || 0) / 100) ** 3), line: { color: "var(--panel)", width: 1 } }, text: mine.map(hover), hovertemplate: "%{text}<extra></extra>" };
      })),
      layout: {
        xaxis: { title: { text: "stages of the deepest template" }, ...(deepest > 12 ? {} : { dtick: 1 }) },
        yaxis: { title: { text: types.length === 1 ? `GPUs of the plan that are ${W.plot(types[0], 24)}, %` : "GPUs of the plan that are of the fastest type, %" }, range: [-6, 106] },
        legend: { itemsizing: "constant" },
      },
      height: withLegend(figure, 440),
      said: "Larger marks are faster plans." + (drawn.length ? " Dots are priced random plans, the stronger the faster." : random.length ? " Choose a question or a table to see its priced random plans." : ""),
      columns,
      rows: () => rows().concat(random.map((plan) => columns.map((name) => plan[name] ?? null))),
    };
  };

  // The priced random plans of the questions in view, each held against the best plan of its question.
  const randomPlans = () => {
    const all = [];
    for (const id of new Set(view.map((row) => row.comparison_id))) {
      const mine = view.filter((row) => row.comparison_id === id);
      const plans = Arachne.data.backdrop[id] || [];
      const best = Math.min(...mine.filter((row) => !W.missing(row.relative_percent)).map((row) => row.iteration_ms), ...plans.map((plan) => plan[2]));
      for (const [depth, mix, iteration_ms, share] of plans) {
        all.push({ question: mine[0].question, planner: "random plan", status: "ok", depth, mix, iteration_ms, fastest_type: mine[0].fastest_type, fastest_share_percent: share, relative_percent: (100 * best) / iteration_ms });
      }
    }
    return all;
  };

  Arachne.drawers.curves = () => {
    const curves = Arachne.data.curves;
    const wanted = chosen();
    const ids = new Set(view.map((row) => row.comparison_id));
    const mine = curves.filter((curve) => wanted === "" || ids.has(curve.comparison));
    const first = mine.length ? mine[0].comparison : null;
    const shown = mine.filter((curve) => curve.comparison === first);
    const names = ["question", "phase", "planner", "seeds", "evaluations", "best_iteration_ms"];
    if (!shown.length) return { ...Arachne.nothing("No search curve of this question was recorded"), said: "", columns: names, rows: [] };
    const best = shown.flatMap((curve) => curve.best_ms);
    const [divisor, unit] = Math.min(...best) >= 2000 ? [1000, "s"] : [1, "ms"];
    const wide = Math.max(...best) > 4 * Math.min(...best); // one slow start would flatten the rest
    return {
      traces: shown.map((curve) => ({ type: "scatter", mode: "lines", name: W.plot(`${curve.planner}${curve.phase === "planning" ? "" : ", " + curve.phase}${curve.seeds > 1 ? ` (median of ${curve.seeds} seeds)` : ""}`), x: curve.evaluations, y: curve.best_ms.map((ms) => ms / divisor), line: { color: colour(curve.planner), width: 2, shape: "hv", dash: curve.phase === "planning" ? "solid" : "dash" }, hovertemplate: `%{x} plans priced: %{y:.5~g} ${unit}<extra>%{fullData.name}</extra>` })),
      layout: { xaxis: { type: "log", title: { text: "plans priced (log)" }, exponentformat: "none" }, yaxis: { title: { text: `best iteration time so far, ${unit}${wide ? " (log)" : ""}` }, ...(wide ? { type: "log", exponentformat: "none" } : {}) } },
      said: shown[0].question + (wanted === "" && new Set(curves.map((c) => c.comparison)).size > 1 ? "; choose another question above." : "."),
      columns: names,
      rows: () => shown.flatMap((c) => c.evaluations.map((count, i) => [c.question, c.phase, c.planner, c.seeds, count, c.best_ms[i]])),
    };
  };

  Arachne.startPage = (data) => {
    if (!data.answers.count) return;
    answers = Arachne.unpack(data.answers);
    planners = [...new Set([...data.planners, ...data.curves.map((curve) => curve.planner)])];
    const pages = new Set(data.plan_pages);
    const plan = (value) => {
      if (W.missing(value)) return "–";
      if (!pages.has(value)) return "plan " + value;
      const link = document.createElement("a");
      link.href = `plan-${value}.html`;
      link.textContent = "plan " + value;
      return link;
    };
    table = new Arachne.DataTable(document.getElementById("answers"), [
      { key: "question", title: "Question", type: "text", wide: true, heading: true },
      { key: "planner", title: "Planner", type: "text" },
      { key: "status", title: "Status", type: "text" },
      { key: "iteration_ms", title: "Iteration", type: "number", format: W.ms },
      { key: "samples_per_s", title: "Samples/s", type: "number", format: W.number },
      { key: "relative_percent", title: "Of the best", type: "number", format: W.percent },
      { key: "search_s", title: "Search", type: "number", format: (v) => W.ms(1000 * v) },
      { key: "evaluations", title: "Plans priced", type: "number", format: W.number },
      { key: "gpus_used", title: "GPUs used", type: "number", format: (v, row) => (W.missing(v) ? "–" : `${W.number(v)} of ${W.number(row.gpus)}`) },
      { key: "gpus_idle", title: "GPUs idle", type: "number", format: W.number },
      { key: "depth", title: "Depth", type: "number", format: W.number },
      { key: "templates", title: "Templates", type: "number", format: W.number },
      { key: "layout", title: "Layout", type: "text", wide: true },
      { key: "stages", title: "Type and TP of every stage", type: "text", wide: true },
      { key: "plan_id", title: "Plan", type: "number", format: plan },
      { key: "reason", title: "Reason", type: "text", wide: true },
    ], { pager: document.getElementById("answers-pager"), none: "No answer." });
    const form = document.getElementById("choose");
    const short = (name) => (name.length > 70 ? name.slice(0, 69) + "…" : name);
    const questions = new Map(answers.map((row) => [String(row.comparison_id), row.question]));
    const tables = [...new Set(answers.filter((row) => row.table).map((row) => `${row.suite}: ${row.table}`))];
    form.elements.question.replaceChildren(new Option(questions.size === 1 ? "the question" : `all ${W.plural(questions.size, "question")}`, ""), ...tables.map((name) => new Option(short(`table ${name}`), TABLE + name)), ...[...questions].map(([id, name]) => new Option(short(name), id)));
    const show = () => {
      view = answers.filter(inView);
      table.set(view);
    };
    form.addEventListener("change", () => { show(); Arachne.drawAll(); });
    form.addEventListener("submit", (event) => event.preventDefault());
    show();
  };
})();
