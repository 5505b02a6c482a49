// What can be moved on the pages. The first functions are the mathematics, tested against the package's own;
// below them, sliders and bars. No library: HTML inputs, which keyboards and phones know, and a little SVG.

/** GAE with gamma 1: A_t = delta_t + lambda A_{t+1}. */
export function gae(deltas, lambda) {
  const advantages = [];
  let next = 0;
  for (const delta of [...deltas].reverse()) advantages.unshift((next = delta + lambda * next));
  return advantages;
}

/** The reference tilted by exp(r / beta): log-probabilities, and log Z. */
export function tilt(logp, reward, beta) {
  const best = Math.max(...reward);
  const tilted = logp.map((l, i) => l + (reward[i] - best) / beta);
  const top = Math.max(...tilted);
  const logSum = top + Math.log(tilted.reduce((sum, x) => sum + Math.exp(x - top), 0));
  return {logp: tilted.map((x) => x - logSum), logZ: logSum + best / beta};
}

export const mean = (logp, values) => logp.reduce((sum, l, i) => sum + Math.exp(l) * values[i], 0);
export const kl = (logp, logpRef) =>
  logp.reduce((sum, l, i) => (Math.exp(l) > 0 ? sum + Math.exp(l) * (l - logpRef[i]) : sum), 0);

// --- Parts ---

const el = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const draw = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

let count = 0;
/** A labelled range input; `show` turns its number into what is read. */
function slider(label, {min, max, step, value}, show, changed) {
  const id = `widget-input-${(count += 1)}`;
  const input = el("input", {id, type: "range", min, max, step, value});
  const shown = el("output", {for: id});
  const update = () => {
    shown.textContent = show(Number(input.value));
    input.setAttribute("aria-valuetext", shown.textContent);
  };
  input.addEventListener("input", () => { update(); changed(); });
  update();
  return {row: el("div", {class: "widget-slider"}, el("label", {for: id}, label), input, shown),
          get value() { return Number(input.value); }};
}

const caption = (words) => el("p", {class: "widget-caption"}, words);

/** An empty drawing of this size that scales with the page. */
const canvas = (width, height) => draw("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", class: "widget-drawing"});

/** Bars up or down from a line, `high` being the largest value that fits; `marked` says which are hatched. */
function bars(svg, values, {x, y, width, height, high, marked = () => false}) {
  const step = width / values.length;
  values.forEach((value, i) => {
    const tall = (Math.min(Math.abs(value), high) / high) * height;
    svg.append(draw("rect", {
      x: x + i * step + step * 0.12, y: value >= 0 ? y - tall : y, width: step * 0.76, height: Math.max(tall, 0.5),
      class: marked(i) ? "widget-bar marked" : "widget-bar",
    }));
  });
  svg.append(draw("line", {x1: x, x2: x + width, y1: y, y2: y, class: "widget-line"}));
}

function text(svg, words, x, y, anchor = "start") {
  const made = draw("text", {x, y, "text-anchor": anchor});
  made.textContent = words;
  svg.append(made);
}

/** A curve through points, scaled to the box, and a dot at one of them. */
function curve(svg, points, now, {x, y, width, height, xHigh, yHigh}, kind) {
  const place = ([a, b]) => [x + (a / xHigh) * width, y - (b / yHigh) * height];
  svg.append(draw("polyline", {points: points.map((p) => place(p).join(",")).join(" "), class: `widget-curve ${kind}`}));
  const [cx, cy] = place(now);
  svg.append(draw("circle", {cx, cy, r: 5, class: `widget-dot ${kind}`}));
}

const spread = (low, high, count) => Array.from({length: count}, (_, i) => low * (high / low) ** (i / (count - 1)));
const number = (x, digits = 2) => (Math.abs(x) < 0.5 * 10 ** -digits ? 0 : x).toFixed(digits);

// --- Widgets: each is given its element, its numbers and a place for what it says ---

