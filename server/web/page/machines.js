// The machines of the fleet: what is in use, and by which jobs.
import { h, update } from './dom.js';
import { bytes, percent } from './format.js';

function bar(share, words) {
  const fill = h('i');
  fill.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  return h('div', { class: 'meter', title: words }, fill);
}

// What the driver does not report is left out.
function gpuText(gpu, named) {
  return [gpu.use !== null && `${percent(gpu.use)} busy`, gpu.celsius !== null && `${Math.round(gpu.celsius)} °C`, `${bytes(gpu.used_bytes)} of ${bytes(gpu.memory_bytes)}`,
    gpu.watts !== null && `${Math.round(gpu.watts)} W`, named && gpu.name].filter(Boolean).join(' · ');
}

// How many of its slots are in use; GPUs that are all alike are named here, once.
function slots(node) {
  if (node.gpus.length === 0) return `${node.cpu_slots_used} of ${node.cpu_slots} CPU slots`;
  return `${node.gpus_used} of ${node.gpus.length} ${alike(node) ? node.gpus[0].name : 'GPUs'}`;
}

function alike(node) {
  return node.gpus.every((gpu) => gpu.name === node.gpus[0].name);
}

export function showMachines(element, nodes) {
  update(element, nodes.length === 0 && h('p', { class: 'muted' }, 'No machine reports yet; its agent may be starting.'), nodes.map((node) => h('article', { class: 'machine' },
    h('header', {}, h('i', { class: `dot ${node.state === 'READY' ? 'good' : 'bad'}`, 'aria-hidden': 'true' }), h('b', {}, node.name), node.state !== 'READY' && h('span', { class: 'bad' }, node.state.toLowerCase()), node.cordon && h('span', { class: 'label warn', title: node.cordon_text }, node.cordon.toLowerCase()),
      h('span', { class: 'grow' }), h('span', { class: 'muted' }, slots(node))),
    h('dl', { class: 'meters' },
      h('dt', {}, 'Memory'), h('dd', {}, bar(node.used_memory_bytes / node.memory_bytes, 'memory in use'), `${bytes(node.used_memory_bytes)} of ${bytes(node.memory_bytes)}`),
      node.gpus.flatMap((gpu, i) => [h('dt', {}, `GPU ${i}`), h('dd', { title: gpu.name }, bar(gpu.use === null ? gpu.used_bytes / gpu.memory_bytes : gpu.use, gpu.use === null ? 'memory in use' : 'share of the time in which a kernel ran'), gpuText(gpu, !alike(node)))])),
    h('div', { class: 'runs' }, node.jobs.length === 0 ? h('span', { class: 'muted' }, 'idle') : node.jobs.map(({ id, name }) => h('a', { href: `#/job/${id}` }, name))),
    node.cordon && h('p', { class: 'muted' }, `No rank is placed here: ${node.cordon_text}`),
    node.problem && h('p', { class: 'muted' }, node.problem))));
}
