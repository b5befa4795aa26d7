"use strict";
// Figures: drawn by plotly.js in the page's colours, saved as PNG, SVG or CSV.
Arachne.drawers = {}; // name -> () => {traces, layout, said, columns, rows}
Arachne.figures = {};

Arachne.baseLayout = function (narrow) {
  const axis = {
    gridcolor: "var(--grid)", zerolinecolor: "var(--axis)", linecolor: "var(--axis)",
    tickcolor: "var(--axis)", ticks: "outside", ticklen: 4, automargin: true,
    title: { font: { size: 12, color: "var(--quiet)" }, standoff: 10 },
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: Arachne.colour("--sans"), size: 12, color: "var(--ink)" },
    margin: narrow ? { l: 46, r: 10, t: 12, b: 42 } : { l: 60, r: 16, t: 14, b: 48 },
    xaxis: axis, yaxis: axis,
    legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", traceorder: "normal", font: { size: 12 } },
    hoverlabel: { bgcolor: "var(--panel)", bordercolor: "var(--axis)", font: { color: "var(--ink)", size: 12 }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: "var(--quiet)", activecolor: "var(--ink)" },
    hovermode: "closest", dragmode: narrow ? false : "zoom",
  };
};

// b over a, objects merged, everything else replaced.
Arachne.merge = function (a, b) {
  const made = { ...a };
  for (const [key, value] of Object.entries(b || {})) {
    const plain = value && typeof value === "object" && !Array.isArray(value);
    made[key] = plain ? Arachne.merge(made[key] && typeof made[key] === "object" ? made[key] : {}, value) : value;
  }
  return made;
};

// A layout over the base; further axes look like the first two.
Arachne.withBase = function (layout, narrow) {
  const base = Arachne.baseLayout(narrow);
  for (const name of Object.keys(layout || {})) {
    if (/^[xy]axis\d+$/.test(name)) base[name] = base[name.slice(0, 5)];
  }
  return Arachne.merge(base, layout);
};

Arachne.nothing = function (text) {
  return {
    traces: [],
    layout: {
      xaxis: { visible: false }, yaxis: { visible: false },
      annotations: [{ text: text || "Nothing to draw yet", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5, font: { size: 14, color: "var(--quiet)" } }],
    },
  };
};

