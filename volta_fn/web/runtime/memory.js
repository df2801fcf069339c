// Buffers of the GPU: constants once for all programs, temporary ones shared by programs that run one after another.

const STORAGE = 0x80, COPY_SRC = 4, COPY_DST = 8, INDIRECT = 0x100, MAP_READ = 1;

/** A size that buffers may have: a multiple of four, at least four. */
function padded(size) {
  return Math.max(size + (-size & 3), 4);
}

export class Memory {
  constructor(device, data) {
    this.device = device;
    this.data = data;
    this.constants = new Map();
    this.temporaries = new Map();
  }

  buffer(size, usage = 0) {
    return this.device.createBuffer({size: padded(size), usage: STORAGE | COPY_SRC | COPY_DST | usage});
  }

  /** A buffer for the grids of dispatches that may not run. */
  grids(size) {
    return this.buffer(size, INDIRECT);
  }

  /** The buffer of a range of the data. */
  constant(offset, size) {
    const key = `${offset}:${size}`;
    if (!this.constants.has(key)) {
      this.constants.set(key, this.buffer(size));
      this.write(this.constants.get(key), this.data.subarray(offset, offset + size));
    }
    return this.constants.get(key);
  }

  /** The buffers of a program's temporary values. */
  scratch(sizes) {
    const used = new Map();
    return sizes.map(size => {
      const number = used.get(size) ?? 0, buffers = this.temporaries.get(size) ?? [];
      used.set(size, number + 1);
      this.temporaries.set(size, buffers);
      return buffers[number] ??= this.buffer(size);
    });
  }

  write(buffer, bytes) {
    this.device.queue.writeBuffer(buffer, 0, bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** The bytes of a buffer from an offset on, once they are computed. */
  async read(buffer, size, offset = 0) {
    const staging = this.device.createBuffer({size: padded(size), usage: MAP_READ | COPY_DST});
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, offset, staging, 0, padded(size));
    this.device.queue.submit([encoder.finish()]);
    await staging.mapAsync(MAP_READ);
    const bytes = new Uint8Array(staging.getMappedRange().slice(0, size));
    staging.destroy();
    return bytes;
  }
}
