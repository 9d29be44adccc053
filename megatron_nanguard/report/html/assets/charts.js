// Charts: data and layout come with the page, colours from its theme, drawing from plotly.js.
const COLOURED = new Set(["color", "bgcolor", "arrowcolor", "fillcolor"]);

const withColours = (value, key) => {
  if (key === "colorscale") return value.map(([place, name]) => [place, colour(name)]);
  if (COLOURED.has(key)) return Array.isArray(value) ? value.map(colour) : colour(value);
  if (Array.isArray(value)) return value.map((each) => withColours(each));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, withColours(each, name)]));
  }
  return value;
};

const axis = (given) => ({
  gridcolor: colour("line"),
  linecolor: colour("line"),
  zeroline: false,
  fixedrange: true,
  automargin: true,
  ...given,
});

const draw = (figure, width) => {
  const holder = document.getElementById(`chart-${figure.name}`);
  const layout = withColours(figure.layout);
  for (const name of ["xaxis", "yaxis", "yaxis2"]) if (layout[name]) layout[name] = axis(layout[name]);
  const drawn = Plotly.react(
    holder,
    withColours(figure.traces),
    {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("ink") },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { align: "left", namelength: -1 },
      dragmode: false,
      ...layout,
      margin: { t: 20, r: 10, b: 40, l: 10, ...layout.margin },
      width: Math.max(figure.width, width ?? holder.parentElement.clientWidth),
    },
    { displayModeBar: false, scrollZoom: false, doubleClick: false },
  );
  if (holder.dataset.isWired) return drawn;
  holder.dataset.isWired = "yes";
  holder.on("plotly_click", ({ points }) => {
    const rank = points[0].customdata?.[0];
    if (typeof rank === "number" && byRank.has(rank)) chooseRank(rank);
  });
  return drawn;
};

const main = document.getElementById("main");
let drawnIn;
const drawAll = (width) => {
  drawnIn = main.clientWidth;
  return Promise.all(figures.map((figure) => draw(figure, width)));
};

const unpackLibrary = async () => {
  const packed = Uint8Array.from(atob(document.getElementById("data-library").textContent), (each) => each.charCodeAt(0));
  const script = document.createElement("script");
  script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  document.head.append(script);
};

if (figures.length) {
  unpackLibrary().then(async () => {
    await drawAll();
    root.dataset.charts = "drawn";
    themeListeners.push(() => drawAll());
    let waiting;
    // Not only the window changes the width: charts make the page longer, and its scroll bar narrows it.
    new ResizeObserver(() => {
      if (main.clientWidth === drawnIn) return;
      clearTimeout(waiting);
      waiting = setTimeout(drawAll, 150);
    }).observe(main);
  });
}
