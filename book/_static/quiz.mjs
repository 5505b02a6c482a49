// Arrow keys check a radio button as they reach it, which would open every reply on the way to an answer.
// Here they only move; the space bar answers. Without this script the quiz works with the browser's own keys.
const STEP = {ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1};

document.addEventListener("keydown", (event) => {
  const step = STEP[event.key];
  if (!step || !event.target.matches(".quiz-choice input")) return;
  event.preventDefault();
  const choices = [...event.target.closest(".quiz").querySelectorAll(".quiz-choice input")];
  choices[(choices.indexOf(event.target) + step + choices.length) % choices.length].focus();
});
