// Keys for people who stay on the keyboard: ? shows them. Everything works without this file.
"use strict";

(() => {
  const PLACES = {
    n: ["/", "Now"],
    j: ["/jobs", "Jobs"],
    d: ["/diagnoses", "Diagnoses"],
    o: ["/nodes", "Nodes"],
    r: ["/recovery", "Recovery"],
    u: ["/rules", "Rules"],
    a: ["/accuracy", "Accuracy"],
    e: ["/evaluations", "Evaluations"],
    s: ["/alert-routing", "Setup"],
  };
  const GO_MS = 1500;
  const KEYS = [
    ["Ctrl K, /", "Search everything"],
    ["j, k", "Next and previous row of a list"],
    ["Enter", "Open the row"],
    ["x", "Select the row, where several can be chosen"],
    ...Object.entries(PLACES).map(([key, [, name]]) => [`g ${key}`, name]),
    ["?", "These keys"],
  ];
  let dialog = null;
  let goes = 0;

  function make(name, ...children) {
    const part = document.createElement(name);
    part.append(...children);
    return part;
  }

  function show() {
    if (!dialog) {
      const rows = KEYS.map(([keys, what]) => make("tr", make("td", make("kbd", keys)), make("td", what)));
      const close = make("button", "Close");
      dialog = make("dialog", make("h2", "Keys"), make("table", make("tbody", ...rows)), close);
      dialog.className = "keyboard";
      dialog.setAttribute("aria-label", "Keys");
      close.onclick = () => dialog.close();
      document.body.append(dialog);
    }
    dialog.showModal();
  }

  const rows = () => [...document.querySelectorAll("main .list tbody tr, main .plain tbody tr")].filter((row) => row.querySelector("a") && row.checkVisibility());

  function move(by) {
    const all = rows();
    const at = all.findIndex((row) => row.contains(document.activeElement));
    const to = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by));
    const link = all[to] && (all[to].querySelector("a.type") || all[to].querySelector("a"));
    if (link) link.focus();
  }

  function select() {
    const row = document.activeElement.closest("tr");
    const pick = row && row.querySelector("input.pick");
    if (pick) pick.checked = !pick.checked;
  }

  addEventListener("keydown", (event) => {
    const typed = event.target instanceof Element && event.target.closest("input:not(.pick), textarea, select, dialog");
    const isTyped = typed && typed.checkVisibility(); // a dialog that was closed keeps the focus until the next frame
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyped) return;
    const isGoing = Date.now() - goes < GO_MS;
    goes = 0;
    if (isGoing && PLACES[event.key]) location.assign(PLACES[event.key][0]);
    else if (event.key === "g") goes = Date.now();
    else if (event.key === "?") show();
    else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
    else if (event.key === "x") select();
    else return;
    event.preventDefault();
  });
})();
