// The data that the page was written with.
const read = (name) => JSON.parse(document.getElementById(`data-${name}`).textContent);
const ranks = read("ranks");
const figures = read("figures");
const byRank = new Map(ranks.places.map(([rank, label, state]) => [rank, { rank, label, state }]));

// Put values into a sentence of the page.
const fill = (sentence, values) => sentence.replace(/\{(\w+)\}/g, (_, name) => values[name]);

// Make an element; text only ever becomes a text node, never markup.
const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};