const WIDGETS = {
  credit(box, {deltas}, said) {
    const svg = canvas(600, 200);
    const inputs = deltas.map((value, t) =>
      slider(`delta of token ${t + 1}`, {min: -1, max: 1, step: 0.05, value}, (x) => number(x), () => show()));
    const lambda = slider("lambda", {min: 0, max: 1, step: 0.05, value: 0.5}, (x) => number(x), () => show());
    const show = () => {
      const d = inputs.map((input) => input.value);
      const a = gae(d, lambda.value);
      const weights = d.map((_, l) => lambda.value ** l);
      svg.replaceChildren();
      bars(svg, d, {x: 0, y: 80, width: 280, height: 80, high: 2, marked: () => true});
      bars(svg, a, {x: 310, y: 80, width: 280, height: 80, high: 2});
      d.forEach((value, t) => {
        text(svg, number(value), 280 * (t + 0.5) / d.length, 190, "middle");
        text(svg, number(a[t]), 310 + 280 * (t + 0.5) / d.length, 190, "middle");
      });
      svg.setAttribute("aria-label", `deltas ${d.map((x) => number(x)).join(", ")}; advantages ${a.map((x) => number(x)).join(", ")}`);
      said(`The first token's advantage, ${number(a[0])}, weights the deltas with ${weights.map((w) => number(w)).join(", ")}.`);
    };
    box.append(...inputs.map((input) => input.row), lambda.row,
      caption("Filled: the delta of each token. Open: its advantage."), svg);
    show();
  },

  frontier(box, {logp, reward}, said) {
    const svg = canvas(600, 130), plane = canvas(600, 150);
    const at = (beta) => {
      const {logp: star, logZ} = tilt(logp, reward, beta);
      return {star, logZ, earned: mean(star, reward), far: kl(star, logp)};
    };
    const path = spread(20, 0.02, 80).map((beta) => { const {earned, far} = at(beta); return [far, earned]; });
    const price = slider("beta, the price of a nat", {min: -2, max: 1, step: 0.05, value: -0.3},
      (x) => number(10 ** x, 3), () => show());
    const show = () => {
      const beta = 10 ** price.value;
      const {star, logZ, earned, far} = at(beta);
      svg.replaceChildren();
      plane.replaceChildren();
      bars(svg, star.map(Math.exp), {x: 0, y: 125, width: 600, height: 120, high: 0.3, marked: (i) => reward[i] > 0});
      curve(plane, path, [far, earned], {x: 6, y: 142, width: 584, height: 135, xHigh: 2.6, yHigh: 1}, "first");
      plane.append(draw("line", {x1: 0, x2: 600, y1: 142, y2: 142, class: "widget-line"}));
      svg.setAttribute("aria-label", `At beta ${number(beta, 3)} the optimum earns ${number(earned, 3)} at ${number(far, 3)} nats.`);
      plane.setAttribute("aria-label", `A rising curve of expected reward over KL; the dot stands at ${number(far)} nats, ${number(earned)}.`);
      said(`The optimum earns ${number(earned, 3)}, ${number(far, 3)} nats from the reference; its objective is beta log Z = ${number(beta * logZ, 3)}.`);
    };
    box.append(price.row, caption("Probability of the 64 responses, rewarded ones filled:"), svg,
      caption("Expected reward (up) against KL to the reference (right), for all prices:"), plane);
    show();
  },

  flattery(box, {texts, logp, reward, truth}, said) {
    const svg = canvas(600, 140);
    const answers = texts.map((words) => {
      const bar = el("span", {class: "widget-share"}), share = el("span");
      return {bar, share, row: el("li", {}, el("span", {}, words), el("span", {class: "widget-track"}, bar), share)};
    });
    const at = (beta) => {
      const {logp: star} = tilt(logp, reward, beta);
      return {star, proxy: mean(star, reward), real: mean(star, truth), far: kl(star, logp)};
    };
    const all = spread(20, 0.03, 80).map(at);
    const price = slider("beta, the price of a nat", {min: -1.5, max: 1, step: 0.05, value: 1},
      (x) => number(10 ** x, 3), () => show());
    const show = () => {
      const {star, proxy, real, far} = at(10 ** price.value);
      svg.replaceChildren();
      answers.forEach(({bar, share}, i) => {
        bar.style.width = `${100 * Math.exp(star[i])}%`;
        share.textContent = number(Math.exp(star[i]));
      });
      const frame = {x: 6, y: 132, width: 584, height: 122, xHigh: 4, yHigh: 1.7};
      curve(svg, all.map((one) => [one.far, one.proxy]), [far, proxy], frame, "first");
      curve(svg, all.map((one) => [one.far, one.real]), [far, real], frame, "second");
      svg.append(draw("line", {x1: 0, x2: 600, y1: 132, y2: 132, class: "widget-line"}));
      svg.setAttribute("aria-label", `Two curves over KL. The dots stand at ${number(far)} nats: reward model ${number(proxy)}, true quality ${number(real)}.`);
      said(`The reward model says ${number(proxy)}, the truth is ${number(real)}, at ${number(far)} nats from the reference.`);
    };
    box.append(price.row, el("ul", {class: "widget-answers"}, ...answers.map((answer) => answer.row)),
      caption("Solid: the reward model's score. Dashed: the true quality. To the right: KL to the reference."), svg);
    show();
  },
};

for (const box of document.querySelectorAll("[data-widget]")) {
  const line = el("p", {class: "widget-said", role: "status"});
  const live = el("div", {class: "widget-live"});
  box.prepend(live);
  WIDGETS[box.dataset.widget](live, JSON.parse(box.dataset.values), (words) => { line.textContent = words; });
  live.append(line);
}