Arachne.Figure = class {
  constructor(element, spec) {
    this.element = element;
    this.spec = spec;
    this.plot = element.querySelector(".plot");
    this.picture = element.querySelector("svg.picture");
    this.summary = element.querySelector(".said");
    this.made = { columns: spec.columns, rows: spec.rows, traces: spec.traces, layout: spec.layout };
    for (const button of element.querySelectorAll("[data-save]")) {
      button.addEventListener("click", (event) => this.save(button.dataset.save, event));
    }
  }

  get file() { return document.documentElement.dataset.page + "-" + this.spec.name; }

  near() {
    const box = this.element.getBoundingClientRect();
    return box.bottom > -400 && box.top < innerHeight + 400;
  }

  refresh() { return this.stale ? this.draw() : Promise.resolve(); }

  // In CSS pixels. A figure a little higher than half a sheet of paper would be torn in two there.
  height() {
    const wanted = this.made.height || Number(this.plot.dataset.height);
    return document.documentElement.dataset.print === "1" && wanted <= 520 ? Math.min(wanted, 370) : wanted;
  }

  // What there is to draw now, and in words.
  say() {
    const drawer = Arachne.drawers[this.spec.drawnBy];
    if (drawer) this.made = { columns: this.spec.columns, rows: [], ...drawer(this) };
    else if (!this.spec.traces.length) this.made = { ...this.made, ...Arachne.nothing() };
    if (this.summary && this.made.said) this.summary.textContent = this.made.said;
    if (this.plot) this.plot.style.height = this.height() + "px";
  }

  // data-drawn on the element: what stands there is complete, and is what the page has to show.
  draw() {
    this.stale = false;
    delete this.element.dataset.drawn;
    return Promise.resolve(this.plot && this.plotted()).then(() => {
      if (!this.stale) this.element.dataset.drawn = "1";
    });
  }

  plotted() {
    this.say();
    const height = this.height();
    const narrow = this.plot.clientWidth < 560;
    // Paper is laid out after this: a landscape A4 page has room for so much (page.css, print).
    const onPaper = document.documentElement.dataset.print === "1";
    const width = onPaper ? { width: this.element.classList.contains("wide") ? 985 : 468 } : {};
    const layout = Arachne.withBase(this.made.layout, narrow);
    // Plotly writes into what it is given: a second drawing starts from a fresh copy.
    return Plotly.react(this.plot, Arachne.resolve(this.made.traces), Arachne.resolve({ ...layout, height, ...width }), {
      // On a phone plotly's buttons would cover the figure, and fingers need none of them.
      responsive: true, displaylogo: false, ...(matchMedia("(max-width: 40rem)").matches ? { displayModeBar: false } : {}),
      modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
      toImageButtonOptions: { format: "png", scale: 2, filename: this.file },
      modeBarButtonsToAdd: [{ name: "svg", title: "Download plot as SVG", icon: Plotly.Icons.disk, click: () => this.save("svg") }],
    }).then(() => this.clearModebar()).then(() => {
      // The label of the figure and what is said below it stand for the drawing: its ticks and marks
      // are noise to a screen reader. Plotly's buttons stay.
      for (const svg of this.plot.querySelectorAll(".main-svg")) svg.setAttribute("aria-hidden", "true");
    });
  }

  // The legend and plotly's buttons share the space above the plot: where they would overlap, the
  // legend goes below the buttons.
  clearModebar() {
    const legend = this.plot.querySelector(".legend .bg");
    const buttons = this.plot.querySelector(".modebar");
    if (!legend || !buttons) return undefined;
    const a = legend.getBoundingClientRect();
    const b = buttons.getBoundingClientRect();
    if (!a.width || a.right <= b.left || a.top >= b.bottom || a.bottom <= b.top) return undefined;
    const top = this.plot._fullLayout._size.t; // what the legend itself has pushed the plot down by
    return Plotly.relayout(this.plot, { "margin.t": Math.ceil(top + b.bottom - a.top + 2) });
  }

  csv() {
    const cell = (value) => {
      if (Arachne.words.missing(value)) return "";
      let text = String(value);
      // A spreadsheet would run it as a formula.
      if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = "'" + text;
      return /[",\n\r]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
    };
    const rows = typeof this.made.rows === "function" ? this.made.rows() : this.made.rows;
    return [this.made.columns, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
  }

  // Drawing a picture takes seconds on a busy machine: what is going on is said, and what failed.
  async save(kind, event) {
    const name = this.file + "." + kind;
    Arachne.say("Saving " + name);
    try {
      await this.saveAs(kind, event);
    } catch (error) {
      Arachne.say("Could not save " + name);
      throw error;
    }
  }

  async saveAs(kind, event) {
    if (kind === "csv") {
      if (this.spec.cut) return; // too many rows for a page: the link leads to the file beside it
      // What is in view now is better than that file, and travels.
      event.preventDefault();
      Arachne.download(this.file + ".csv", new Blob([this.csv()], { type: "text/csv" }));
      return;
    }
    if (this.picture) {
      const text = Arachne.pictureText(this.picture);
      const svg = new Blob([text], { type: "image/svg+xml" });
      if (kind === "svg") Arachne.download(this.file + ".svg", svg);
      else Arachne.download(this.file + ".png", await Arachne.raster(svg, this.picture));
      return;
    }
    const figure = {
      data: Arachne.resolve(this.made.traces),
      layout: Arachne.resolve(Arachne.merge(
        Arachne.withBase(this.made.layout, false),
        { paper_bgcolor: "var(--panel)", title: { text: Arachne.words.plot(this.element.dataset.title, 90), font: { size: 15 }, x: 0.02, xanchor: "left" }, margin: { t: 84 } },
      )),
    };
    const size = { width: Math.max(640, this.plot.clientWidth), height: Math.max(420, this.plot.clientHeight) };
    const url = await Plotly.toImage(figure, { format: kind, scale: 2, ...size });
    const blob = kind === "svg"
      ? new Blob([decodeURIComponent(url.slice(url.indexOf(",") + 1))], { type: "image/svg+xml" })
      : Arachne.bytes(url, "image/png");
    Arachne.download(this.file + "." + kind, blob);
  }
};

Arachne.bytes = function (url, type) {
  const raw = atob(url.slice(url.indexOf(",") + 1));
  return new Blob([Uint8Array.from(raw, (c) => c.charCodeAt(0))], { type });
};

Arachne.download = function (name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000); // a busy browser comes late to fetch it
  Arachne.say("Saved " + name);
};

// A drawing of the page as a text of its own: the page's styles written into it.
Arachne.pictureText = function (picture) {
  const copy = picture.cloneNode(true);
  const kept = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "dominant-baseline"];
  const from = [picture, ...picture.querySelectorAll("*")];
  const to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    to[i].setAttribute("style", kept.map((name) => name + ":" + style.getPropertyValue(name)).join(";"));
    to[i].removeAttribute("class");
  });
  const [, , width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  ground.setAttribute("width", "100%");
  ground.setAttribute("height", "100%");
  ground.setAttribute("fill", Arachne.colour("--panel"));
  copy.prepend(ground);
  return new XMLSerializer().serializeToString(copy);
};

