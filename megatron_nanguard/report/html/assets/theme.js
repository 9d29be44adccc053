// Light and dark: the choice of the system until the button is pressed.
const root = document.documentElement;
const themeButton = document.getElementById("theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
const themeListeners = [];

const nameButton = () => {
  themeButton.textContent = isDark() ? themeButton.dataset.toLight : themeButton.dataset.toDark;
};
const themeChanged = () => {
  nameButton();
  themeListeners.forEach((listener) => listener());
};
themeButton.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  themeChanged();
});
// The page is printed in the light theme.
let themeOnScreen;
addEventListener("beforeprint", () => {
  themeOnScreen = root.dataset.theme;
  root.dataset.theme = "light";
  themeChanged();
});
addEventListener("afterprint", () => {
  if (themeOnScreen) root.dataset.theme = themeOnScreen;
  else delete root.dataset.theme;
  themeChanged();
});
prefersDark.addEventListener("change", themeChanged);
nameButton();

// A colour of the style sheet in the current theme.
const probe = element("span", { hidden: "" });
document.body.append(probe);
const colour = (name) => {
  probe.style.color = "";
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
};
