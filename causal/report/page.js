"use strict";
// Sorting and filtering of what is already on the page; without scripts everything is simply shown.
(() => {
  const search = document.getElementById("search");
  const verdict = document.getElementById("verdict");
  const point = document.getElementById("point");
  const order = document.getElementById("order");
  const none = document.getElementById("none");
  const body = document.querySelector("#overview tbody");
  const cards = document.querySelector(".cards");
  if (!body) return; // no experiments
  const heads = [...document.querySelectorAll("#overview th[data-key]")];
  const numeric = new Set(["rank", "share", "gain", "best", "low", "experiments"]);
  let direction = 1;

  const compare = (key) => (a, b) => {
    const x = a.dataset[key], y = b.dataset[key];
    if (x === "" || y === "") return (x === "") - (y === ""); // what is not known comes last, either way
    const by = numeric.has(key) ? Number(x) - Number(y) : x.localeCompare(y);
    return direction * by || Number(a.dataset.rank) - Number(b.dataset.rank);
  };

  const sort = (key) => {
    for (const holder of [body, cards]) holder.append(...[...holder.children].sort(compare(key)));
    for (const head of heads) {
      head.ariaSort = head.dataset.key !== key ? "none" : direction > 0 ? "ascending" : "descending";
    }
  };

  const filter = () => {
    const wanted = search.value.trim().toLowerCase();
    let shown = 0;
    for (const item of [...body.children, ...cards.children]) {
      const fits = item.dataset.region.toLowerCase().includes(wanted)
        && (!verdict.value || item.dataset.verdict === verdict.value)
        && (!point.value || item.dataset.point === point.value);
      item.hidden = !fits;
      shown += fits;
    }
    none.hidden = shown > 0;
  };

  const descending = new Set(["share", "gain", "best", "low", "experiments"]);
  const choose = (key, flip) => {
    const same = flip && order.value === key;
    direction = same ? -direction : descending.has(key) ? -1 : 1;
    order.value = key;
    sort(key);
  };

  order.addEventListener("change", () => choose(order.value, false));
  for (const head of heads) {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => choose(head.dataset.key, true));
  }
  for (const field of [search, verdict, point]) field.addEventListener("input", filter);
  document.querySelector(".controls").hidden = false;
  choose("rank", false);
})();
