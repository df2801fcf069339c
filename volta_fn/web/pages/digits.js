// Draw a digit: the network says which it is, and learns from corrections.

const SIZE = 280;

/** The drawing: by mouse, pen or finger, or by keys. */
class Drawing {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.ink = new OffscreenCanvas(SIZE, SIZE).getContext('2d', {willReadFrequently: true});
    this.ink.strokeStyle = '#fff';
    this.ink.lineWidth = settings.pen;
    this.ink.lineCap = this.ink.lineJoin = 'round';
    this.pen = {x: SIZE / 2, y: SIZE / 2, isDown: false};
    this.last = null;
    canvas.addEventListener('pointerdown', event => this.begin(event));
    canvas.addEventListener('pointermove', event => this.move(event));
    for (const name of ['pointerup', 'pointercancel']) canvas.addEventListener(name, () => { this.last = null; });
    canvas.addEventListener('keydown', event => this.key(event));
    for (const name of ['focus', 'blur']) canvas.addEventListener(name, () => this.show());
    this.clear();
  }

  at({offsetX, offsetY}) {
    const scale = SIZE / this.canvas.clientWidth;
    return [offsetX * scale, offsetY * scale];
  }

  begin(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.last = this.at(event);
    this.line(this.last, this.last);
  }

  move(event) {
    if (!this.last) return;
    const points = event.getCoalescedEvents?.() ?? [];
    for (const one of points.length ? points : [event]) {
      const next = this.at(one);
      this.line(this.last, next);
      this.last = next;
    }
  }

  key(event) {
    const moves = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
    const {pen} = this, move = moves[event.key];
    if (move) {
      const from = [pen.x, pen.y], inside = x => Math.min(Math.max(x, 0), SIZE);
      pen.x = inside(pen.x + 10 * move[0]);
      pen.y = inside(pen.y + 10 * move[1]);
      if (pen.isDown) this.line(from, [pen.x, pen.y]);
    } else if (event.key === ' ') {
      pen.isDown = !pen.isDown;
      if (pen.isDown) this.line([pen.x, pen.y], [pen.x, pen.y]);
    } else if (event.key === 'Delete' || event.key === 'Backspace') {
      this.clear();
    } else return;
    event.preventDefault();
    this.show();
  }

  line(from, to) {
    this.ink.beginPath();
    this.ink.moveTo(...from);
    this.ink.lineTo(...to);
    this.ink.stroke();
    this.isEmpty = false;
    this.show();
    this.changed();
  }

  clear() {
    this.ink.clearRect(0, 0, SIZE, SIZE);
    this.isEmpty = true;
    this.pen.isDown = false;
    this.show();
    this.changed();
  }

  show() {
    const view = this.canvas.getContext('2d');
    view.clearRect(0, 0, SIZE, SIZE);
    view.drawImage(this.ink.canvas, 0, 0);
    if (document.activeElement !== this.canvas || !this.canvas.matches(':focus-visible')) return;
    view.strokeStyle = this.pen.isDown ? '#ffb74d' : '#7da2ff';
    view.lineWidth = 3;
    view.beginPath();
    view.arc(this.pen.x, this.pen.y, settings.pen / 2, 0, 7);
    view.stroke();
  }

  /** The drawing as the network takes it: cut out, centred, and as means over pixels. */
  pixels() {
    const {side, margin} = settings, {data} = this.ink.getImageData(0, 0, SIZE, SIZE);
    let [left, top, right, bottom] = [SIZE, SIZE, 0, 0];
    for (let position = 0; position < SIZE * SIZE; position++) {
      if (data[4 * position + 3] < 64) continue;
      const x = position % SIZE, y = Math.floor(position / SIZE);
      [left, top, right, bottom] = [Math.min(left, x), Math.min(top, y), Math.max(right, x + 1), Math.max(bottom, y + 1)];
    }
    if (right <= left) return new Float32Array(side * side);
    const room = side - 2 * margin, scale = room / Math.max(right - left, bottom - top), fine = 8;
    const small = new OffscreenCanvas(side * fine, side * fine).getContext('2d');
    const width = (right - left) * scale * fine, height = (bottom - top) * scale * fine, whole = side * fine;
    small.imageSmoothingQuality = 'high';
    small.drawImage(this.ink.canvas, left, top, right - left, bottom - top, (whole - width) / 2, (whole - height) / 2, width, height);
    const dots = small.getImageData(0, 0, whole, whole).data, means = new Float32Array(side * side);
    for (let y = 0; y < whole; y++) {
      for (let x = 0; x < whole; x++) means[Math.floor(y / fine) * side + Math.floor(x / fine)] += dots[4 * (y * whole + x) + 3];
    }
    return means.map(sum => sum / (255 * fine * fine));
  }
}

const bars = new Bars(find('answer'), settings.labels);
let isBusy = false, isStale = false, isTrained = settings.trained;

/** Asks the network, and again if the drawing has changed meanwhile. */
const classify = guarded(async () => {
  if (!app || isBusy) {
    isStale = true;
    return;
  }
  isBusy = true;
  try {
    do {
      isStale = false;
      const results = await app.run(settings.predict, {[settings.image]: drawing.pixels()}, [settings.probabilities]);
      const shares = [...results[settings.probabilities]], best = shares.indexOf(Math.max(...shares));
      const label = settings.labels[best];
      bars.show(drawing.isEmpty ? null : shares);
      find('seen').textContent = drawing.isEmpty ? '' : isTrained ? `looks like ${label}` : `untrained: a guess is ${label}`;
    } while (isStale);
  } finally {
    isBusy = false;
  }
});

const drawing = new Drawing(find('drawing'), () => classify());

/** Trains on the drawing with the right label. */
const correct = guarded(async label => {
  if (!app || !settings.learn || drawing.isEmpty) return;
  const inputs = {[settings.image]: drawing.pixels(), [settings.label]: label};
  for (let step = 0; step < settings.corrections; step++) await app.run(settings.learn, inputs);
  isTrained = true;
  find('learned').textContent = `Learned that this is ${settings.labels[label]}.`;
  await classify();
});

find('correction').hidden = !settings.learn;
find('labels').append(...settings.labels.map((text, label) => element('button', {click: () => correct(label)}, text)));
find('clear').addEventListener('click', () => drawing.clear());
document.addEventListener('keydown', event => {
  const isTyping = event.target.matches('input, textarea') || event.ctrlKey || event.metaKey || event.altKey;
  if (!isTyping && settings.labels.includes(event.key)) correct(settings.labels.indexOf(event.key));
});

start(async () => {
  const look = async step => {
    isTrained = settings.trained || step > 0;
    if (settings.evaluate && step % settings.evaluateEvery === 0) {
      const results = await app.run(settings.evaluate, {}, [settings.accuracy]);
      find('unseen').textContent = `${(100 * results[settings.accuracy][0]).toFixed(1)} % of unseen digits right`;
    }
    await classify();
  };
  new Training(settings, {look});
  weights(settings.file, async () => {
    isTrained = true;
    await classify();
  });
  await classify();
});
