// A program: its buffers, and its commands as they are written to the GPU's queue.

/** Iterations of a `while` between two looks at its flag, at most; those after its end do nothing. */
const MOST_ITERATIONS = 64;

/** The most bind groups of loops that are cached. */
const MOST_GROUPS = 1 << 14;

export class Program {
  /** `arrays` are those of the page, by number; `plan` is a function of the manifest. */
  constructor(plan, arrays, memory, pipelines) {
    this.plan = plan;
    this.memory = memory;
    this.pipelines = pipelines;
    this.device = memory.device;
    const scratch = memory.scratch(plan.temporaries), results = new Map();
    this.slots = plan.slots.map(([kind, number, size]) => {
      if (kind === 'argument') return arrays[plan.arguments[number]].buffer;
      if (kind === 'temporary') return scratch[number];
      if (kind === 'constant') return memory.constant(number, size);
      if (kind === 'grids') return memory.grids(number);
      results.set(number, memory.buffer(size));
      return results.get(number);
    });
    const source = ([kind, number, size]) => (
      kind === 'result' ? results.get(number) : kind === 'argument' ? arrays[plan.arguments[number]].buffer : memory.constant(number, size));
    this.results = plan.results.map(result => ({...result, buffer: source(result.from)}));
    this.copies = this.updates(arrays);
    this.iterations = [];
    this.steps = null;
  }

  /** The copies of results into the state. Those from arguments go through other memory, for these may be overwritten themselves. */
  updates(arrays) {
    const wanted = this.results.filter(({state, buffer}) => state >= 0 && arrays[state].buffer !== buffer);
    const before = [], after = [];
    for (const {state, buffer, from} of wanted) {
      const {buffer: target, bytes} = arrays[state];
      if (from[0] === 'argument') {
        const copy = this.memory.buffer(bytes);
        before.push([buffer, copy, bytes]);
        after.push([copy, target, bytes]);
      } else {
        after.push([buffer, target, bytes]);
      }
    }
    return [...before, ...after];
  }

  /** Compiles the shaders; `progress` is called after each. */
  async compile(progress = () => {}) {
    const compiled = await Promise.all(this.plan.pipelines.map(async row => {
      const pipeline = await this.pipelines.compile(row);
      progress(row[0]);
      return pipeline;
    }));
    const layouts = this.plan.pipelines.map(([, count, written]) => this.pipelines.layout(count, written).group);
    this.steps = this.plan.commands.map(command => this.prepared(command, compiled, layouts));
  }

  /** A command with what it needs at hand. */
  prepared([kind, ...rest], compiled, layouts) {
    if (kind === 'loop') return {kind, number: rest[0], iterations: rest[1], body: rest[2].map(c => this.prepared(c, compiled, layouts))};
    if (kind === 'while') return {kind, flag: this.slots[rest[0]], offset: rest[1], body: rest[2].map(c => this.prepared(c, compiled, layouts))};
    if (kind === 'submit') return {kind};
    const [number, bindings, ...grid] = rest, moves = bindings.some(([, , , strides]) => strides);
    const step = {kind, pipeline: compiled[number], layout: layouts[number], bindings, groups: moves ? new Map() : null, group: null, grid};
    if (kind === 'indirect') step.grid = [this.slots[grid[0]], grid[1]];
    else step.grid = grid[0];
    if (!moves) step.group = this.group(step, bindings.map(([, offset]) => offset));
    return step;
  }

  group({layout, bindings}, offsets) {
    const entries = bindings.map(([slot, , size], binding) => (
      {binding, resource: {buffer: this.slots[slot], offset: offsets[binding], size}}));
    return this.device.createBindGroup({layout, entries});
  }

  /** The bind group of a step whose ranges move with the iterations of loops. */
  movedGroup(step) {
    const offsets = step.bindings.map(([, offset, , strides]) => (
      (strides ?? []).reduce((sum, [loop, bytes]) => sum + bytes * this.iterations[loop], offset)));
    const key = offsets.join();
    let group = step.groups.get(key);
    if (!group) {
      if (step.groups.size >= MOST_GROUPS) step.groups.clear();
      group = this.group(step, offsets);
      step.groups.set(key, group);
    }
    return group;
  }

  /** Runs the commands, to the end of what the host has to do. */
  async run() {
    const waiting = this.play(this.steps);
    if (waiting) await waiting;
    this.endPass();
    for (const [from, to, size] of this.copies) this.encoding().copyBufferToBuffer(from, 0, to, 0, size);
    this.submit();
  }

  /** Writes commands; a promise if the host has to wait for the GPU in between. */
  play(steps) {
    for (let position = 0; position < steps.length; position++) {
      const step = steps[position];
      if (step.kind === 'run' || step.kind === 'indirect') this.dispatch(step);
      else if (step.kind === 'submit') this.submit();
      else {
        const waiting = step.kind === 'loop' ? this.loop(step, 0) : this.repeat(step);
        if (waiting) return waiting.then(() => this.play(steps.slice(position + 1)));
      }
    }
    return null;
  }

  loop(step, start) {
    for (let iteration = start; iteration < step.iterations; iteration++) {
      this.iterations[step.number] = iteration;
      const waiting = this.play(step.body);
      if (waiting) return waiting.then(() => this.loop(step, iteration + 1));
    }
    return null;
  }

  async repeat({flag, offset, body}) {
    for (let iterations = 1; ; iterations = Math.min(2 * iterations, MOST_ITERATIONS)) {
      this.submit();
      const [going] = new Uint32Array((await this.memory.read(flag, 4, offset)).buffer);
      if (!going) return;
      for (let iteration = 0; iteration < iterations; iteration++) {
        const waiting = this.play(body);
        if (waiting) await waiting;
      }
    }
  }

  dispatch(step) {
    if (!this.pass) {
      this.pass = this.encoding().beginComputePass();
      this.bound = null;
    }
    if (this.bound !== step.pipeline) this.pass.setPipeline(this.bound = step.pipeline);
    this.pass.setBindGroup(0, step.group ?? this.movedGroup(step));
    if (step.kind === 'run') this.pass.dispatchWorkgroups(step.grid[0], step.grid[1], step.grid[2]);
    else this.pass.dispatchWorkgroupsIndirect(step.grid[0], step.grid[1]);
  }

  encoding() {
    return this.encoder ??= this.device.createCommandEncoder();
  }

  endPass() {
    this.pass?.end();
    this.pass = null;
  }

  submit() {
    this.endPass();
    if (this.encoder) this.device.queue.submit([this.encoder.finish()]);
    this.encoder = null;
  }
}
