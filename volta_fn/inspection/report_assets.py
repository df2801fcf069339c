"""The style and the script of reports."""

STYLE = """
:root{color-scheme:light dark;--fg:#1b1f24;--bg:#fff;--dim:#6a737d;--box:#f6f8fa;--edge:#d8dee4;--hot:#d1242f;--cool:#0969da}
@media(prefers-color-scheme:dark){:root{--fg:#e6edf3;
--bg:#0d1117;
--dim:#8b949e;
--box:#161b22;
--edge:#30363d;
--hot:#ff7b72;
--cool:#58a6ff}
}
*{box-sizing:border-box}
body{font:14px/1.45 system-ui,sans-serif;color:var(--fg);background:var(--bg);margin:0 auto;max-width:1500px;padding:0 24px 60px}
h1{font-size:22px;margin:20px 0 8px}
h2{font-size:17px;margin:30px 0 10px;border-bottom:1px solid var(--edge);padding-bottom:4px}
dl{display:flex;flex-wrap:wrap;gap:12px;margin:0}
dl div{background:var(--box);border:1px solid var(--edge);border-radius:6px;padding:6px 14px}
dt{color:var(--dim);font-size:12px}
dd{margin:0;font-size:18px}
table{border-collapse:collapse;font-size:13px;width:100%}
th,td{text-align:left;padding:3px 10px;border-bottom:1px solid var(--edge);vertical-align:top}
#steps{display:block;max-height:460px;overflow:auto;border:1px solid var(--edge);border-radius:6px}
#steps thead th{position:sticky;top:0;background:var(--box);cursor:pointer}
#steps tbody,#steps thead{width:100%}
#steps td:nth-child(2){width:60%}
#steps tr[data-step]{cursor:pointer}
#steps tr.on{background:color-mix(in srgb,var(--cool) 18%,transparent)}
#steps tr.host td{color:var(--hot)}
td.n{text-align:right;white-space:nowrap}
td.bar{min-width:160px;position:relative;white-space:nowrap}
td.bar i{position:absolute;left:0;top:2px;bottom:2px;background:color-mix(in srgb,var(--hot) 35%,transparent);border-radius:2px}
#panes{display:grid;grid-template-columns:1fr 1fr 1fr;gap:10px;margin-top:10px}
.pane{background:var(--box);border:1px solid var(--edge);border-radius:6px;padding:8px;
max-height:520px;overflow:auto;white-space:pre;font:12px/1.45 ui-monospace,monospace;tab-size:4}
.pane b{display:block;font:600 12px system-ui,sans-serif;color:var(--dim);margin-bottom:6px}
mark{background:color-mix(in srgb,var(--cool) 30%,transparent);color:inherit}
pre{background:var(--box);padding:10px;overflow:auto;max-height:600px;font-size:12px}
svg{max-width:100%;height:auto}
svg text{font:11px system-ui,sans-serif;fill:var(--fg)}
.m{text-anchor:middle}
.e{text-anchor:end}
.s{text-anchor:start}
.grid{stroke:var(--edge)}
.roof{fill:none;stroke:var(--hot);stroke-width:1.5}
circle{fill:var(--cool);fill-opacity:.45;stroke:var(--cool);cursor:pointer}
circle.on{fill:var(--hot)}
.area{fill:var(--cool);fill-opacity:.5}
.held{fill:var(--dim);fill-opacity:.5}
.arc{fill:none;stroke:var(--dim);stroke-opacity:.35}
.arc.on{stroke:var(--hot);stroke-opacity:1;stroke-width:1.5}
g[data-step]{cursor:pointer}
g.on text{fill:var(--hot);font-weight:600}
.scroll{max-height:600px;overflow:auto;border:1px solid var(--edge);border-radius:6px}
@media(max-width:900px){#panes{grid-template-columns:1fr}
}
"""

SCRIPT = """
(async()=>{
const all=(q)=>[...document.querySelectorAll(q)],raw=document.getElementById('data').textContent;
const bytes=Uint8Array.from(atob(raw),c=>c.charCodeAt(0));
const data=JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).text());
const fill=(id,title,text)=>{
const pane=document.getElementById(id);
pane.textContent='';
const head=document.createElement('b');
head.textContent=title;
pane.append(head);
for(const row of text.split('\\n')){const on=row.startsWith('\\u25b6'),e=document.createElement(on?'mark':'span');
e.textContent=row+'\\n';
pane.append(e)}};
const show=(n)=>{const s=data.steps[n-1];
if(!s)return;
all('.on').forEach(e=>e.classList.remove('on'));
all(`[data-step="${n}"]`).forEach(e=>e.classList.add('on'));
all(`[data-from="${n}"],[data-to="${n}"]`).forEach(e=>e.classList.add('on'));
fill('source','Your lines',data.texts[s.source]);
fill('kernel',`Kernel ${n}: ${s.shapes}`,s.equations+'\\n\\n'+data.texts[s.kernel]);
fill('code','Code',data.texts[s.code]||'(none)')};
document.addEventListener('click',e=>{const at=e.target.closest('[data-step]');
if(at)show(+at.dataset.step)});
const body=document.querySelector('#steps tbody');
let order=1;
all('#steps th').forEach(h=>h.addEventListener('click',()=>{const i=+h.dataset.by;
order=-order;
[...body.rows]
.sort((a,b)=>{const x=a.cells[i].dataset.v,y=b.cells[i].dataset.v;
return order*(isNaN(x)||isNaN(y)?x.localeCompare(y):x-y)}).forEach(r=>body.append(r))}));
all('details[data-stage]').forEach(d=>d.addEventListener('toggle',()=>{const p=d.querySelector('pre');
if(!p.textContent)p.textContent=data[d.dataset.stage]}));
const times=[...body.rows].map(r=>+r.cells[2].dataset.v),slowest=times.indexOf(Math.max(...times));
if(body.rows.length)show(+body.rows[slowest].dataset.step);
document.body.dataset.ready='yes';
})();
"""
