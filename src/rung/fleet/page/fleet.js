// The page of a fleet: its nodes, what they compute and how fast, what waits, and what failed with its explanation.
import { KeyDialog } from "../page/dialogs.js";
import { call, useKey } from "../page/server.js";
import { html, render, useEffect, useState } from "../page/ui.js";

/** Milliseconds between two looks at the fleet. */
const LOOK = 2000;

const number = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
const gigabytes = (bytes) => `${(bytes / 1e9).toFixed(1)} GB`;
const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

/** Return the measured speed of one answer in words, with the predicted one where both are known. */
function withPredicted({ decode, predicted }) {
  const measured = `${number(decode)} tokens/s alone`;
  if (!predicted) return measured;
  return `${measured}, predicted ${number(predicted)} (${Math.round((100 * decode) / predicted)}%)`;
}

function Speed({ model: { rates, speed } }) {
  if (!rates) return null;
  return html`<dl>
    <dt>One answer</dt><dd>${withPredicted(rates)}</dd>
    <dt>All together</dt><dd>${number(rates.decode_sum)} tokens/s measured</dd>
    <dt>Prompts</dt><dd>${number(rates.prefill)} tokens/s measured</dd>
    <dt>Now</dt><dd class=${speed < 0.9 ? "slow" : ""}>${Math.round(100 * speed)}% of what was measured</dd>
  </dl>`;
}

function Model({ model }) {
  const { model: name, state, format, memory, context, slots, running, layers, steps } = model;
  const facts = [
    layers && `${layers} of it`,
    format,
    memory > 0 && gigabytes(memory),
    context > 0 && `context ${number(context)}`,
  ];
  return html`<li>
    <p><strong>${name}</strong> <span class=${`state ${state}`}>${state}</span></p>
    <p class="quiet">${facts.filter(Boolean).join(" · ")}</p>
    ${slots > 0 &&
    html`<p class="work">
      <meter min="0" max=${slots} value=${running} aria-label=${`${running} of ${slots} answers`}></meter>
      <span>${running} of ${plural(slots, "answer")}</span>
    </p>`}
    <${Speed} model=${model} />
    ${steps.length > 0 &&
    html`<details>
      <summary class="slow">${plural(steps.length, "step")} down</summary>
      <ul class="steps">${steps.map((step) => html`<li>${step}</li>`)}</ul>
    </details>`}
  </li>`;
}

function Node({ node: { report, state, models } }) {
  return html`<section class="node" aria-label=${`Node ${report.name}`}>
    <h3>${report.name} <span class=${`state ${state}`}>${state}</span></h3>
    <p class="quiet">${report.address} · ${report.device_class || "computes nothing"} · ${plural(report.cores, "core")}</p>
    ${report.devices.map(({ name, budget }) => html`<p class="quiet">${name}, ${gigabytes(budget)} free</p>`)}
    <ul class="models">${models.map((model) => html`<${Model} key=${model.model} model=${model} />`)}</ul>
  </section>`;
}

function Failure({ failure: { node, model, time, cause, log } }) {
  const when = new Date(1000 * time);
  return html`<details class="failure">
    <summary>
      <time datetime=${when.toISOString()}>${when.toLocaleTimeString()}</time>
      <strong> ${node}</strong>${model && `, ${model}`}: ${cause}
    </summary>
    <p class="answer">${log.answer || "It is being explained."}</p>
    <ol>${log.fixes.map(([text, command]) => html`<li>${text}${command && html`<br /><code>${command}</code>`}</li>`)}</ol>
    ${log.log ? html`<pre tabindex="0" aria-label=${`Log of ${node}`}>${log.log}</pre>` : html`<p class="quiet">It left no log.</p>`}
  </details>`;
}

/** Whether a model lies on several nodes, in the order of its layers: [name, words]. */
function dividedOf(nodes) {
  const found = new Map();
  for (const { report, models } of nodes)
    for (const { model, layers } of models)
      if (layers) found.set(model, [...(found.get(model) ?? []), [Number(layers.split(" ")[1]), `${layers} on ${report.name}`]]);
  return [...found].map(([model, parts]) => [model, parts.sort(([one], [other]) => one - other).map(([, words]) => words)]);
}

function Summary({ fleet: { url, nodes, waiting, models } }) {
  const up = nodes.filter(({ state }) => state === "up").length;
  const running = nodes.flatMap((node) => node.models).reduce((sum, model) => sum + model.running, 0);
  const waits = models.filter((model) => model.waiting > 0).map(({ name, waiting }) => `${name} ${number(waiting)}`);
  return html`<section aria-label="All together">
    <p>${up} of ${plural(nodes.length, "node")} up, ${plural(running, "answer")} computed, ${plural(waiting, "request")} in the queue</p>
    ${waits.length > 0 && html`<p class="quiet">In the queue: ${waits.join(", ")}</p>`}
    ${dividedOf(nodes).map(([model, parts]) => html`<p>${model} is divided: ${parts.join(", ")}</p>`)}
    <p class="quiet">Clients call ${url}/v1 · <a href="./">Chat</a></p>
  </section>`;
}

/** The state of the fleet, read again and again: {fleet, trouble}; `count` begins anew. */
function useFleet(count) {
  const [found, setFound] = useState({ fleet: null, trouble: null });
  useEffect(() => {
    let timer = 0;
    let isOver = false;
    const look = async () => {
      try {
        const fleet = await (await call("fleet/status")).json();
        if (!isOver) setFound({ fleet, trouble: null });
      } catch (trouble) {
        if (!isOver) setFound(({ fleet }) => ({ fleet, trouble }));
        if (trouble.status === 401) return;
      }
      if (!isOver) timer = setTimeout(look, LOOK);
    };
    look();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [count]);
  return found;
}

function Trouble({ trouble }) {
  if (!trouble || trouble.status === 401) return null;
  const advice = trouble.status ? trouble.advice : "Is “rung fleet up” still running? What stands here is as it was before.";
  return html`<div class="banner bad" role="status"><p><strong>${trouble.title}</strong> ${advice}</p></div>`;
}

function App() {
  const [count, setCount] = useState(0);
  const { fleet, trouble } = useFleet(count);
  const enter = (key, isRemembered) => {
    useKey(key, isRemembered);
    setCount(count + 1);
  };
  const again = () => setCount(count + 1);
  return html`<${Trouble} trouble=${trouble} />
    <main class="fleet">
      <h1>Fleet</h1>
      ${fleet && html`<${Summary} fleet=${fleet} />`}
      ${fleet &&
      html`<h2>Nodes</h2>
        <div class="nodes">${fleet.nodes.map((node) => html`<${Node} key=${node.report.name} node=${node} />`)}</div>
        <h2>What failed</h2>
        ${fleet.failures.length === 0 && html`<p class="quiet">Nothing since the head began.</p>`}
        ${fleet.failures.map((failure) => html`<${Failure} key=${`${failure.time} ${failure.node}`} failure=${failure} />`)}`}
    </main>
    ${trouble?.status === 401 && html`<${KeyDialog} key=${count} onClose=${again} onKey=${enter} />`}`;
}

render(html`<${App} />`, document.getElementById("app"));
