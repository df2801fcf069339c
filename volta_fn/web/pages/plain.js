// A page for any functions: a field for each input, a table or a chart for each result.

/** What a person can enter for an array; a single number is `first` at first. */
class Field {
  constructor(array, first) {
    this.array = array;
    this.first = first;
    this.size = volta.sizeOf(array.shape);
    this.values = null;
    const side = Math.round(Math.sqrt(this.size)), long = array.shape.filter(size => size > 1);
    const isSquare = long.length === 2 ? long[0] === side && long[1] === side : long.length === 1 && array.shape.at(-1) === side * side;
    this.isImage = array.dtype.includes('float') && isSquare && side >= 8 && side <= 64;
    if (this.size === 1) this.box = this.number();
    else this.box = element('div', {class: 'field'}, this.isImage ? this.picture(side) : this.text(), this.file());
    this.box.dataset.input = array.key;
  }

  get title() {
    const {key, shape, dtype} = this.array;
    return `${key}, ${dtype}${shape.length ? ` [${shape.join(', ')}]` : ''}`;
  }

  number() {
    const isWhole = !this.array.dtype.includes('float');
    this.input = element('input', {type: 'number', step: isWhole ? 1 : 'any', value: this.first});
    return element('label', {class: 'field'}, this.title, this.input);
  }

  text() {
    this.input = element('textarea', {rows: 3, placeholder: `${this.size} numbers, separated by commas, blanks or lines`});
    return element('label', {class: 'field'}, this.title, this.input);
  }

  file() {
    const input = element('input', {type: 'file', accept: '.csv,.txt,.tsv,image/*', change: guarded(() => this.read(input.files[0]))});
    return element('label', {class: 'button'}, 'File …', input);
  }

  /** A canvas to draw on, whose means over pixels are the array. */
  picture(side) {
    const canvas = element('canvas', {width: side, height: side, role: 'img', 'aria-label': `${this.title}: draw with the pointer`, style: 'width:12rem;height:12rem;image-rendering:pixelated;background:#101318'});
    this.pen = canvas.getContext('2d', {willReadFrequently: true});
    this.canvas = canvas;
    const paint = event => {
      if (!event.buttons) return;
      this.values = null;
      this.pen.fillStyle = '#fff';
      const scale = side / canvas.clientWidth, thick = Math.max(side / 8, 1);
      this.pen.fillRect(event.offsetX * scale - thick / 2, event.offsetY * scale - thick / 2, thick, thick);
    };
    canvas.addEventListener('pointerdown', paint);
    canvas.addEventListener('pointermove', paint);
    const clear = () => {
      this.values = null;
      this.pen.clearRect(0, 0, side, side);
    };
    return element('div', {}, element('p', {class: 'soft'}, this.title), canvas, element('div', {class: 'row'}, element('button', {click: clear}, 'Clear')));
  }

  async read(file) {
    if (!file) return;
    if (file.type.startsWith('image/')) {
      if (!this.isImage) throw new Error(`${this.array.key} is no square picture, but ${file.name} is one.`);
      const {width, height} = this.canvas;
      this.values = null;
      this.pen.drawImage(await createImageBitmap(file, {resizeWidth: width, resizeHeight: height, resizeQuality: 'high'}), 0, 0);
      return;
    }
    const text = await file.text();
    if (this.isImage) this.values = this.parsed(text);
    else this.input.value = text;
  }

  parsed(text) {
    const words = text.split(/[\s,;]+/).filter(Boolean), numbers = words.map(Number), wrong = numbers.findIndex(Number.isNaN);
    if (wrong >= 0) throw new Error(`${this.array.key} should be numbers, but ${JSON.stringify(words[wrong])} is not one.`);
    return numbers;
  }

  /** The numbers that were entered; undefined if none were, which leaves the array as it is. */
  get() {
    if (this.size === 1) {
      const number = this.input.valueAsNumber;
      if (Number.isNaN(number)) throw new Error(`${this.array.key} should be a number, but its field has none.`);
      return [number];
    }
    if (this.isImage) {
      const {width, height} = this.canvas, dots = this.pen.getImageData(0, 0, width, height).data;
      return this.values ?? Float32Array.from({length: width * height}, (_, number) => dots[4 * number] * dots[4 * number + 3] / 65025);
    }
    return this.input.value.trim() ? this.parsed(this.input.value) : undefined;
  }
}

/** Shows an array: a number, bars for shares, else a table. */
function shown(values, {shape, name}) {
  const rounded = x => (Number.isInteger(x) ? String(x) : Number(x.toPrecision(5)).toString());
  if (values.length === 1) return element('p', {}, `${name} = ${rounded(values[0])}`);
  const sum = values.reduce((total, x) => total + x, 0);
  if (values.length <= 32 && Math.abs(sum - 1) < 1e-3 && values.every(x => x >= 0)) {
    const holder = element('div', {class: 'bars'});
    new Bars(holder, [...values.keys()].map(String)).show(values);
    return element('div', {}, element('p', {class: 'soft'}, name), holder);
  }
  const columns = shape.length > 1 ? shape.at(-1) : Math.min(values.length, 8), rows = [];
  for (let start = 0; start < Math.min(values.length, 100 * columns); start += columns) rows.push([...values.slice(start, start + columns)]);
  const table = element('table', {}, ...rows.map(row => element('tr', {}, ...row.map(x => element('td', {}, rounded(x))))));
  const note = rows.length * columns < values.length ? `, the first ${rows.length * columns} of ${values.length}` : '';
  return element('div', {}, element('p', {class: 'soft'}, name + note), element('div', {class: 'scroll'}, table));
}

/** The field for an input, with the number that it has. */
async function field(array) {
  return new Field(array, volta.sizeOf(array.shape) === 1 ? (await app.read(array.name))[0] : 0);
}

/** The card of a function, with its fields; `isTrained` gets no button of its own. */
async function card(name, isTrained) {
  const shownInputs = app.inputs(name).filter(({key}) => !(isTrained && key === settings.counter));
  const fields = await Promise.all(shownInputs.map(field));
  const results = element('div', {'aria-live': 'polite', id: `results-${name}`});
  const inputs = () => Object.fromEntries(fields.map(field => [field.array.key, field.get()]).filter(([, values]) => values !== undefined));
  const run = guarded(async () => {
    const outputs = app.outputs(name), values = await app.run(name, inputs(), outputs.map(output => output.name));
    results.replaceChildren(...outputs.map(output => shown(values[output.name], output)));
  });
  const buttons = isTrained ? [] : [element('div', {class: 'row'}, element('button', {class: 'main', click: run, id: `run-${name}`}, 'Run'))];
  const section = element('section', {class: 'card'}, element('h2', {}, name), ...fields.map(field => field.box), ...buttons, results);
  return {section, inputs, isEmpty: isTrained && !fields.length};
}

start(async () => {
  const trained = {};
  for (const name of app.programs.keys()) {
    const functionCard = await card(name, name === settings.train);
    if (name === settings.train) Object.assign(trained, functionCard);
    if (!functionCard.isEmpty) find('functions').append(functionCard.section);
  }
  if (settings.train) new Training(settings, {inputs: trained.inputs});
  weights(settings.file);
});
