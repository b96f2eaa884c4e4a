// The pages work without this: it keeps choices, filters cases, and switches light and dark.
"use strict";

const kept = {
  get(key) { try { return localStorage.getItem("rosetta." + key); } catch { return null; } },
  set(key, value) { try { localStorage.setItem("rosetta." + key, value); } catch { /* private window */ } },
};

function useTheme(theme) {
  document.documentElement.style.colorScheme = theme ?? "";
}
useTheme(kept.get("theme"));

function setUpTheme() {
  const button = document.querySelector(".theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    const now = kept.get("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    const next = now === "dark" ? "light" : "dark";
    kept.set("theme", next);
    useTheme(next);
  });
}

// Which columns are shown: from the address (?langs=rust,julia) when it says so, else as it was left.
function setUpChoices() {
  const langs = new URLSearchParams(location.search).get("langs")?.split(",");
  for (const box of document.querySelectorAll("input[data-keep]")) {
    const key = box.dataset.keep;
    const was = kept.get(key);
    if (langs && key.startsWith("lang-")) box.checked = langs.includes(key.slice("lang-".length));
    else if (was !== null) box.checked = was === "1";
    box.addEventListener("change", () => kept.set(key, box.checked ? "1" : "0"));
  }
}

// A link to a line opens the file that holds it.
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const file = target && target.closest("details");
  if (target && target.tagName === "DETAILS") target.open = true;
  if (file && !file.open) file.open = true;
  if (file) target.scrollIntoView({ block: "center" });
}

function setUpFilter() {
  const field = document.querySelector("#filter");
  const only = document.querySelector("#only-bad");
  if (!field) return;
  const rows = [...document.querySelectorAll(".cases tbody tr")];
  const count = document.querySelector("#shown");
  const apply = () => {
    const words = field.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !words.every((w) => row.dataset.text.includes(w)) || (only.checked && !("bad" in row.dataset));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${rows.length}`;
  };
  field.addEventListener("input", apply);
  only.addEventListener("change", apply);
  apply();
}

addEventListener("DOMContentLoaded", () => {
  setUpTheme();
  setUpChoices();
  setUpFilter();
  openTarget();
});
addEventListener("hashchange", openTarget);
