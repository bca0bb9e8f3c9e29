// Draws splats as rung's renderer does: the same projection, blur, cut-offs and harmonics (rung/ops/rasterize).
"use strict";

const scene = JSON.parse(document.getElementById("scene").textContent);
const canvas = document.getElementById("canvas");
const NEAR = 0.01, ROW = 4096, TEXELS = 4;

const VERTEX = `#version 300 es
precision highp float;
precision highp int;
uniform highp sampler2D splats;      // 4 texels a splat: center and opacity, covariance, color
uniform highp isampler2D harmonics;  // one texel a term above the first, square roots
uniform int terms;
uniform vec3 largest;                // harmonic of each degree
uniform mat4 view;                   // world to camera: right, down, forward
uniform vec4 lens;                   // fx, fy, cx, cy in pixels
uniform vec2 size;
uniform vec3 eye;
uniform bool antialiased;
in uint index;
flat out vec3 conic;
flat out vec4 paint;
out vec2 offset;

ivec2 place(int texel) { return ivec2(texel % ${ROW}, texel / ${ROW}); }

vec3 term(int number) {
  vec3 root = vec3(texelFetch(harmonics, place(int(index) * terms + number - 1), 0).rgb) / 127.0;
  return root * abs(root) * (number < 4 ? largest.x : number < 9 ? largest.y : largest.z);
}

vec3 seen(vec3 color, vec3 d) {      // Sloan, Efficient Spherical Harmonic Evaluation (JCGT 2013)
  float x = d.x, y = d.y, z = d.z, xx = x * x, yy = y * y, zz = z * z;
  if (terms > 0) color += 0.4886025119029199 * (z * term(2) - y * term(1) - x * term(3));
  if (terms > 3) color += 1.0925484305920792 * (x * y * term(4) - y * z * term(5) - x * z * term(7))
    + 0.31539156525252005 * (2.0 * zz - xx - yy) * term(6) + 0.5462742152960396 * (xx - yy) * term(8);
  if (terms > 8) color += -0.5900435899266435 * y * (3.0 * xx - yy) * term(9)
    + 2.890611442640554 * x * y * z * term(10) - 0.4570457994644658 * y * (4.0 * zz - xx - yy) * term(11)
    + 0.3731763325901154 * z * (2.0 * zz - 3.0 * xx - 3.0 * yy) * term(12)
    - 0.4570457994644658 * x * (4.0 * zz - xx - yy) * term(13) + 1.445305721320277 * z * (xx - yy) * term(14)
    - 0.5900435899266435 * x * (xx - 3.0 * yy) * term(15);
  return max(color, 0.0);
}

void main() {
  int first = int(index) * ${TEXELS};
  vec4 center = texelFetch(splats, place(first), 0);
  vec4 a = texelFetch(splats, place(first + 1), 0), b = texelFetch(splats, place(first + 2), 0);
  gl_Position = vec4(2.0, 2.0, 2.0, 1.0);  // outside: not drawn
  vec3 p = (view * vec4(center.xyz, 1.0)).xyz;
  if (p.z <= ${NEAR}) return;
  mat3 turn = mat3(view);
  mat3 covariance = turn * mat3(a.x, a.y, a.z, a.y, a.w, b.x, a.z, b.x, b.y) * transpose(turn);
  vec2 beyond = 0.15 * size / lens.xy;     // the slope is held a little beyond the edge
  vec2 slope = clamp(p.xy / p.z, -lens.zw / lens.xy - beyond, (size - lens.zw) / lens.xy + beyond);
  vec3 across = vec3(lens.x, 0.0, -lens.x * slope.x) / p.z, down = vec3(0.0, lens.y, -lens.y * slope.y) / p.z;
  float xx = dot(across, covariance * across) + 0.3, yy = dot(down, covariance * down) + 0.3;
  float xy = dot(across, covariance * down), area = xx * yy - xy * xy, opacity = center.w;
  if (antialiased) opacity *= sqrt(max(((xx - 0.3) * (yy - 0.3) - xy * xy) / area, 0.0));
  if (!(area > 0.0) || opacity * 255.0 <= 1.0) return;
  float reach = sqrt(2.0 * log(opacity * 255.0));  // where alpha falls below 1/255
  float middle = 0.5 * (xx + yy), apart = length(vec2(0.5 * (xx - yy), xy));
  float angle = apart > 0.0 ? 0.5 * atan(xy, 0.5 * (xx - yy)) : 0.0;
  vec2 axis = vec2(cos(angle), sin(angle)), corner = vec2(gl_VertexID & 1, gl_VertexID >> 1) * 2.0 - 1.0;
  float major = middle + apart;
  offset = reach * (corner.x * sqrt(major) * axis + corner.y * sqrt(area / major) * vec2(-axis.y, axis.x));
  vec2 pixel = lens.xy * p.xy / p.z + lens.zw + offset;
  gl_Position = vec4(vec2(2.0, -2.0) * pixel / size + vec2(-1.0, 1.0), 0.0, 1.0);
  conic = vec3(yy, -xy, xx) / area;
  vec3 color = texelFetch(splats, place(first + 3), 0).rgb;
  paint = vec4(seen(color, normalize(center.xyz - eye)), opacity);
}`;

