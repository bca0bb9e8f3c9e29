// Where the page is looked from: a camera of the scene (#camera=I), or freely, by mouse, fingers and keys.
"use strict";

const said = document.getElementById("said"), list = document.getElementById("cameras");
const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
const plus = (a, b, times = 1) => a.map((value, axis) => value + times * b[axis]);
const unit = (a) => a.map((value) => value / (Math.hypot(...a) || 1));
const row = (pose, which) => pose.slice(4 * which, 4 * which + 3);

function eyeOf(pose) {
  const shift = [pose[3], pose[7], pose[11]];
  return [0, 1, 2].map((axis) => -(pose[axis] * shift[0] + pose[4 + axis] * shift[1] + pose[8 + axis] * shift[2]));
}

function looking(eye, target) {
  const ahead = unit(plus(target, eye, -1)), right = unit(cross(ahead, scene.up)), down = cross(ahead, right);
  return [right, down, ahead].flatMap((axis) => [...axis, -dot(axis, eye)]);
}

const free = { eye: [0, 0, 0], target: [0, 0, 1] };
let fixed = null, dirty = true;

function startFrom(pose) {  // upright, turning around what lies before it
  const eye = eyeOf(pose), ahead = row(pose, 2), way = plus(scene.center, eye, -1);
  const far = dot(way, ahead);
  free.eye = eye;
  free.target = plus(eye, ahead, far > 0 ? far : Math.hypot(...way) || 1);
}

function camera() {
  if (fixed) return fixed;
  const sharp = Math.min(devicePixelRatio || 1, 2), start = scene.start;
  const width = Math.max(1, Math.round(innerWidth * sharp)), height = Math.max(1, Math.round(innerHeight * sharp));
  const focal = start.fy * Math.min(width / start.width, height / start.height);
  return { pose: looking(free.eye, free.target), width, height, fx: focal, fy: focal, cx: width / 2, cy: height / 2 };
}

function choose() {
  const asked = /^#camera=(\d+)$/.exec(location.hash), next = asked ? scene.cameras[Number(asked[1])] : undefined;
  if (fixed && !next) startFrom(fixed.pose);
  fixed = next || null;
  list.value = fixed ? asked[1] : "";
  document.body.className = fixed ? "fixed" : "";
  canvas.style.width = fixed ? `${fixed.width}px` : "100vw";
  canvas.style.height = fixed ? `${fixed.height}px` : "100vh";
  delete document.documentElement.dataset.ready;
  dirty = true;
}

function leave() { if (fixed) location.hash = ""; }

function turn(across, down) {
  const way = plus(free.eye, free.target, -1), far = Math.hypot(...way);
  const height = Math.asin(Math.max(-1, Math.min(1, dot(way, scene.up) / far)));
  const level = unit(plus(way, scene.up, -dot(way, scene.up))), side = cross(scene.up, level);
  const high = Math.max(-1.5, Math.min(1.5, height + down));
  const around = plus(level.map((value) => value * Math.cos(across)), side, Math.sin(across));
  free.eye = plus(plus(free.target, around, far * Math.cos(high)), scene.up, far * Math.sin(high));
}

function shift(across, down, ahead = 0) {  // in distances to the target
  const pose = looking(free.eye, free.target), far = Math.hypot(...plus(free.eye, free.target, -1));
  for (const [axis, way] of [[0, across], [1, down], [2, ahead]])
    for (const which of ["eye", "target"]) free[which] = plus(free[which], row(pose, axis), way * far);
}

function nearer(times) { free.eye = plus(free.target, plus(free.eye, free.target, -1), times); }

const pointers = new Map(), keys = new Set();
const FLY = { KeyW: [0, 0, 1], KeyS: [0, 0, -1], KeyA: [-1, 0, 0], KeyD: [1, 0, 0], KeyQ: [0, 1, 0], KeyE: [0, -1, 0] };
Object.assign(FLY, { ArrowUp: FLY.KeyW, ArrowDown: FLY.KeyS, ArrowLeft: FLY.KeyA, ArrowRight: FLY.KeyD });

canvas.addEventListener("pointerdown", (event) => {
  leave();
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, [event.clientX, event.clientY]);
});
canvas.addEventListener("pointermove", (event) => {
  const before = pointers.get(event.pointerId);
  if (!before) return;
  const now = [event.clientX, event.clientY], [across, down] = [now[0] - before[0], now[1] - before[1]];
  pointers.set(event.pointerId, now);
  const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
  if (other) {
    const [was, is] = [before, now].map((each) => Math.hypot(each[0] - other[0], each[1] - other[1]));
    if (was && is) nearer(was / is);
    shift(-across / innerHeight / 2, -down / innerHeight / 2);
  } else if (event.shiftKey || event.buttons & 2) shift(-across / innerHeight, -down / innerHeight);
  else turn(-across * 0.005, down * 0.005);
  dirty = true;
});
for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (event) => pointers.delete(event.pointerId));
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  leave();
  nearer(Math.exp(Math.max(-1, Math.min(1, event.deltaY * (event.deltaMode ? 0.03 : 0.001)))));
  dirty = true;
}, { passive: false });
canvas.addEventListener("contextmenu", (event) => event.preventDefault());
addEventListener("keydown", (event) => {
  if (!(event.code in FLY) || event.ctrlKey || event.metaKey || event.altKey || event.target === list) return;
  event.preventDefault();
  leave();
  keys.add(event.code);
});
addEventListener("keyup", (event) => keys.delete(event.code));
addEventListener("blur", () => keys.clear());
addEventListener("resize", () => { dirty = true; });
addEventListener("hashchange", choose);
list.addEventListener("change", () => { location.hash = list.value && `camera=${list.value}`; canvas.focus(); });

function begin(parts) {
  const gl = canvas.getContext("webgl2", { alpha: false, antialias: false, depth: false });
  if (!gl) throw Error("this browser has no WebGL 2");
  const drawing = new Drawing(gl, parts);
  const worker = new Worker(URL.createObjectURL(new Blob([`(${sorter})()`], { type: "text/javascript" })));
  let sorted = "", asked = false, before = 0;
  worker.postMessage({ means: parts.means }, [parts.means.buffer]);
  worker.onmessage = ({ data }) => {
    drawing.ordered(data.order);
    [sorted, asked, dirty] = [String(data.row), false, true];
  };
  const frame = (time) => {
    for (const key of keys) shift(...FLY[key].map((way) => way * Math.min(time - before, 100) * 0.0007));
    before = time;
    if (dirty || keys.size) {
      const shown = camera(), direction = shown.pose.slice(8), wanted = String(direction);
      if (sorted !== wanted && !asked) {
        worker.postMessage({ row: direction, near: NEAR });
        asked = true;
      }
      dirty = false;
      if (sorted) drawing.draw(shown);
      if (sorted === wanted) requestAnimationFrame(() => { document.documentElement.dataset.ready = "true"; });
    }
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

for (const [value, words] of [["", "freely"], ...scene.cameras.map((each, at) => [at, each.name])]) list.add(new Option(words, value));
list.hidden = !scene.cameras.length;
startFrom(scene.start.pose);
choose();
unpacked().then(begin).then(() => { said.textContent = ""; }, (error) => { said.textContent = error.message || String(error); });