Arachne.raster = async function (svg, picture) {
  const [, , width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
  const image = new Image();
  image.src = URL.createObjectURL(svg);
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * width;
  canvas.height = 2 * height;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
};

// All figures have something new to show. Those in view are drawn now, one after the other with the
// page alive between them; the rest when they come into view. Paper does not wait.
Arachne.drawAll = async function () {
  const turn = (Arachne.turn = (Arachne.turn || 0) + 1);
  const figures = Object.values(Arachne.figures);
  for (const figure of figures) {
    figure.stale = true;
    delete figure.element.dataset.drawn;
  }
  if (document.documentElement.dataset.print === "1") {
    for (const figure of figures) figure.draw();
    return;
  }
  for (const figure of figures) {
    if (!figure.near()) { figure.say(); continue; }
    await figure.draw();
    await new Promise((go) => setTimeout(go, 0));
    if (turn !== Arachne.turn) return;
  }
  document.documentElement.dataset.drawn = String(turn);
};

// Figures that come into view are drawn one after the other, with the page alive between them: a
// click must not wait for neighbours. One that has gone by again waits for the next time.
Arachne.watchFigures = function () {
  let last = Promise.resolve();
  const draw = async (figure) => {
    if (!figure.stale || !figure.near()) return;
    await figure.refresh();
    await new Promise((go) => setTimeout(go, 0));
  };
  const watcher = new IntersectionObserver((seen) => {
    for (const entry of seen) {
      const figure = Arachne.figures[entry.target.dataset.figure];
      if (entry.isIntersecting) last = last.then(() => draw(figure), () => draw(figure));
    }
  }, { rootMargin: "400px" });
  for (const figure of Object.values(Arachne.figures)) watcher.observe(figure.element);
};

Arachne.start = async function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  Arachne.data = data;
  Arachne.startTheme();
  Arachne.startTables();
  for (const spec of data.figures) {
    const element = document.querySelector(`[data-figure="${spec.name}"]`);
    if (element) Arachne.figures[spec.name] = new Arachne.Figure(element, spec);
  }
  if (Arachne.startPage) Arachne.startPage(data);
  Arachne.themeChanged();
  Arachne.redraw.push(Arachne.drawAll);
  await Arachne.drawAll();
  Arachne.watchFigures();
  document.documentElement.dataset.ready = "1";
};

document.addEventListener("DOMContentLoaded", () => { Arachne.start(); });