const FRAGMENT = `#version 300 es
precision highp float;
flat in vec3 conic;
flat in vec4 paint;
in vec2 offset;
out vec4 color;
void main() {
  float power = 0.5 * (conic.x * offset.x * offset.x + conic.z * offset.y * offset.y) + conic.y * offset.x * offset.y;
  float alpha = min(0.999, paint.a * exp(-power));
  if (power < 0.0 || alpha * 255.0 < 1.0) discard;
  color = vec4(paint.rgb * alpha, alpha);
}`;

// In a worker: answers the direction of a view with the splats before it, the farthest first, ties by index.
function sorter() {
  let means, count, depths, bits, one, two, histogram;
  onmessage = ({ data }) => {
    if (data.means) {
      means = data.means;
      count = means.length / 3;
      depths = new Float32Array(count);
      bits = new Uint32Array(depths.buffer);
      one = new Uint32Array(count);
      two = new Uint32Array(count);
      histogram = new Uint32Array(65537);
      return;
    }
    const [a, b, c, d] = data.row;
    let number = 0;
    for (let at = 0; at < count; at++) {
      depths[at] = a * means[3 * at] + b * means[3 * at + 1] + c * means[3 * at + 2] + d;
      if (depths[at] > data.near) one[number++] = at;
    }
    const pass = (from, to, shift) => {  // positive floats are in the order of their bits: sixteen at a time
      histogram.fill(0);
      for (let at = 0; at < number; at++) histogram[((bits[from[at]] >>> shift) & 65535) + 1]++;
      for (let at = 0; at < 65536; at++) histogram[at + 1] += histogram[at];
      for (let at = 0; at < number; at++) to[histogram[(bits[from[at]] >>> shift) & 65535]++] = from[at];
    };
    pass(one, two, 0);
    pass(two, one, 16);
    const order = one.slice(0, number).reverse();
    postMessage({ order, row: data.row }, [order.buffer]);
  };
}

function decoded(text) {
  const made = new Uint8Array(Math.floor(text.length / 4) * 3), step = 1 << 20;
  let end = 0;
  for (let from = 0; from < text.length; from += step) {
    const part = atob(text.slice(from, from + step));
    for (let at = 0; at < part.length; at++) made[end++] = part.charCodeAt(at);
  }
  return made.subarray(0, end);
}

// The parts that page.py packed: centers, columns of 16 bits between a low and a high value, harmonics of 8 bits.
async function unpacked() {
  const text = document.getElementById("splats");
  const stream = new Blob([decoded(text.textContent)]).stream().pipeThrough(new DecompressionStream("deflate"));
  text.remove();
  const bytes = await new Response(stream).arrayBuffer(), { count, columns, terms } = scene;
  const planes = new Float32Array(bytes, 0, 3 * count), means = new Float32Array(3 * count);
  for (let at = 0; at < count; at++) for (let axis = 0; axis < 3; axis++) means[3 * at + axis] = planes[axis * count + at];
  const words = new Uint16Array(bytes, 12 * count, columns.length * count);
  const harmonics = new Int8Array(bytes, (12 + 2 * columns.length) * count, 3 * terms * count);
  const column = (which, at) => columns[which][0] + words[which * count + at] * columns[which][1];
  return { count, terms, means, harmonics, column };
}

function geometry({ count, means, column }, made) {
  for (let at = 0; at < count; at++) {
    const [sx, sy, sz] = [0, 1, 2].map((axis) => Math.exp(column(axis, at)));
    let [w, x, y, z] = [3, 4, 5, 6].map((part) => column(part, at));
    const length = Math.hypot(w, x, y, z) || 1;
    w /= length; x /= length; y /= length; z /= length;
    const turn = [
      (1 - 2 * (y * y + z * z)) * sx, 2 * (x * y - w * z) * sy, 2 * (x * z + w * y) * sz,
      2 * (x * y + w * z) * sx, (1 - 2 * (x * x + z * z)) * sy, 2 * (y * z - w * x) * sz,
      2 * (x * z - w * y) * sx, 2 * (y * z + w * x) * sy, (1 - 2 * (x * x + y * y)) * sz,
    ];
    const entry = (i, j) => turn[3 * i] * turn[3 * j] + turn[3 * i + 1] * turn[3 * j + 1] + turn[3 * i + 2] * turn[3 * j + 2];
    made.set([
      means[3 * at], means[3 * at + 1], means[3 * at + 2], column(7, at),
      entry(0, 0), entry(0, 1), entry(0, 2), entry(1, 1), entry(1, 2), entry(2, 2), 0, 0,
      column(8, at), column(9, at), column(10, at), 0,
    ], 16 * at);
  }
}

