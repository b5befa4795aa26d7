"use strict";
// Tables that are sorted by a click or a key on their headings, and long ones page by page.
Arachne.compare = function (a, b) {
  const none = Arachne.words.missing;
  if (none(a) || a === "") return none(b) || b === "" ? 0 : 1;
  if (none(b) || b === "") return -1;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
};

// Order of two values, missing ones last whichever way the column is sorted.
Arachne.ordered = function (a, b, direction) {
  const none = (v) => Arachne.words.missing(v) || v === "";
  if (none(a) || none(b)) return Arachne.compare(a, b);
  return direction === "descending" ? Arachne.compare(b, a) : Arachne.compare(a, b);
};

Arachne.say = function (text) {
  const place = document.getElementById("said");
  if (place) place.textContent = text;
};

// Rows as reports/packed.py packs them, one object a row: text that is repeated comes as
// [values, index].
Arachne.unpack = function (packed) {
  const found = Array.from({ length: packed.count }, (_, i) => ({ i }));
  for (const [key, [values, index]] of Object.entries(packed.text)) {
    found.forEach((row, i) => { row[key] = values[index[i]]; });
  }
  for (const [key, values] of Object.entries(packed.numbers)) {
    found.forEach((row, i) => { row[key] = values[i]; });
  }
  return found;
};

// Headings with a sort button; `sort(column, direction)` does the work.
Arachne.sortHeadings = function (headings, sort) {
  headings.forEach((heading, column) => {
    const button = heading.querySelector("button.sort");
    if (!button) return;
    button.addEventListener("click", () => {
      const direction = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", direction);
      sort(column, direction);
      Arachne.say("Sorted by " + button.textContent.trim() + ", " + direction);
    });
  });
};

// A table that the page was written with.
Arachne.sortTable = function (table) {
  const headings = [...table.querySelectorAll("thead th")];
  Arachne.sortHeadings(headings, (column, direction) => {
    const body = table.tBodies[0];
    const number = headings[column].dataset.type === "number";
    const value = (row) => {
      const cell = row.cells[column];
      const text = cell.dataset.sort !== undefined ? cell.dataset.sort : cell.textContent.trim();
      if (text === "" || text === "–") return null;
      return number ? Number(text) : text;
    };
    const rows = [...body.rows].map((row, i) => ({ row, i, value: value(row) }));
    rows.sort((a, b) => Arachne.ordered(a.value, b.value, direction) || a.i - b.i);
    body.append(...rows.map((entry) => entry.row));
  });
};

Arachne.MUCH = 48; // letters from which a cell of text is made wider: else a row gets very tall

// A table of data: columns of {key, title, type, format, note}; cells are text, never markup.
Arachne.DataTable = class {
  constructor(table, columns, options) {
    this.table = table;
    this.columns = columns;
    this.options = { page: 100, printed: 2000, ...options };
    this.rows = [];
    this.page = 0;
    this.size = this.options.page;
    this.order = null;
    const head = table.tHead || table.createTHead();
    head.replaceChildren();
    const line = head.insertRow();
    for (const column of columns) {
      const heading = document.createElement("th");
      heading.scope = "col";
      heading.dataset.type = column.type;
      if (column.note) heading.title = column.note;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = column.title;
      heading.append(button);
      line.append(heading);
    }
    this.headings = [...line.cells];
    Arachne.sortHeadings(this.headings, (column, direction) => {
      this.order = { key: columns[column].key, direction };
      this.page = 0;
      this.sort();
      this.show();
    });
    this.body = table.tBodies[0] || table.createTBody();
    if (this.options.pager) this.makePager(this.options.pager);
    document.addEventListener("arachne:print", () => { if (this.options.pager) this.show(this.options.printed); });
    document.addEventListener("arachne:screen", () => { if (this.options.pager) this.show(); });
  }

  // Shown as sorted, before anybody clicks.
  sortedBy(key, direction) {
    this.order = { key, direction };
    const column = this.columns.findIndex((c) => c.key === key);
    this.headings[column].setAttribute("aria-sort", direction);
    return this;
  }

  set(rows) {
    this.rows = rows.slice();
    this.page = 0;
    this.sort();
    this.show();
  }

  sort() {
    if (!this.order) return;
    const { key, direction } = this.order;
    this.rows.sort((a, b) => Arachne.ordered(a[key], b[key], direction));
  }

  show(limit) {
    const size = limit || this.size || this.rows.length || 1;
    const first = limit ? 0 : this.page * size;
    const lines = document.createDocumentFragment();
    for (const row of this.rows.slice(first, first + size)) {
      const line = document.createElement("tr");
      for (const column of this.columns) {
        const cell = document.createElement(column.heading ? "th" : "td");
        if (column.heading) cell.scope = "row";
        if (column.type === "number") cell.className = "number";
        const content = column.format ? column.format(row[column.key], row) : Arachne.words.text(row[column.key]);
        if (content instanceof Node) cell.append(content); else cell.textContent = content;
        if (column.wide) cell.classList.add("long");
        if (cell.textContent.length > Arachne.MUCH) cell.classList.add("long", "much");
        line.append(cell);
      }
      lines.append(line);
    }
    if (!this.rows.length) {
      const cell = document.createElement("td");
      cell.colSpan = this.columns.length;
      cell.className = "none";
      cell.textContent = this.options.none || "Nothing to show.";
      const line = document.createElement("tr");
      line.append(cell);
      lines.append(line);
    }
    this.body.replaceChildren(lines);
    if (this.pager) this.showPager(first, Math.min(first + size, this.rows.length));
  }

  makePager(pager) {
    this.pager = pager;
    pager.replaceChildren();
    const button = (label, name, step) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = label;
      made.setAttribute("aria-label", name);
      made.addEventListener("click", () => { this.page += step; this.show(); });
      return made;
    };
    this.before = button("‹ Previous", "Previous rows", -1);
    this.after = button("Next ›", "Next rows", 1);
    this.where = document.createElement("span");
    this.where.className = "where";
    const label = document.createElement("label");
    label.textContent = "Rows at once ";
    const choice = document.createElement("select");
    for (const [value, text] of [[25, "25"], [100, "100"], [500, "500"], [0, "all"]]) {
      choice.add(new Option(text, value, value === this.size, value === this.size));
    }
    choice.addEventListener("change", () => { this.size = Number(choice.value); this.page = 0; this.show(); });
    label.append(choice);
    pager.append(this.before, this.where, this.after, label);
  }

  showPager(first, last) {
    const count = this.rows.length;
    const all = Arachne.words.number;
    this.where.textContent = count ? `${all(first + 1)}–${all(last)} of ${all(count)}` : "no rows";
    this.before.disabled = this.page === 0;
    this.after.disabled = last >= count;
  }
};

Arachne.startTables = function () {
  for (const table of document.querySelectorAll("table.sortable")) Arachne.sortTable(table);
};
