"use strict";
// Before the first paint: the theme that was chosen last time, and that scripts do run.
(function () {
  var root = document.documentElement;
  root.classList.add("js");
  try {
    var chosen = localStorage.getItem("arachne-theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch (ignored) { /* no storage: the system's theme it is */ }
})();
