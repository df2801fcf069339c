// Evaluates tokens with llama.cpp: `node llama_cpp.mjs FOLDER MODEL THREADS`, with `npm install node-llama-cpp` done in FOLDER.
// Each line of the input is how many tokens to read; each line of the output, the milliseconds that this took: of processor time on one
// thread, else of wall time.
import {createRequire} from "node:module";
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

const [folder, modelPath, count] = process.argv.slice(2);
const threads = Number(count);
const {getLlama} = await import(pathToFileURL(createRequire(folder + "/").resolve("node-llama-cpp")));
const llama = await getLlama({gpu: false, build: "never", maxThreads: threads, logLevel: "error"});
const model = await llama.loadModel({modelPath, gpuLayers: 0});
const context = await model.createContext({contextSize: 1024, batchSize: 512, threads});
const sequence = context.getSequence();
const processor = () => { const {user, system} = process.cpuUsage(); return (user + system) / 1e3; };
const now = threads === 1 ? processor : () => performance.now();
for await (const line of createInterface({input: process.stdin})) {
    const tokens = Array.from({length: Number(line)}, (_, i) => 5 + ((i * 7919) % 40000));
    if (tokens.length > 1)
        await sequence.clearHistory();
    const start = now();
    await sequence.evaluateWithoutGeneratingNewTokens(tokens);
    console.log(now() - start);
}
process.exit(0);
