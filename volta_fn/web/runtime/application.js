// What a page does with its functions: runs them one after another, reads and writes their arrays, saves and loads the state.

import {decoded, encoded, initialBytes, sizeOf} from './arrays.js';
import {openDevice} from './device.js';
import {PageError} from './errors.js';
import {Memory} from './memory.js';
import {Pipelines} from './pipelines.js';
import {Program} from './program.js';
import {WasmMemory, WasmProgram, openWasm} from './wasm.js';
import {checkFits, fromSafetensors, toSafetensors} from './safetensors.js';

/** The version of manifests that this runtime reads. */
const VERSION = 1;

const ITEM_BYTES = {float32: 4, int32: 4, uint32: 4, complex64: 8, float16: 2, bfloat16: 2, int16: 2, uint16: 2, int8: 1, uint8: 1, bool: 1};

export class Application {
  /** `opened` is what `openDevice` returns, or `openWasm`. */
  constructor(manifest, data, opened) {
    const {device, functions, name} = opened;
    this.manifest = manifest;
    this.data = data;
    this.device = device;
    this.deviceName = name;
    this.memory = functions ? new WasmMemory(opened, data) : new Memory(device, data);
    this.pipelines = functions ? null : new Pipelines(device, manifest.shaders);
    this.arrays = manifest.arrays.map(array => ({...array, buffer: this.memory.buffer(array.bytes)}));
    this.byName = new Map(this.arrays.map(array => [array.name, array]));
    this.programs = new Map(Object.entries(manifest.functions).map(([key, plan]) => (
      [key, functions ? new WasmProgram(plan, this.arrays, this.memory, functions) : new Program(plan, this.arrays, this.memory, this.pipelines)])));
    this.last = Promise.resolve();
    this.failure = null;
    this.onfailure = () => {};
    this.restore(this.arrays);
  }

  /** Compiles the shaders of functions, at the same time; `progress` is called with those done and all of them. */
  async compile(names = [...this.programs.keys()], progress = () => {}) {
    const programs = names.map(name => this.program(name)).filter(program => !program.steps);
    const all = new Set(programs.flatMap(({plan}) => plan.pipelines.map(([shader]) => shader)));
    const done = new Set();
    progress(0, all.size);
    const compiled = shader => progress(done.add(shader).size, all.size);
    await this.unlessFailed(Promise.all(programs.map(program => program.compile(compiled))));
  }

  /** Runs a function. Inputs that are not given keep their values. `reads` are the results to read; their values are returned by name. */
  run(name, inputs = {}, reads = []) {
    return this.inOrder(async () => {
      const program = this.program(name);
      for (const [key, values] of Object.entries(inputs)) this.put(this.array(`${name}/${key}`), values);
      if (!program.steps) await program.compile();
      await program.run();
      const results = reads.map(read => this.result(name, read));
      const values = await Promise.all(results.map(async ({buffer, dtype, shape}) => (
        decoded(await this.memory.read(buffer, sizeOf(shape) * ITEM_BYTES[dtype]), dtype, shape))));
      return Object.fromEntries(reads.map((read, number) => [read, values[number]]));
    });
  }

  /** Reads an array of the state. */
  read(name) {
    return this.inOrder(async () => {
      const {dtype, shape} = this.array(name);
      return decoded(await this.bytes(name), dtype, shape);
    });
  }

  /** Writes an array of the state. */
  write(name, values) {
    return this.inOrder(async () => this.put(this.array(name), values));
  }

  /** Gives the state the values that it had at first. */
  reset() {
    return this.inOrder(async () => this.restore(this.state));
  }

  /** Returns the state as a safetensors file. */
  save() {
    return this.inOrder(async () => {
      const arrays = await Promise.all(this.state.map(async array => ({...array, bytes: await this.bytes(array.name)})));
      return toSafetensors(arrays);
    });
  }

  /** Loads the state from a safetensors file, all of it or nothing. */
  load(file) {
    return this.inOrder(async () => {
      const tensors = fromSafetensors(file);
      for (const array of this.state) checkFits(array, tensors.get(array.name));
      for (const array of this.state) {
        const {bytes} = tensors.get(array.name), whole = new Uint8Array(array.bytes);
        whole.set(bytes);
        this.memory.write(array.buffer, whole);
      }
    });
  }

  get state() {
    return this.arrays.filter(({kind}) => kind === 'state');
  }

  /** The arrays that a function takes as input, by the names that `run` has for them. */
  inputs(name) {
    const prefix = `${name}/`;
    return this.arrays.filter(array => array.name.startsWith(prefix)).map(array => ({...array, key: array.name.slice(prefix.length)}));
  }

  /** The results of a function that are not state. */
  outputs(name) {
    return this.program(name).results.filter(({state}) => state < 0);
  }

  // One queue for all: programs share memory, and one with a `while` loop waits for the GPU in the middle.
  inOrder(work) {
    const turn = this.last.then(() => this.unlessFailed(work()));
    this.last = turn.catch(() => {});
    return turn;
  }

  /** What `promise` gives, unless the device has failed meanwhile. */
  async unlessFailed(promise) {
    try {
      const value = await promise;
      if (!this.failure) return value;
    } catch (error) {
      if (!this.failure) throw error;
    }
    throw new PageError(this.failure);
  }

  fail(message) {
    this.failure ??= message;
    this.onfailure(this.failure);
  }

  put(array, values) {
    this.memory.write(array.buffer, encoded(values, array));
  }

  restore(arrays) {
    for (const array of arrays) if (array.initial) this.memory.write(array.buffer, initialBytes(array, this.data));
  }

  bytes(name) {
    const {buffer, dtype, shape} = this.array(name);
    return this.memory.read(buffer, sizeOf(shape) * ITEM_BYTES[dtype]);
  }

  array(name) {
    const array = this.byName.get(name);
    if (!array) throw new PageError(`The page has no array ${name}; it has ${[...this.byName.keys()].join(', ')}.`);
    return array;
  }

  program(name) {
    const program = this.programs.get(name);
    if (!program) throw new PageError(`The page has no function ${name}; it has ${[...this.programs.keys()].join(', ')}.`);
    return program;
  }

  result(name, key) {
    const result = this.program(name).results.find(candidate => candidate.name === key);
    if (!result) throw new PageError(`${name} has no result ${key}; it has ${this.program(name).results.map(r => r.name).join(', ')}.`);
    return result;
  }
}

/** Opens the GPU and puts the page's arrays there. Without one, the page computes as WebAssembly, if it has that. */
export async function open(manifest, data, gpu = undefined) {
  if (manifest.version !== VERSION) throw new PageError(`The page has format ${manifest.version}, and its runtime reads ${VERSION}.`);
  let application = null;
  const opened = await openDevice(manifest.limits, message => application?.fail(message), gpu).catch(error => {
    if (manifest.wasm) return openWasm(manifest, data);
    throw error;
  });
  application = new Application(manifest, data, opened);
  return application;
}

/** The bytes of a text in base64 that gzip has compressed. */
export async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), character => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Opens what a page holds in itself: the manifest and the data, packed. */
export async function openPacked(manifest, data) {
  return open(JSON.parse(new TextDecoder().decode(await unpack(manifest))), await unpack(data));
}
