"use strict";
// The theme: light or dark, by the system or by choice; paper is always light.
const Arachne = { redraw: [] };

Arachne.isDark = function () {
  const root = document.documentElement;
  if (root.dataset.print === "1") return false;
  const chosen = root.dataset.theme;
  if (chosen) return chosen === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
};

// The value of a custom property of the page, in the theme it has now.
Arachne.colour = function (name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
};

// A copy of a value with every "var(--name)" in it replaced by its colour.
Arachne.resolve = function (value) {
  if (typeof value === "string") {
    return value.includes("var(--")
      ? value.replace(/var\((--[a-z0-9-]+)\)/g, (_, name) => Arachne.colour(name))
      : value;
  }
  if (Array.isArray(value)) {
    return typeof value[0] === "number" && typeof value[value.length - 1] === "number" ? value : value.map(Arachne.resolve);
  }
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, Arachne.resolve(v)]));
  }
  return value;
};

Arachne.themeChanged = function () {
  const button = document.getElementById("theme");
  if (button) {
    const dark = Arachne.isDark();
    button.setAttribute("aria-pressed", String(dark));
    button.querySelector(".theme-name").textContent = dark ? "Dark" : "Light";
  }
  for (const draw of Arachne.redraw) draw();
};

Arachne.startTheme = function () {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  button.addEventListener("click", () => {
    root.dataset.theme = Arachne.isDark() ? "light" : "dark";
    try { localStorage.setItem("arachne-theme", root.dataset.theme); } catch (ignored) { /* as above */ }
    Arachne.themeChanged();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", Arachne.themeChanged);
  const printing = (on) => {
    if ((root.dataset.print === "1") === on) return;
    if (on) root.dataset.print = "1"; else delete root.dataset.print;
    document.dispatchEvent(new CustomEvent(on ? "arachne:print" : "arachne:screen"));
    Arachne.themeChanged();
  };
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  matchMedia("print").addEventListener("change", (event) => printing(event.matches));
};
