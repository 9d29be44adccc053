// The parallel grid: one tab stop, arrow keys inside, and a panel with the facts of the chosen rank.
const panel = document.getElementById("chosen-rank");
const cells = [...document.querySelectorAll("#rank-grid .cell")];
const lines = [...document.querySelectorAll("#rank-grid tbody tr")].map((row) => [...row.querySelectorAll(".cell")]);
const MOST_BUTTONS = 2048;

const ranksOf = (cell) =>
  cell.dataset.ranks.split(",").filter(Boolean).flatMap((run) => {
    const [first, last = first] = run.split("-").map(Number);
    return Array.from({ length: last - first + 1 }, (_, offset) => first + offset);
  });

const factsOf = (rank) => {
  const { label, state } = byRank.get(rank);
  const facts = ranks.facts[rank] ?? [
    [ranks.texts.state, ranks.words[state]],
    [ranks.texts.file, ranks.texts.elsewhere],
  ];
  return [
    element("h3", {}, fill(ranks.texts.rank, { rank, place: label })),
    element("dl", {}, ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))),
  ];
};

const showRank = (rank) => panel.replaceChildren(...factsOf(rank));

const showMany = (members) => {
  const below = element("div");
  const buttons = members.slice(0, MOST_BUTTONS).map((rank) => {
    const { label, state } = byRank.get(rank);
    const words = fill(ranks.texts.cell, { rank, place: label, state: ranks.words[state] });
    const button = element("button", { type: "button", class: `cell state-${state}`, title: words, "aria-label": words }, String(rank));
    button.addEventListener("click", () => below.replaceChildren(...factsOf(rank)));
    return button;
  });
  const order = ranks.order;
  buttons.sort((a, b) => order.findIndex((state) => a.className.endsWith(state)) - order.findIndex((state) => b.className.endsWith(state)));
  below.replaceChildren(...factsOf(Number(buttons[0].textContent)));
  panel.replaceChildren(element("h3", {}, fill(ranks.texts.many, { number: members.length })), element("div", { class: "cells" }, ...buttons), below);
};

const choose = (cell) => {
  cells.forEach((each) => {
    each.tabIndex = each === cell ? 0 : -1;
    each.removeAttribute("aria-current");
  });
  cell.setAttribute("aria-current", "true");
  const members = ranksOf(cell);
  if (members.length === 1) showRank(members[0]);
  else showMany(members);
};

const chooseRank = (rank) => {
  const cell = cells.find((each) => ranksOf(each).includes(rank));
  if (!cell) return;
  choose(cell);
  if (cell.dataset.ranks !== String(rank)) showRank(rank);
  panel.scrollIntoView({ block: "center" });
};

const MOVES = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
const moveFrom = (cell, [down, right]) => {
  const line = lines.findIndex((row) => row.includes(cell));
  const column = lines[line].indexOf(cell);
  const target = lines[line + down]?.[column + right];
  if (!target) return;
  cell.tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
};

cells.forEach((cell) => {
  cell.addEventListener("click", () => choose(cell));
  cell.addEventListener("keydown", (event) => {
    if (!(event.key in MOVES)) return;
    event.preventDefault();
    moveFrom(cell, MOVES[event.key]);
  });
});
const worst = ranks.order.map((state) => cells.find((cell) => cell.classList.contains(`state-${state}`))).find(Boolean);
if (worst) choose(worst);
