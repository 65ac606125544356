// The time axis works without this file: its tables lead everywhere. With it arrow keys go from rank to rank.
"use strict";

addEventListener("keydown", (event) => {
  const strip = event.target instanceof Element && event.target.closest(".drawn.ranks");
  if (!strip) return;
  const rows = [...strip.querySelectorAll("a")];
  const here = rows.indexOf(event.target.closest("a"));
  const to = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (here < 0 || to === undefined || !rows[to]) return;
  event.preventDefault();
  rows[here].setAttribute("tabindex", "-1");
  rows[to].setAttribute("tabindex", "0");
  rows[to].focus();
});
