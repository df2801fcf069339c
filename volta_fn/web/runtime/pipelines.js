// Compiled shaders, which programs share.

export class Pipelines {
  constructor(device, shaders) {
    this.device = device;
    this.shaders = shaders;
    this.modules = [];
    this.layouts = new Map();
    this.pipelines = new Map();
  }

  /** The layout of so many bindings, of which those numbers are written. */
  layout(count, written) {
    const key = `${count}:${written}`;
    if (!this.layouts.has(key)) {
      const entries = Array.from({length: count}, (_, binding) => (
        {binding, visibility: 4, buffer: {type: written.includes(binding) ? 'storage' : 'read-only-storage'}}));
      const group = this.device.createBindGroupLayout({entries});
      this.layouts.set(key, {group, pipeline: this.device.createPipelineLayout({bindGroupLayouts: [group]})});
    }
    return this.layouts.get(key);
  }

  /** A promise of a pipeline, compiled once. */
  compile([shader, count, written]) {
    const key = `${shader}:${count}:${written}`;
    if (!this.pipelines.has(key)) {
      const module = this.modules[shader] ??= this.device.createShaderModule({code: this.shaders[shader]});
      const layout = this.layout(count, written).pipeline;
      this.pipelines.set(key, this.device.createComputePipelineAsync({layout, compute: {module, entryPoint: 'main'}}));
    }
    return this.pipelines.get(key);
  }
}
