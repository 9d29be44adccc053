// A button beside a command copies it; where the browser refuses, it is selected to be copied by hand.
document.querySelectorAll(".command button").forEach((button) => {
  button.addEventListener("click", async () => {
    const code = button.previousElementSibling;
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = button.dataset.done;
    } catch {
      code.focus();
    }
  });
});
