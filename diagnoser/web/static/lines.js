// The search works without this file. With it the answers follow one another by themselves, until the end or Cancel.
"use strict";

const rows = document.getElementById("rows");
const progress = document.getElementById("progress");
const cancel = document.getElementById("cancel");
let onward = document.getElementById("onward");

const number = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, "\u2009");

function tell(searched, matches, isRunning) {
  const share = Math.min(100, Math.round((100 * searched) / Math.max(progress.dataset.total, 1)));
  const state = isRunning ? ` (${share} %) …` : "";
  progress.textContent = `${number(matches)} ${matches === 1 ? "match" : "matches"} in ${number(searched)} lines${state}, newest first.`;
}

async function searchOn() {
  const stop = new AbortController();
  let searched = Number(progress.dataset.searched);
  let matches = Number(progress.dataset.matches);
  cancel.hidden = false;
  cancel.onclick = () => stop.abort();
  try {
    while (onward) {
      onward.hidden = true;
      tell(searched, matches, true);
      const answer = await fetch(onward.href, { headers: { Accept: "text/html" }, signal: stop.signal });
      if (!answer.ok) throw new Error(answer.statusText);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const state = page.getElementById("progress").dataset;
      searched += Number(state.searched);
      matches += Number(state.matches);
      if (!rows.querySelector("a.no")) rows.replaceChildren();
      rows.append(...page.querySelectorAll("#rows > li:not(.gap)"));
      const next = page.getElementById("onward");
      if (next) onward.href = next.href;
      else onward.remove();
      onward = next && onward;
    }
  } catch {
    onward.hidden = false; // cancelled, or the service is away: the link goes on from there
  }
  cancel.hidden = true;
  tell(searched, matches, false);
  const rest = document.getElementById("rest");
  if (!onward && rest && searched < Number(progress.dataset.total)) rest.hidden = false;
}
if (onward) searchOn();
