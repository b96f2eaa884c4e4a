/** The page: a shape from the form, bars from the worker. */

import { bestBinary } from "../src/index.ts";
import type { Measured } from "./measure.ts";
import { fault, PRESETS, readShape, type Shape, toHash } from "./shape.ts";

type Message = { measured: Measured } | { done: true } | { failed: string };

const $ = <E extends HTMLElement>(id: string): E => document.getElementById(id) as E;
const form = $<HTMLFormElement>("form");
const [rows, status, run] = [$("rows"), $("status"), $("run")];

const cores = navigator.hardwareConcurrency || 2;
const first = Object.values(PRESETS)[0]!;
const ordinary: Shape = { ...first, threads: Math.min(cores, 64) };

let worker: Worker | null = null;
let results: Measured[] = [];

function show(shape: Shape): void {
  for (const [name, value] of Object.entries(shape)) {
    const input = form.elements.namedItem(name) as HTMLInputElement;
    if (typeof value === "boolean") input.checked = value;
    else input.value = String(value);
  }
  markPreset(shape);
}

function asked(): Shape {
  const fields = new URLSearchParams();
  for (const [name, value] of new FormData(form)) fields.set(name, String(value));
  return readShape(fields, { ...ordinary, causal: false });
}

function markPreset({ threads, ...shape }: Shape): void {
  for (const button of $("presets").querySelectorAll("button")) {
    const preset = PRESETS[button.textContent!]!;
    const same = Object.entries(preset).every(([name, value]) => shape[name as keyof typeof shape] === value);
    button.setAttribute("aria-pressed", String(same));
  }
}

/** Ends what runs, and measures anew. */
function start(shape: Shape): void {
  stop();
  const wrong = fault(shape);
  status.classList.toggle("bad", wrong !== null);
  status.textContent = wrong ?? "measuring …";
  if (wrong !== null) return;
  results = [];
  draw();
  history.replaceState(null, "", `#${toHash(shape)}`);
  run.textContent = "Stop";
  worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  worker.onmessage = ({ data }: MessageEvent<Message>) => receive(shape, data);
  worker.onerror = ({ message }) => receive(shape, { failed: message || "the worker did not start" });
  worker.postMessage(shape);
}

function stop(): void {
  worker?.terminate();
  worker = null;
  run.textContent = "Measure";
}

function receive(shape: Shape, message: Message): void {
  if ("measured" in message) {
    results.push(message.measured);
    status.textContent = `measured ${message.measured.rung}; going on …`;
    draw();
    return;
  }
  stop();
  if ("failed" in message) {
    status.classList.add("bad");
    status.textContent = message.failed;
    return;
  }
  const best = results.reduce((a, b) => (b.milliseconds < a.milliseconds ? b : a));
  const tokens = shape.queries === 1 ? `: one token in ${time(best.milliseconds)}` : "";
  const right = results.every(({ error }) => error <= 1);
  status.classList.toggle("bad", !right);
  status.textContent = right
    ? `done: ${times(best)} times as fast as naive with ${best.rung}${tokens}; all results agree with float64`
    : "done, and a result is wrong: please tell us which browser this is";
  document.body.dataset.state = right ? "right" : "wrong";
}

function draw(): void {
  delete document.body.dataset.state;
  const most = Math.max(...results.map(({ gflops }) => gflops));
  rows.replaceChildren(...results.map((measured) => row(measured, measured.gflops / most)));
}

function row(measured: Measured, length: number): HTMLTableRowElement {
  const { rung, milliseconds, gflops, error } = measured;
  const line = document.createElement("tr");
  line.className = length === 1 ? "fast" : "";
  const name = document.createElement("th");
  name.scope = "row";
  name.textContent = rung;
  const bar = document.createElement("div");
  bar.className = "bar";
  bar.style.setProperty("--share", String(length));
  bar.append(document.createElement("i"), gflops.toPrecision(3));
  const cell = line.insertCell();
  cell.append(bar);
  line.prepend(name);
  const add = (text: string) => {
    const cell = line.insertCell();
    cell.className = "num";
    cell.textContent = text;
    return cell;
  };
  add(time(milliseconds));
  add(times(measured));
  const verdict = add(error <= 1 ? "✓" : "✗");
  verdict.classList.add(error <= 1 ? "yes" : "no");
  const share = document.createElement("span");
  share.textContent = ` ${percent(error)}`;
  verdict.append(share);
  return line;
}

/** How many times as fast as naive. */
function times({ milliseconds }: Measured): string {
  const ratio = results[0]!.milliseconds / milliseconds;
  return ratio >= 10 ? ratio.toFixed(0) : ratio.toFixed(1);
}

function percent(share: number): string {
  return share > 0 && share < 0.001 ? "< 0.1 %" : `${(100 * share).toPrecision(2)} %`;
}

function time(ms: number): string {
  if (ms >= 1000) return `${(ms / 1000).toPrecision(3)} s`;
  return ms >= 1 ? `${ms.toPrecision(3)} ms` : `${(1000 * ms).toPrecision(3)} µs`;
}

for (const [name, preset] of Object.entries(PRESETS)) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = name;
  button.onclick = () => {
    const shape = { ...asked(), ...preset };
    show(shape);
    start(shape);
  };
  $("presets").append(button);
}
form.onsubmit = (event) => {
  event.preventDefault();
  if (worker === null) start(asked());
  else {
    stop();
    status.textContent = "stopped";
  }
};
form.oninput = () => markPreset(asked());

const notes = [
  `${cores} processors`,
  `WebAssembly ${bestBinary() === "relaxed" ? "with" : "without"} relaxed SIMD`,
  crossOriginIsolated
    ? "this page may share memory between threads"
    : "no threads: this page was not sent with the two headers below",
];
$("notes").textContent = `This browser: ${notes.join("; ")}.`;
const here = readShape(new URLSearchParams(location.hash.slice(1)), ordinary);
show(here);
start(here);
