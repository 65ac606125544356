// Ctrl-K, or / where no field has the focus: the search over everything, as a dialog. The link works without this file.
"use strict";

(() => {
  const WAIT_MS = 150;
  const HEADINGS = { job: "Jobs", node: "Nodes", incident: "Incidents", line: "Lines of diagnoses", rule: "Rules" };
  const opener = document.getElementById("open-search");
  let dialog, field, results, status, waiting, asking;
  let shown = "";

  function make(name, values = {}, ...children) {
    const part = document.createElement(name);
    for (const [key, value] of Object.entries(values)) part.setAttribute(key, value);
    part.append(...children);
    return part;
  }

  function build() {
    field = make("input", {
      type: "search",
      maxlength: "200",
      placeholder: "Job, node, incident, words of a line, rule",
      "aria-label": "Search everything",
      role: "combobox",
      "aria-expanded": "false",
      "aria-autocomplete": "list",
      "aria-controls": "search-results",
      autocomplete: "off",
      spellcheck: "false",
    });
    results = make("div", { id: "search-results", role: "listbox", "aria-label": "Results" });
    status = make("p", { role: "status", class: "faint" });
    const close = make("button", { type: "button", "aria-label": "Close the search" }, "Esc");
    dialog = make("dialog", { id: "search", "aria-label": "Search" }, make("div", { class: "row" }, field, close));
    dialog.append(results, status);
    document.body.append(dialog);
    close.onclick = () => dialog.close();
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.onclose = () => asking && asking.abort();
    field.oninput = () => {
      clearTimeout(waiting);
      waiting = setTimeout(ask, WAIT_MS);
    };
    field.onkeydown = onKey;
    results.onmousemove = (event) => choose(event.target.closest("[role=option]"), false);
  }

  function open() {
    if (!dialog) build();
    if (!dialog.open) dialog.showModal();
    field.select();
    field.focus();
    tell("Enter opens, the arrow keys move, Esc closes; ? on a page shows all keys.");
  }

  function tell(text) {
    status.textContent = text;
  }

  async function ask() {
    if (asking) asking.abort();
    const q = field.value.trim();
    if (!q) return show([], q);
    asking = new AbortController();
    try {
      const answer = await fetch(`/api/v1/search?${new URLSearchParams({ q })}`, { signal: asking.signal });
      if (!answer.ok) return tell("The search failed. Try again in a moment.");
      show((await answer.json()).groups, q);
    } catch (error) {
      if (error.name !== "AbortError") tell("The service does not answer.");
    }
  }

  function show(groups, q) {
    shown = q;
    let count = 0;
    const parts = groups.map((group) => {
      const heading = `search-${group.kind}`;
      const title = make("div", { class: "heading", id: heading, role: "presentation" }, HEADINGS[group.kind]);
      const box = make("div", { role: "group", "aria-labelledby": heading }, title);
      for (const hit of group.hits) {
        const option = make("a", { role: "option", id: `search-hit-${count++}`, href: hit.url, tabindex: "-1" });
        option.setAttribute("aria-selected", "false");
        option.append(make("span", { class: "title" }, hit.title));
        if (hit.detail) option.append(make("span", { class: "detail" }, hit.detail));
        box.append(option);
      }
      return box;
    });
    results.replaceChildren(...parts);
    field.setAttribute("aria-expanded", String(count > 0));
    choose(results.querySelector("[role=option]"), false);
    tell(count ? `${count} ${count === 1 ? "hit" : "hits"}` : q ? "Nothing found." : "");
  }

  function choose(option, scrolls = true) {
    if (!option && results.querySelector("[role=option]")) return;
    for (const one of results.querySelectorAll("[aria-selected=true]")) one.setAttribute("aria-selected", "false");
    if (!option) return field.removeAttribute("aria-activedescendant");
    option.setAttribute("aria-selected", "true");
    field.setAttribute("aria-activedescendant", option.id);
    if (scrolls) option.scrollIntoView({ block: "nearest" });
  }

  function onKey(event) {
    const options = [...results.querySelectorAll("[role=option]")];
    const at = options.findIndex((option) => option.getAttribute("aria-selected") === "true");
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
    if (event.key === "Escape" && !event.isComposing) {
      event.preventDefault(); // a search field would clear its text first, and stay open
      dialog.close();
    } else if (to !== undefined && options.length) {
      event.preventDefault();
      choose(options[(to + options.length) % options.length]);
    } else if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      const q = field.value.trim();
      if (options[at] && q === shown) options[at].click();
      else if (q) location.assign(`/search?${new URLSearchParams({ q })}`);
    }
  }

  addEventListener("keydown", (event) => {
    const isShortcut = (event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k";
    const typed = event.target instanceof Element && event.target.closest("input, textarea, select, dialog");
    const isTyped = typed && typed.checkVisibility(); // a dialog that was closed keeps the focus until the next frame
    const isSlash = event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !isTyped;
    if (event.defaultPrevented || !(isShortcut || (isSlash && !document.querySelector('[aria-keyshortcuts="/"]')))) return;
    event.preventDefault();
    open();
  });
  opener.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a new tab
    event.preventDefault();
    open();
  });
})();
