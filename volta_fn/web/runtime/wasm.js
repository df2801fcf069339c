// The CPU instead of the GPU: programs as WebAssembly, for browsers without WebGPU.

import {Memory} from './memory.js';

/** The bytes of the stack, which begins after a module's data and grows downwards. */
const STACK_BYTES = 1 << 20, PAGE = 1 << 16, LINE = 64;

/** The number if the other one is NaN, as C's fmax and fmin have it. */
const number = choose => (x, y) => Number.isNaN(x) ? y : Number.isNaN(y) ? x : choose(x, y);

/** The nearest integer, halves away from zero. */
function round(x) {
  const whole = Math.trunc(x);
  return Math.abs(x - whole) >= 0.5 ? whole + Math.sign(x) : whole;
}

/** Functions of C's library that WebAssembly has no instructions for, by their names for float64 and float32. */
const LIBRARY = {fmax: number(Math.max), fmin: number(Math.min), fmod: (x, y) => x % y, round};
for (const name of Object.keys(LIBRARY)) LIBRARY[`${name}f`] = LIBRARY[name];

/** Opens a module of functions, and its memory. */
export async function openWasm({wasm}, data) {
  const end = wasm.data + STACK_BYTES;
  const memory = new WebAssembly.Memory({initial: end / PAGE});
  const environment = {
    ...LIBRARY,
    __linear_memory: memory,
    __stack_pointer: new WebAssembly.Global({value: 'i32', mutable: true}, end),
    __indirect_function_table: new WebAssembly.Table({initial: 64, element: 'anyfunc'}),
  };
  const code = data.slice(wasm.offset, wasm.offset + wasm.length);
  const {instance} = await WebAssembly.instantiate(code, {env: environment});
  return {memory, end, functions: instance.exports, name: 'the CPU, without WebGPU'};
}

/** Arrays in the module's memory, instead of buffers of the GPU: after its data and its stack, which are before `end`. */
export class WasmMemory extends Memory {
  constructor({memory, end}, data) {
    super(null, data);
    this.memory = memory;
    this.end = end;
    this.arena = {address: 0, size: 0};
  }

  /** A range of the memory, as its address and size. */
  buffer(size) {
    const address = this.end;
    this.end += Math.ceil(Math.max(size, 4) / LINE) * LINE;
    const missing = Math.ceil((this.end - this.memory.buffer.byteLength) / PAGE);
    if (missing > 0) this.memory.grow(missing);
    return {address, size};
  }

  /** The address of memory for values in between, which all programs share. */
  scratch(size) {
    if (size > this.arena.size) this.arena = this.buffer(size);
    return this.arena.address;
  }

  write({address}, bytes) {
    new Uint8Array(this.memory.buffer).set(bytes, address);
  }

  async read({address}, size, offset = 0) {
    return new Uint8Array(this.memory.buffer).slice(address + offset, address + offset + size);
  }
}

// Commands, by the first word of each; `executor.py` says what the others are.
const RUN = 0, COPY = 2, POINT = 3, SWAP = 4, ROW = 5, LOOP = 6, WHILE = 7, SWITCH = 8, VIEW = 9;

/** The words of a command before those of the commands in it, but for RUN. */
const SIZES = {[COPY]: 4, [POINT]: 3, [SWAP]: 3, [ROW]: 5, [LOOP]: 6, [WHILE]: 4, [VIEW]: 7};

