// Arrays by name as a safetensors file, which Python, PyTorch and others read.

import {PageError} from './errors.js';

const NAMES = {
  float32: 'F32', float16: 'F16', bfloat16: 'BF16', complex64: 'C64', int32: 'I32', uint32: 'U32', int16: 'I16', uint16: 'U16', int8: 'I8',
  uint8: 'U8', bool: 'BOOL',
};

/** The bytes of a file. `arrays` have a name, dtype, shape and bytes. */
export function toSafetensors(arrays) {
  const header = {};
  let end = 0;
  for (const {name, dtype, shape, bytes} of arrays) {
    header[name] = {dtype: NAMES[dtype], shape, data_offsets: [end, end + bytes.length]};
    end += bytes.length;
  }
  let text = JSON.stringify(header);
  text += ' '.repeat(-new TextEncoder().encode(text).length & 7);
  const head = new TextEncoder().encode(text), file = new Uint8Array(8 + head.length + end);
  new DataView(file.buffer).setBigUint64(0, BigInt(head.length), true);
  file.set(head, 8);
  let offset = 8 + head.length;
  for (const {bytes} of arrays) {
    file.set(bytes, offset);
    offset += bytes.length;
  }
  return file;
}

/** The arrays of a file by name, with their dtypes by the names of `NAMES`, shapes and bytes. */
export function fromSafetensors(file) {
  const broken = reason => new PageError(`This is no safetensors file: ${reason}.`);
  if (file.length < 8) throw broken('it is too short');
  const length = Number(new DataView(file.buffer, file.byteOffset).getBigUint64(0, true)), start = 8 + length;
  if (start > file.length) throw broken('its header is longer than the file');
  let header;
  try {
    header = JSON.parse(new TextDecoder('utf-8', {fatal: true}).decode(file.subarray(8, start)));
  } catch {
    throw broken('its header cannot be read');
  }
  const tensors = new Map();
  for (const [name, {dtype, shape, data_offsets: offsets}] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    if (!Array.isArray(shape) || !Array.isArray(offsets) || !(0 <= offsets[0] && offsets[0] <= offsets[1] && start + offsets[1] <= file.length)) {
      throw broken(`${name} lies outside of it`);
    }
    tensors.set(name, {dtype, shape, bytes: file.subarray(start + offsets[0], start + offsets[1])});
  }
  return tensors;
}

/** Throws unless a file's array fits one of the page. */
export function checkFits(array, tensor) {
  const {name, dtype, shape} = array;
  if (!tensor) throw new PageError(`The file has no ${name}, so its weights are not this page's.`);
  if (tensor.dtype !== NAMES[dtype] || String(tensor.shape) !== String(shape)) {
    throw new PageError(`In the file ${name} is ${tensor.dtype} of shape [${tensor.shape}], and in this page ${NAMES[dtype]} of shape [${shape}].`);
  }
}
