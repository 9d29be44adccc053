// What the page was written with.
const read = (name) => JSON.parse(document.getElementById(`data-${name}`).textContent);
const ranks = read("ranks");
const figures = read("figures");
const byRank = new Map(ranks.places.map(([rank, label, state]) => [rank, { rank, label, state }]));

// A sentence of the page with its values put in.
const fill = (sentence, values) => sentence.replace(/\{(\w+)\}/g, (_, name) => values[name]);

// Text only ever becomes a text node.
const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};
