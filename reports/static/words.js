"use strict";
// Numbers as reports/words.py says them.
Arachne.words = (function () {
  const MISSING = "–";
  const digits = (value) => {
    if (value === 0) return "0";
    const decimals = Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value))));
    return value.toFixed(Math.min(decimals, 8));
  };
  const missing = (value) => value === null || value === undefined || Number.isNaN(value);
  const words = {
    missing,
    ms(value) {
      if (missing(value)) return MISSING;
      const size = Math.abs(value);
      if (size >= 3.6e6) return digits(value / 3.6e6) + " h";
      if (size >= 1.2e5) return digits(value / 6e4) + " min";
      if (size >= 1000) return digits(value / 1000) + " s";
      if (size >= 1 || size === 0) return digits(value) + " ms";
      return digits(value * 1000) + " µs";
    },
    memory(value) {
      if (missing(value)) return MISSING;
      let size = value;
      for (const unit of ["B", "KiB", "MiB", "GiB"]) {
        if (Math.abs(size) < 1024) return (unit === "B" ? size.toFixed(0) : size.toFixed(1)) + " " + unit;
        size /= 1024;
      }
      return size.toFixed(2) + " TiB";
    },
    percent(value) {
      if (missing(value)) return MISSING;
      return value.toFixed(Math.abs(value) < 1 ? 2 : 1) + " %";
    },
    signed(value) {
      if (missing(value)) return MISSING;
      const text = words.percent(Math.abs(value));
      return text === "0.00 %" ? text : (value > 0 ? "+" : "−") + text;
    },
    number(value) {
      if (missing(value)) return MISSING;
      if (Number.isInteger(value)) return String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");
      return digits(value);
    },
    moment(seconds) {
      if (missing(seconds)) return MISSING;
      return new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC";
    },
    text(value) { return missing(value) || value === "" ? MISSING : String(value); },
    plural(count, one, many) { return words.number(count) + " " + (count === 1 ? one : many || one + "s"); },
    // Text that plotly.js shows as it is: it would read <b> and links in it as markup.
    plot(value, limit) {
      const text = String(value);
      const cut = limit || 60;
      const short = [...text].length > cut ? [...text].slice(0, cut - 1).join("") + "…" : text;
      return short.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
    },
    median(values) {
      if (!values.length) return null;
      const sorted = Float64Array.from(values).sort();
      const middle = sorted.length >> 1;
      return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
    },
  };
  return words;
})();
