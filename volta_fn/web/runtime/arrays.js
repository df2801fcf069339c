// Arrays as the page sees them (typed arrays) and as the GPU has them (bytes). 16-bit floats are float32 for the page.

import {PageError} from './errors.js';

const VIEWS = {
  float32: Float32Array, complex64: Float32Array, float16: Uint16Array, bfloat16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, int16: Int16Array, uint16: Uint16Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array,
};

const words = new Uint32Array(1);
const floats = new Float32Array(words.buffer);

function bitsOf(x) {
  floats[0] = x;
  return words[0];
}

function floatOf(bits) {
  words[0] = bits;
  return floats[0];
}

/** The bits of a number as a bfloat16, rounded to the nearest, ties to even. */
export function toBfloat16(x) {
  const bits = bitsOf(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >>> 16) | 0x40;
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

/** The bits of a number as a float16, rounded to the nearest, ties to even. */
export function toFloat16(x) {
  const bits = bitsOf(x), sign = (bits >>> 16) & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7e00;
  if (size >= 0x477ff000) return sign | 0x7c00;
  if (size >= 0x38800000) return sign | ((size - 0x38000000 + 0xfff + ((size >>> 13) & 1)) >>> 13);
  const scaled = floatOf(size) * 2 ** 24, below = Math.floor(scaled), rest = scaled - below;
  return sign | (below + (rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? 1 : 0));
}

export function fromFloat16(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : fraction * 2 ** -24);
}

const DECODERS = {float16: fromFloat16, bfloat16: bits => floatOf(bits << 16)};
const ENCODERS = {float16: toFloat16, bfloat16: toBfloat16, bool: Boolean};

/** The number of elements of a shape. */
export function sizeOf(shape) {
  return shape.reduce((product, length) => product * length, 1);
}

/** The numbers in an array's bytes. */
export function decoded(bytes, dtype, shape) {
  const View = VIEWS[dtype], count = sizeOf(shape) * (dtype === 'complex64' ? 2 : 1);
  const elements = new View(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + count * View.BYTES_PER_ELEMENT));
  return DECODERS[dtype] ? Float32Array.from(elements, DECODERS[dtype]) : elements;
}

/** Throws unless numbers are what they were before they became integers of a dtype. */
function checkWhole(name, dtype, values, numbers) {
  const wrong = numbers.findIndex((number, position) => number !== Number(values[position]));
  if (wrong >= 0) throw new PageError(`${name} has ${dtype} numbers, and ${values[wrong]} is not one.`);
}

/** The bytes of an array that is given as a number, nested lists or a typed array, rounded up to a multiple of four. */
export function encoded(values, {name, dtype, shape}) {
  const View = VIEWS[dtype], count = sizeOf(shape) * (dtype === 'complex64' ? 2 : 1);
  const flat = ArrayBuffer.isView(values) ? values : [values].flat(Infinity);
  if (flat.length !== count) throw new PageError(`${name} has ${count} numbers, of shape [${shape}], but ${flat.length} are given.`);
  const numbers = flat instanceof View && !ENCODERS[dtype] ? flat : View.from(flat, ENCODERS[dtype] ?? Number);
  if (dtype.includes('int')) checkWhole(name, dtype, flat, numbers);
  const bytes = new Uint8Array(Math.max(numbers.byteLength + (-numbers.byteLength & 3), 4));
  bytes.set(new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength));
  return bytes;
}

/** The bytes that an array has at first; the file may hold float32 numbers in 16 bits. */
export function initialBytes(array, data) {
  const {offset, bytes, storage} = array.initial, stored = data.subarray(offset, offset + bytes);
  return storage ? encoded(decoded(stored, storage, array.shape), array) : stored;
}
