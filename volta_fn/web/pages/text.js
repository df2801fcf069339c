// A language model of characters that goes on with what you type.

const prompt = find('prompt'), ahead = find('ahead');
const numbers = new Map([...settings.symbols].map((symbol, number) => [symbol, number]));
let isBusy = false, isStale = false, seed = 1, written = '';

/** The end of the text as numbers, filled up from the left; characters that the network does not know are blanks. */
function context() {
  const {length, filler} = settings, codes = [...prompt.value].map(symbol => numbers.get(symbol) ?? numbers.get(' ') ?? 0);
  const last = codes.slice(-length);
  return Int32Array.from([...Array(length - last.length).fill(filler), ...last]);
}

/** Lets the network go on, and again if the text has changed meanwhile. */
const write = guarded(async () => {
  if (!app || isBusy) {
    isStale = true;
    return;
  }
  isBusy = true;
  try {
    do {
      isStale = false;
      const startTime = performance.now(), inputs = {[settings.prompt]: context(), [settings.seed]: seed};
      if (settings.temperature) inputs[settings.temperature] = Number(find('temperature').value);
      const results = await app.run(settings.write, inputs, [settings.characters]);
      if (isStale) continue;
      const symbols = [...settings.symbols];
      written = [...results[settings.characters]].map(number => symbols[number]).join('');
      ahead.textContent = written;
      find('speed').textContent = `${written.length} characters in ${(performance.now() - startTime).toFixed(0)} ms`;
    } while (isStale);
  } finally {
    isBusy = false;
  }
});

/** Takes what the network wrote into the text. */
function accept() {
  prompt.value += written;
  written = ahead.textContent = '';
  prompt.scrollTop = prompt.scrollHeight;
  prompt.focus();
  write();
}

prompt.value = settings.prompt_text;
find('temperature').value = settings.initial_temperature;
find('temperature').parentElement.hidden = !settings.temperature;
prompt.addEventListener('input', () => write());
prompt.addEventListener('keydown', event => {
  if (event.key !== 'Tab' || event.shiftKey || !written) return;
  event.preventDefault();
  accept();
});
find('accept').addEventListener('click', accept);
find('temperature').addEventListener('input', () => write());
find('more').addEventListener('click', () => {
  seed++;
  write();
});

start(async () => {
  if (settings.train) new Training(settings, {look: () => write()});
  weights(settings.file, write);
  await write();
});
