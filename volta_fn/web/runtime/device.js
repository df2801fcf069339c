// The GPU: opened with no more limits than the page needs, and what becomes of it.

import {LOST, NO_ADAPTER, NO_WEBGPU, OUT_OF_MEMORY, PageError, tooLow} from './errors.js';

/** Opens the GPU. `limits` holds what not every WebGPU device has; `onFailure` is called with a message if the device fails later. */
export async function openDevice(limits, onFailure, gpu = globalThis.navigator?.gpu) {
  if (!gpu) throw new PageError(NO_WEBGPU);
  const adapter = await gpu.requestAdapter({powerPreference: 'high-performance'});
  if (!adapter) throw new PageError(NO_ADAPTER);
  const missing = Object.entries(limits)
    .filter(([name, needed]) => !(adapter.limits[name] >= needed))
    .map(([name, needed]) => ({name, needed, actual: adapter.limits[name]}));
  if (missing.length) throw new PageError(tooLow(missing));
  const device = await adapter.requestDevice({requiredLimits: limits});
  device.lost.then(({reason, message}) => {
    if (reason !== 'destroyed') onFailure(message ? `${LOST} (${message})` : LOST);
  });
  device.onuncapturederror = ({error}) => {
    const isMemory = globalThis.GPUOutOfMemoryError && error instanceof GPUOutOfMemoryError;
    onFailure(isMemory ? OUT_OF_MEMORY : `The GPU refused a command: ${error.message}`);
  };
  const {description, vendor, architecture} = adapter.info ?? {};
  const names = [vendor, architecture].filter(Boolean).map(word => word[0].toUpperCase() + word.slice(1));
  return {device, name: description || names.join(' ') || 'GPU'};
}
