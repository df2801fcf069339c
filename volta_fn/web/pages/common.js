// What all pages share: messages, progress, charts of curves, training, and weights as files.

const settings = JSON.parse(document.getElementById('settings').textContent);

/** The application, once it is open. Tests and the browser's console find it here. */
let app = null;

const find = id => document.getElementById(id);

/** Makes an element with attributes and children. */
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') node.addEventListener(name, value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Tells what went wrong. */
function fail(error) {
  find('failure').textContent = error?.message ?? String(error);
}

/** Lets a handler of events tell what goes wrong. */
function guarded(work) {
  return async (...args) => {
    try {
      await work(...args);
    } catch (error) {
      fail(error);
    }
  };
}

/** Opens the page's application, compiles its shaders with progress shown, and then calls `ready`. */
async function start(ready) {
  const startTime = performance.now(), bar = find('progress');
  try {
    app = await volta.load();
    app.onfailure = fail;
    await app.compile(undefined, (done, all) => {
      bar.max = all;
      bar.value = done;
      find('status').textContent = `Compiling shaders for ${app.deviceName}: ${done} of ${all}`;
    });
    bar.hidden = true;
    find('status').textContent = `Runs on ${app.deviceName}, in this page alone: nothing is sent anywhere.`;
    await ready();
    document.documentElement.dataset.ready = Math.round(performance.now() - startTime);
  } catch (error) {
    bar.hidden = true;
    find('status').textContent = 'The page cannot run here.';
    fail(error);
    document.documentElement.dataset.ready = 'failed';
  }
}

/** A curve of numbers over steps, drawn as it grows. */
class Curve {
  constructor(canvas, label) {
    this.canvas = canvas;
    this.label = label;
    this.points = [];
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  add(step, value) {
    this.points.push([step, value]);
    if (this.points.length > 2000) this.points = this.points.filter((_, number) => number % 2 === 0);
    this.draw();
  }

  clear() {
    this.points = [];
    this.draw();
  }

  draw() {
    const {canvas, points} = this, scale = devicePixelRatio, width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext('2d'), colors = getComputedStyle(document.documentElement);
    const color = name => colors.getPropertyValue(name);
    pen.scale(scale, scale);
    pen.font = '12px system-ui, sans-serif';
    pen.fillStyle = color('--soft');
    pen.strokeStyle = color('--line');
    const values = points.map(([, value]) => value).filter(Number.isFinite);
    const low = Math.min(0, ...values), high = Math.max(...values, low + 1e-9), last = points.at(-1)?.[0] ?? 1;
    const x = step => 44 + (width - 54) * step / Math.max(last, 1), y = value => height - 22 - (height - 36) * (value - low) / (high - low);
    for (let line = 0; line <= 4; line++) {
      const value = low + (high - low) * line / 4;
      pen.beginPath();
      pen.moveTo(44, y(value));
      pen.lineTo(width - 10, y(value));
      pen.stroke();
      if (values.length) pen.fillText(value.toPrecision(2), 4, y(value) + 4);
    }
    pen.fillText('0', 44, height - 6);
    pen.textAlign = 'right';
    if (values.length) pen.fillText(`step ${last}`, width - 10, height - 6);
    pen.strokeStyle = color('--bar');
    pen.lineWidth = 2;
    pen.lineJoin = 'round';
    pen.beginPath();
    for (const [step, value] of points) if (Number.isFinite(value)) pen.lineTo(x(step), y(value));
    pen.stroke();
    canvas.setAttribute('aria-label', values.length ? `${this.label} ${values.at(-1).toPrecision(4)} at step ${last}` : `${this.label}, no steps yet`);
  }
}

/** Train, pause and reset, with the loss as a curve. `look` is called after some steps. */
class Training {
  constructor({train, loss, counter}, {inputs = () => ({}), look = async () => {}, every = 5} = {}) {
    Object.assign(this, {train, loss, counter, inputs, look, every, step: 0, running: false});
    this.curve = new Curve(find('curve'), 'loss');
    this.button = find('train');
    this.button.addEventListener('click', guarded(() => this.toggle()));
    find('reset').addEventListener('click', guarded(() => this.reset()));
  }

  async toggle() {
    this.running = !this.running;
    this.button.textContent = this.running ? 'Pause' : 'Train';
    if (!this.running) return;
    try {
      await this.go();
    } finally {
      this.running = false;
      this.button.textContent = 'Train';
    }
  }

  async go() {
    let startTime = performance.now(), steps = 0;
    while (this.running) {
      const inputs = this.inputs();
      let values = {};
      for (let number = 0; number < this.every; number++) {
        const counted = this.counter ? {...inputs, [this.counter]: this.step} : inputs;
        values = await app.run(this.train, counted, number + 1 === this.every ? [this.loss] : []);
        this.step++;
        steps++;
      }
      const loss = values[this.loss][0], rate = 1000 * steps / (performance.now() - startTime);
      this.curve.add(this.step, loss);
      find('training').textContent = `step ${this.step} · loss ${loss.toPrecision(4)} · ${rate.toPrecision(3)} steps/s`;
      if (!Number.isFinite(loss)) throw new Error(`The loss is ${loss} at step ${this.step}: the learning rate may be too high.`);
      await this.look(this.step);
      await new Promise(requestAnimationFrame);
    }
  }

  async reset() {
    this.running = false;
    await app.reset();
    this.step = 0;
    this.curve.clear();
    find('training').textContent = '';
    await this.look(0);
  }
}

/** Buttons that save the state as a safetensors file and load it again. */
function weights(name, loaded = async () => {}) {
  find('save').addEventListener('click', guarded(async () => {
    const url = URL.createObjectURL(new Blob([await app.save()], {type: 'application/octet-stream'}));
    element('a', {href: url, download: `${name}.safetensors`}).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  }));
  find('load').addEventListener('change', guarded(async ({target}) => {
    const [file] = target.files;
    target.value = '';
    if (!file) return;
    await app.load(new Uint8Array(await file.arrayBuffer()));
    find('failure').textContent = '';
    await loaded();
  }));
}

/** Shows how probable each label is, or nothing where `shares` is null. */
class Bars {
  constructor(holder, labels) {
    this.labels = labels;
    this.rows = labels.map(label => ({bar: element('i'), share: element('span')}));
    holder.replaceChildren(...labels.flatMap((label, number) => [element('b', {}, label), this.rows[number].bar, this.rows[number].share]));
  }

  show(shares) {
    this.rows.forEach(({bar, share}, number) => {
      bar.style.setProperty('--share', shares?.[number] ?? 0);
      share.textContent = shares ? `${(100 * shares[number]).toFixed(1)} %` : '';
    });
  }
}
