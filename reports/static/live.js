"use strict";
// Served pages only: asks the server that made the page whether the store holds something new.
(function () {
  const seen = document.documentElement.dataset.state;
  const ask = async () => {
    try {
      const answer = await fetch("/state", { cache: "no-store" });
      if (answer.ok && (await answer.text()) !== seen) {
        sessionStorage.setItem("arachne-scroll", String(scrollY));
        location.reload();
        return;
      }
      document.documentElement.dataset.live = answer.ok ? "1" : "0";
    } catch (gone) {
      document.documentElement.dataset.live = "0";
    }
    setTimeout(ask, document.hidden ? 15000 : 3000);
  };
  const before = sessionStorage.getItem("arachne-scroll");
  if (before !== null) {
    sessionStorage.removeItem("arachne-scroll");
    addEventListener("load", () => setTimeout(() => scrollTo(0, Number(before)), 300));
  }
  setTimeout(ask, 3000);
})();