function spread({ count, terms, harmonics }, made) {  // planes of values to texels
  for (let term = 0; term < terms; term++)
    for (let channel = 0; channel < 3; channel++) {
      const plane = (3 * term + channel) * count;
      for (let at = 0; at < count; at++) made[4 * (at * terms + term) + channel] = harmonics[plane + at];
    }
}

class Drawing {
  constructor(gl, parts) {
    this.gl = gl;
    const limit = gl.getParameter(gl.MAX_TEXTURE_SIZE);
    if (limit < ROW || Math.max(TEXELS, parts.terms) * parts.count > ROW * limit)
      throw Error(`${parts.count} splats do not fit into a texture of this browser`);
    this.program = this.linked();
    gl.useProgram(this.program);
    this.texture(0, "splats", Float32Array, TEXELS * parts.count, gl.RGBA32F, gl.RGBA, gl.FLOAT, (made) => geometry(parts, made));
    this.texture(1, "harmonics", Int8Array, parts.terms * parts.count, gl.RGBA8I, gl.RGBA_INTEGER, gl.BYTE, (made) => spread(parts, made));
    gl.uniform1i(this.at("terms"), parts.terms);
    gl.uniform3fv(this.at("largest"), scene.largest);
    gl.uniform1i(this.at("antialiased"), scene.antialiased);
    this.instances = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, this.instances);
    const index = gl.getAttribLocation(this.program, "index");
    gl.enableVertexAttribArray(index);
    gl.vertexAttribIPointer(index, 1, gl.UNSIGNED_INT, 0, 0);
    gl.vertexAttribDivisor(index, 1);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    gl.clearColor(...scene.background, 1);
    this.number = 0;
    // Hundreds of layers that are each rounded to 8 bits go wrong visibly: blended in 16 bits where the browser can.
    this.layers = gl.getExtension("EXT_color_buffer_float") ? gl.createFramebuffer() : null;
  }

  linked() {
    const gl = this.gl, program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw Error(gl.getShaderInfoLog(shader));
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw Error(gl.getProgramInfoLog(program));
    return program;
  }

  at(name) { return this.gl.getUniformLocation(this.program, name); }

  texture(unit, name, Kind, texels, inside, outside, type, fill) {
    const gl = this.gl, rows = Math.max(1, Math.ceil(texels / ROW)), made = new Kind(4 * ROW * rows);
    fill(made);
    gl.activeTexture(gl.TEXTURE0 + unit);
    gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
    for (const side of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, side, gl.NEAREST);
    gl.texImage2D(gl.TEXTURE_2D, 0, inside, ROW, rows, 0, outside, type, made);
    gl.uniform1i(this.at(name), unit);
  }

  ordered(order) {
    this.gl.bufferData(this.gl.ARRAY_BUFFER, order, this.gl.DYNAMIC_DRAW);
    this.number = order.length;
  }

  draw(camera) {
    const gl = this.gl, { pose, width, height } = camera;
    if (canvas.width !== width || canvas.height !== height) this.resize(width, height);
    gl.uniformMatrix4fv(this.at("view"), true, [...pose, 0, 0, 0, 1]);
    gl.uniform4f(this.at("lens"), camera.fx, camera.fy, camera.cx, camera.cy);
    gl.uniform2f(this.at("size"), width, height);
    gl.uniform3fv(this.at("eye"), eyeOf(pose));
    gl.viewport(0, 0, width, height);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, this.number);
    if (!this.layers) return;
    gl.bindFramebuffer(gl.DRAW_FRAMEBUFFER, null);
    gl.blitFramebuffer(0, 0, width, height, 0, 0, width, height, gl.COLOR_BUFFER_BIT, gl.NEAREST);
    gl.bindFramebuffer(gl.DRAW_FRAMEBUFFER, this.layers);
  }

  resize(width, height) {
    const gl = this.gl;
    [canvas.width, canvas.height] = [width, height];
    if (!this.layers) return;
    const kept = gl.createRenderbuffer();
    gl.deleteRenderbuffer(this.kept || null);
    this.kept = kept;
    gl.bindRenderbuffer(gl.RENDERBUFFER, kept);
    gl.renderbufferStorage(gl.RENDERBUFFER, gl.RGBA16F, width, height);
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.layers);
    gl.framebufferRenderbuffer(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.RENDERBUFFER, kept);
  }
}
