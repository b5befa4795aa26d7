"use strict";
// The accuracy page, inside the iteration: stages of runs, term by term.
(function () {
  const W = Arachne.words;
  const TERMS = ["compute", "communication", "sync", "update"];
  const ROLES = ["first stage", "middle stage", "last stage", "only stage"];

  // rows: all runs of the page. stages: of those that recorded them, `row` is the run. view(): the
  // runs that the filters leave. sourceCell: how the page shows a source.
  Arachne.startTerms = function (rows, stages, view, sourceCell) {
    const stagesInView = () => {
      const kept = new Set(view().map((row) => row.i));
      return stages.filter((stage) => kept.has(stage.row));
    };
    const termError = (stage, term) => {
      const measured = stage[term + "_measured"];
      return measured > 0 ? 100 * (stage[term + "_predicted"] / measured - 1) : null;
    };

    // One row for every source, term and place in the pipeline: sources are never averaged together.
    const termGroups = () => {
      const groups = new Map();
      for (const stage of stagesInView()) {
        for (const term of TERMS) {
          const key = `${rows[stage.row].source}\n${term}\n${stage.role}`;
          if (!groups.has(key)) groups.set(key, { source: rows[stage.row].source, term, role: stage.role, members: [] });
          groups.get(key).members.push(stage);
        }
      }
      return [...groups.values()].map((group) => {
        const shares = group.members.map((stage) => stage[group.term + "_share"]);
        const errors = group.members.map((stage) => termError(stage, group.term)).filter((v) => !W.missing(v));
        return {
          ...group, count: shares.length,
          predicted: W.median(group.members.map((stage) => stage[group.term + "_predicted"])),
          measured: W.median(group.members.map((stage) => stage[group.term + "_measured"])),
          share: W.median(shares), error: W.median(errors),
          worst: shares.reduce((a, b) => (Math.abs(b) > Math.abs(a) ? b : a)),
        };
      });
    };

    Arachne.drawers.terms = () => {
      const found = stagesInView();
      if (!found.length) return { ...Arachne.nothing("No run here recorded its stages"), said: "No run in this selection recorded its stages.", rows: [] };
      const points = (stage, term) => {
        const run = rows[stage.row];
        return `<b>plan ${run.plan_id}, ${W.plot(run.run, 40)}</b><br>template ${stage.template}, stage ${stage.stage} on ${W.plot(stage.gpu)} (${stage.role})` +
          `<br>${term}: predicted ${W.ms(stage[term + "_predicted"])}, measured ${W.ms(stage[term + "_measured"])}<br><b>${W.signed(stage[term + "_share"])}</b> of the iteration, ${W.plot(run.source)} profiles`;
      };
      const traces = ROLES.map((role, i) => ({ role, i, group: found.filter((stage) => stage.role === role) })).filter((entry) => entry.group.length).map(({ role, i, group }) => ({
        type: "box", orientation: "h", name: role, boxpoints: group.length <= 300 ? "all" : "outliers", jitter: 0.5, pointpos: 0, fillcolor: "rgba(0,0,0,0)",
        x: TERMS.flatMap((term) => group.map((stage) => stage[term + "_share"])), y: TERMS.flatMap((term) => group.map(() => term)),
        line: { color: `var(--c${i + 1})`, width: 1.4 }, marker: { color: `var(--c${i + 1})`, symbol: ["circle", "square", "diamond", "cross"][i], size: 6, opacity: 0.75 },
        text: TERMS.flatMap((term) => group.map((stage) => points(stage, term))), hovertemplate: "%{text}<extra></extra>", hoveron: "points",
      }));
      const medians = TERMS.map((term) => `${term} ${W.signed(W.median(found.map((stage) => stage[term + "_share"])))}`);
      return {
        traces,
        layout: {
          boxmode: "group", xaxis: { title: { text: "predicted less measured, % of the iteration" }, zeroline: true, zerolinewidth: 2 },
          yaxis: { type: "category", ticks: "", categoryorder: "array", categoryarray: TERMS.slice().reverse() },
        },
        said: `${W.plural(found.length, "stage")} of ${W.plural(new Set(found.map((stage) => stage.row)).size, "run")}; medians: ${medians.join(", ")}.`,
        rows: () => found.flatMap((stage) => TERMS.map((term) => {
          const run = rows[stage.row];
          return [run.plan_id, run.run, run.source, stage.template, stage.stage, stage.role, stage.gpu, term, stage[term + "_predicted"], stage[term + "_measured"], termError(stage, term), stage[term + "_share"]];
        })),
      };
    };

    const place = document.getElementById("terms");
    const table = place && new Arachne.DataTable(place, [
      { key: "source", title: "Source", type: "text", format: sourceCell },
      { key: "term", title: "Term", type: "text", heading: true },
      { key: "role", title: "Place", type: "text", note: "where the stage stands in its pipeline" },
      { key: "count", title: "Stages", type: "number", format: W.number },
      { key: "predicted", title: "Predicted", type: "number", format: W.ms, note: "median, of one iteration" },
      { key: "measured", title: "Measured", type: "number", format: W.ms, note: "median, of one iteration" },
      { key: "error", title: "Error", type: "number", format: W.signed, note: "median of predicted less measured, in percent of measured" },
      { key: "share", title: "Of the iteration", type: "number", format: W.signed, note: "median of predicted less measured, in percent of the iteration" },
      { key: "worst", title: "Furthest off", type: "number", format: W.signed, note: "in percent of the iteration" },
    ], { none: "No run in this selection recorded its stages." });
    return { refresh() { if (table) table.set(termGroups()); } };
  };
})();
