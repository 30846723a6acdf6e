#include "server/decide/machine_view.h"

namespace nsa::server {

MachineView MachineViewOf(const v1::NodeInfo& info) {
  MachineView view;
  for (const v1::GpuInfo& gpu : info.gpus()) {
    view.gpus.push_back({.name = gpu.name(),
                         .memory_bytes = gpu.memory_bytes(),
                         .free_bytes = gpu.free_bytes(),
                         .compute_capability = gpu.compute_capability()});
  }
  view.cpu_slots = info.cpu_slots();
  view.cores = info.cores();
  view.memory_bytes = info.memory_bytes();
  view.free_memory_bytes = info.free_memory_bytes();
  view.cuda_worker = info.cuda_worker();
  view.cuda_problem = info.cuda_problem();
  view.driver_version = info.driver_version();
  return view;
}

}  // namespace nsa::server
