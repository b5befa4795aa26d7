"use strict";
// The accuracy page, inside the iteration: stages of runs, term by term.
(function () {
  const W = Arachne.words;
  const TERMS = ["compute", "communication", "sync", "update"];
  const OLDER = ["compute with collectives", "transfers", "sync", "update"]; // collectives not timed
  const SHOWN = ["compute", "communication", "compute with collectives", "transfers", "sync", "update"];
  const named = (stage, i) => (stage.split ? TERMS : OLDER)[i];
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
        TERMS.forEach((field, i) => {
          const term = named(stage, i);
          const key = `${rows[stage.row].source}\n${term}\n${stage.role}`;
          if (!groups.has(key)) groups.set(key, { source: rows[stage.row].source, term, field, role: stage.role, members: [] });
          groups.get(key).members.push(stage);
        });
      }
      return [...groups.values()].map((group) => {
        const shares = group.members.map((stage) => stage[group.field + "_share"]);
        const errors = group.members.map((stage) => termError(stage, group.field)).filter((v) => !W.missing(v));
        return {
          ...group, count: shares.length,
          predicted: W.median(group.members.map((stage) => stage[group.field + "_predicted"])),
          measured: W.median(group.members.map((stage) => stage[group.field + "_measured"])),
          share: W.median(shares), error: W.median(errors),
          worst: shares.reduce((a, b) => (Math.abs(b) > Math.abs(a) ? b : a)),
        };
      });
    };

    Arachne.drawers.terms = () => {
      const found = stagesInView();
      if (!found.length) return { ...Arachne.nothing("No run here recorded its stages"), said: "No run in this selection recorded its stages.", rows: [] };
      const points = (stage, term, i) => {
        const run = rows[stage.row];
        return `<b>plan ${run.plan_id}, ${W.plot(run.run, 40)}</b><br>template ${stage.template}, stage ${stage.stage} on ${W.plot(stage.gpu)} (${stage.role})` +
          `<br>${named(stage, i)}: predicted ${W.ms(stage[term + "_predicted"])}, measured ${W.ms(stage[term + "_measured"])}<br><b>${W.signed(stage[term + "_share"])}</b> of the iteration, ${W.plot(run.source)} profiles`;
      };
      const traces = ROLES.map((role, i) => ({ role, i, group: found.filter((stage) => stage.role === role) })).filter((entry) => entry.group.length).map(({ role, i, group }) => ({
        type: "box", orientation: "h", name: role, boxpoints: group.length <= 300 ? "all" : "outliers", jitter: 0.5, pointpos: 0, fillcolor: "rgba(0,0,0,0)",
        x: TERMS.flatMap((term) => group.map((stage) => stage[term + "_share"])), y: TERMS.flatMap((_, i) => group.map((stage) => named(stage, i))),
        line: { color: `var(--c${i + 1})`, width: 1.4 }, marker: { color: `var(--c${i + 1})`, symbol: ["circle", "square", "diamond", "cross"][i], size: 6, opacity: 0.75 },
        text: TERMS.flatMap((term, i) => group.map((stage) => points(stage, term, i))), hovertemplate: "%{text}<extra></extra>", hoveron: "points",
      }));
      const shares = new Map(SHOWN.map((term) => [term, []]));
      for (const stage of found) TERMS.forEach((term, i) => shares.get(named(stage, i)).push(stage[term + "_share"]));
      const present = SHOWN.filter((term) => shares.get(term).length);
      const medians = present.map((term) => `${term} ${W.signed(W.median(shares.get(term)))}`);
      return {
        traces,
        layout: {
          boxmode: "group", xaxis: { title: { text: "predicted less measured, % of the iteration" }, zeroline: true, zerolinewidth: 2 },
          yaxis: { type: "category", ticks: "", categoryorder: "array", categoryarray: present.slice().reverse() },
        },
        said: `${W.plural(found.length, "stage")} of ${W.plural(new Set(found.map((stage) => stage.row)).size, "run")}; medians: ${medians.join(", ")}.`,
        rows: () => found.flatMap((stage) => TERMS.map((term, i) => {
          const run = rows[stage.row];
          return [run.plan_id, run.run, run.source, stage.template, stage.stage, stage.role, stage.gpu, named(stage, i), stage[term + "_predicted"], stage[term + "_measured"], termError(stage, term), stage[term + "_share"]];
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
