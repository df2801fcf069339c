// Runs the package in Pyodide itself, under Node: node tests/pyodide.mjs FOLDER [--path FOLDER]... [PYTEST_ARGUMENTS]
//
// FOLDER is Pyodide's full distribution, with its wheels. The folders of --path come first in Python's search for modules: pytest and
// hypothesis, as pip unpacks them, or a package that the distribution lacks. Without arguments for pytest the program of
// tests/test_pyodide.py runs, which trains a network.

import path from 'node:path';
import {fileURLToPath, pathToFileURL} from 'node:url';

const PREPARE = `
import os, sys
sys.dont_write_bytecode = True
sys.path[:0] = [*folders, "/repository"]
os.chdir("/repository")
`;

const TRAIN = `
from tests.test_pyodide import PROGRAM
exec(PROGRAM, {"__name__": "program"})
`;

const TEST = `
import pytest
os.environ["VOLTA_TEST_CACHE_DIR"] = ""
code = int(pytest.main(["-q", "-s", "--tb=line", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", *arguments]))
`;

const [folder, ...given] = process.argv.slice(2), folders = [];
while (given[0] === '--path') folders.push(given.splice(0, 2)[1]);
const home = path.resolve(folder);
const {loadPyodide} = await import(pathToFileURL(path.join(home, 'pyodide.mjs')));
const pyodide = await loadPyodide({indexURL: home});
const known = Object.keys(pyodide._api.lockfile_packages);
await pyodide.loadPackage(['numpy', 'ml-dtypes'].filter(name => known.includes(name)), {messageCallback: () => {}});

/** Makes a folder of this machine one of Pyodide's. */
function mounted(inside, outside) {
  pyodide.FS.mkdirTree(inside);
  pyodide.mountNodeFS(inside, outside);
  return inside;
}

mounted('/repository', path.dirname(path.dirname(fileURLToPath(import.meta.url))));
pyodide.globals.set('folders', pyodide.toPy(folders.map((outside, number) => mounted(`/path${number}`, path.resolve(outside)))));
pyodide.globals.set('arguments', pyodide.toPy(given));
try {
  await pyodide.runPythonAsync(PREPARE);
  console.log(await pyodide.runPythonAsync('import numpy\nf"Python {sys.version.split()[0]}, NumPy {numpy.__version__}, {sys.platform}"'));
  await pyodide.runPythonAsync(given.length ? TEST : TRAIN);
  process.exitCode = given.length ? pyodide.globals.get('code') : 0;
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