/** A program: its table of addresses, and its commands. */
export class WasmProgram {
  constructor(plan, arrays, memory, functions) {
    const {wasm} = plan;
    Object.assign(this, {plan, memory, words: wasm.words, steps: wasm.words});
    this.functions = new Map(wasm.launches.map(([word, name]) => [word, functions[name]]));
    const own = wasm.results.map((size, number) => wasm.reuse[number] === undefined ? memory.buffer(size) : null);
    const argument = number => arrays[plan.arguments[number]].buffer;
    const result = number => own[number] ?? argument(wasm.reuse[number]);
    const source = ([kind, number, size]) => (
      kind === 'result' ? result(number) : kind === 'argument' ? argument(number) : memory.constant(number, size));
    this.results = plan.results.map((described, number) => ({...described, buffer: source(wasm.from[number])}));
    this.table = new Array(wasm.slots).fill(0);
    const slots = [...plan.arguments.map((_, number) => argument(number).address), ...own.map((_, number) => result(number).address)];
    this.offsets = {first: slots.length, list: wasm.offsets, size: wasm.arena};
    slots.push(...wasm.offsets, ...wasm.constants.map(([offset, size]) => memory.constant(offset, size).address));
    slots.forEach((address, slot) => { this.table[slot] = address; });
    // Pointers to a routine's buffers, and before them the one to a record of signals, of which there are none here.
    const most = Math.max(0, ...[...this.functions.keys()].map(word => wasm.words[word + 3]));
    this.signals = memory.buffer(LINE).address;
    this.buffers = memory.buffer(4 * (most + 1)).address;
    this.copies = this.updates(arrays);
    memory.scratch(wasm.arena);
  }

  /** The copies of results into the state, at the end: all are read before any is written. */
  updates(arrays) {
    const moved = this.results.filter(({state, buffer}) => state >= 0 && arrays[state].buffer !== buffer);
    return moved.map(({state, buffer}) => ({from: buffer, to: arrays[state].buffer, size: arrays[state].bytes}));
  }

  async run() {
    const arena = this.memory.scratch(this.offsets.size);
    this.offsets.list.forEach((offset, number) => { this.table[this.offsets.first + number] = arena + offset; });
    const {buffer} = this.memory.memory;
    this.bytes = new Uint8Array(buffer);
    this.view = new DataView(buffer);
    this.execute(0, this.words.length);
    const contents = this.copies.map(({from, size}) => this.bytes.slice(from.address, from.address + size));
    this.copies.forEach(({to}, number) => this.bytes.set(contents[number], to.address));
  }

  execute(at, end) {
    const {words, table} = this;
    while (at < end) {
      const op = words[at];
      if (op === RUN) {
        this.call(at);
        at += 5 + words[at + 4];
        continue;
      }
      const [a, b, c, d, e, f] = words.slice(at + 1, at + 7);
      if (op === COPY) this.bytes.copyWithin(table[a], table[b], table[b] + c);
      else if (op === POINT) table[a] = table[b];
      else if (op === SWAP) [table[a], table[b]] = [table[b], table[a]];
      else if (op === ROW) table[a] = table[b] + c * table[d];
      else if (op === VIEW) table[a] = table[b] + c * Math.min(Math.max(this.integer(table[d], e), 0), f);
      else if (op === LOOP) {
        for (let i = 0; i < a; i++) {
          table[b] = c + i * d;
          this.execute(at + 6, at + 6 + e);
        }
        at += e;
      } else if (op === WHILE) {
        const body = at + 4 + b;
        for (this.execute(at + 4, body); this.bytes[table[a]]; this.execute(at + 4, body)) this.execute(body, body + c);
        at += b + c;
      } else if (op === SWITCH) {
        at = this.branch(at);
        continue;
      }
      at += SIZES[op];
    }
  }

  /** Calls a function with the addresses of its buffers. */
  call(at) {
    const {words, table, view, buffers} = this, count = words[at + 4];
    view.setUint32(buffers, this.signals, true);
    for (let i = 0; i < count; i++) view.setUint32(buffers + 4 + 4 * i, table[words[at + 5 + i]], true);
    this.functions.get(at + 1)(buffers + 4, 0n, BigInt(words[at + 2]));
  }

  /** Runs one of a switch's bodies, and returns the position after all of them. */
  branch(at) {
    const {words} = this, count = words[at + 2], index = Math.min(Math.max(this.integer(this.table[words[at + 1]], 4), 0), count - 1);
    let position = at + 3 + count;
    for (let body = 0; body < count; body++) {
      const size = words[at + 3 + body];
      if (body === index) this.execute(position, position + size);
      position += size;
    }
    return position;
  }

  integer(address, size) {
    return size === 8 ? Number(this.view.getBigInt64(address, true)) : this.view.getInt32(address, true);
  }
}
